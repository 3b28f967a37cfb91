#include "swarm/backbone_session.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/quiet_thread.h"
#include "net/tcp.h"
#include "swarm/data_port.h"
#include "swarm/fit_report.h"

namespace linkcpp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAttachTimeout{10'000};
constexpr milliseconds kReportTimeout{5'000};
constexpr milliseconds kDetachTimeout{500};
constexpr milliseconds kReportEvery{1'000};
constexpr milliseconds kLongestPause{5'000};  // between attempts while the coordinator is away
constexpr milliseconds kTickEvery{500};
constexpr int kProbeRounds = 4;
constexpr std::size_t kMaxProbes = 1024;  // a coordinator asks for a few

class HttpBackboneSession final : public BackboneSession {
 public:
  HttpBackboneSession(const BackboneOptions& options, HashSlab hash_slab, Swarm& swarm, LogSink& log)
      : options_(options), hash_slab_(std::move(hash_slab)), swarm_(swarm), log_(log) {}

  ~HttpBackboneSession() override {
    for (std::jthread* thread : {&reporter_, &ticker_}) thread->request_stop();
    if (client_ != nullptr) client_->Stop();
    for (std::jthread* thread : {&reporter_, &ticker_}) {
      if (thread->joinable()) thread->join();
    }
    port_.reset();
    if (!backbone_id_.empty()) {
      // A coordinator that does not hear this drops us when our reports stop.
      const auto client = HttpClient::Create(options_.coordinator);
      if (auto gone = client->Call("DELETE", "/api/backbones/" + backbone_id_, "", kDetachTimeout); !gone.has_value()) {
        log_.Debug("detaching from the coordinator: {}", gone.error().text);
      }
    }
  }

  Result<void> Begin() {
    net_ = TcpNet::Create(log_);
    ASSIGN_OR_RETURN(port_, DataPort::Open(
                                net_, options_.data_listen,
                                [this](std::string node_id, std::string kernel_class, std::unique_ptr<Link> link) {
                                  swarm_.AddWorker(std::move(node_id), std::move(kernel_class), std::move(link));
                                },
                                clock_, log_));
    client_ = HttpClient::Create(options_.coordinator);
    RETURN_IF_FAULT(AttachNow({}));
    ticker_ = StartQuietThread("linkcpp-tick", [this](std::stop_token stop) { Tick(stop); });
    reporter_ = StartQuietThread("linkcpp-report", [this](std::stop_token stop) { Report(stop); });
    return {};
  }

  std::string backbone_id() const override {
    std::lock_guard lock(mutex_);
    return backbone_id_;
  }

 private:
  // What an answer other than 200 means to us.
  Fault FaultOf(const HttpReply& reply) const {
    std::string text = ErrorMessage(reply.body);
    if (text.empty()) text = std::format("{} answers with HTTP status {}", options_.coordinator.url, reply.status);
    const FaultCode code = reply.status == 503   ? FaultCode::kBusy
                           : reply.status >= 500 ? FaultCode::kGone
                                                 : FaultCode::kRefused;
    return {code, std::move(text)};
  }

  // The reporter's thread, and Begin before that starts.
  Result<void> AttachNow(std::stop_token stop) {
    AttachRequest request;
    request.program = options_.program;
    request.kernel_class = options_.kernel_class;
    request.data_address = options_.data_advertise.empty() ? port_->address() : options_.data_advertise;
    request.tls_fingerprint = port_->fingerprint();
    request.header_hash = options_.header_hash;
    for (int round = 0; round < kProbeRounds && !stop.stop_requested(); ++round) {
      const auto answer = client_->Call("POST", "/api/backbones", ToJson(request), kAttachTimeout);
      if (!answer.has_value()) return Wrap(answer.error(), "attaching to the coordinator");
      if (answer->status == 404) {
        return Fail(FaultCode::kRefused, "attaching to the coordinator: what answers at {} is not one",
                    options_.coordinator.url);
      }
      if (answer->status != 200) return Wrap(FaultOf(*answer), "attaching to the coordinator");
      const auto reply = FromJson<AttachReply>(answer->body);
      if (!reply.has_value()) {
        return Fail(FaultCode::kRefused, "attaching to the coordinator: {} does not answer as one ({})",
                    options_.coordinator.url, reply.error().text);
      }
      if (reply->wanted_probes.empty()) {
        if (reply->backbone_id.empty() || reply->ticket_key.empty()) {
          return Fail(FaultCode::kRefused, "attaching to the coordinator: its answer has no backbone id or ticket key");
        }
        {
          std::lock_guard lock(mutex_);
          backbone_id_ = reply->backbone_id;
        }
        port_->Admit({reply->backbone_id, reply->model_id, reply->ticket_key});
        log_.Info("attached to {} as backbone {}; workers dial {}", options_.coordinator.url, reply->backbone_id,
                  request.data_address);
        return {};
      }
      if (reply->wanted_probes.size() > kMaxProbes) {
        return Fail(FaultCode::kRefused, "attaching to the coordinator: it asks for {} slab hashes",
                    reply->wanted_probes.size());
      }
      request.probes.clear();
      for (SlabProbe probe : reply->wanted_probes) {
        auto hash = hash_slab_(probe);
        if (!hash.has_value()) {
          return Wrap({FaultCode::kRefused, hash.error().text},
                      std::format("the coordinator's model has layer {} expert {} tensor {}, this one", probe.layer,
                                  probe.expert, probe.tensor));
        }
        probe.hash = std::move(*hash);
        request.probes.push_back(std::move(probe));
      }
    }
    return Fail(FaultCode::kRefused, "attaching to the coordinator: it keeps asking for slab hashes");
  }

  void Tick(std::stop_token stop) {
    while (Pause(stop, kTickEvery)) {
      swarm_.Tick();
      port_->Tick();
    }
  }

  // Every second; an away coordinator is asked again at growing pauses, an unknowing one is attached to again.
  void Report(std::stop_token stop) {
    milliseconds pause = kReportEvery;
    bool well = true;
    while (Pause(stop, pause)) {
      Result<void> done = ReportOnce(stop);
      if (stop.stop_requested()) return;
      if (!done.has_value()) {
        if (std::exchange(well, false)) {
          log_.Warning("coordinator {}: {}; workers that are connected go on", options_.coordinator.url,
                       done.error().text);
        }
        pause = std::min(2 * pause, kLongestPause);
        continue;
      }
      if (!std::exchange(well, true)) log_.Info("coordinator {} is back", options_.coordinator.url);
      pause = kReportEvery;
    }
  }

  Result<void> ReportOnce(std::stop_token stop) try {
    const FittedReport report = FitReport(swarm_.Report());
    if (!report.dropped.empty() && !std::exchange(said_dropped_, true)) {
      log_.Warning("reports would be larger than {} bytes and leave out: {}", kMaxControlBytes, report.dropped);
    }
    ASSIGN_OR_RETURN(const HttpReply answer,
                     client_->Call("POST", "/api/backbones/" + backbone_id() + "/report", report.json, kReportTimeout));
    if (answer.status == 200) {
      ASSIGN_OR_RETURN(const BackboneOrders orders, FromJson<BackboneOrders>(answer.body));
      Obey(orders);
      return {};
    }
    if (answer.status != 404) return std::unexpected(FaultOf(answer));
    log_.Info("the coordinator does not know this backbone (any more): attaching again");
    return AttachNow(stop);
  } catch (const std::exception& error) {
    return Fail(FaultCode::kLocal, "reporting: {}", error.what());
  }

  void Obey(const BackboneOrders& orders) {
    if (orders.expel.empty()) return;
    for (const WorkerOffer& offer : swarm_.Offers()) {
      const auto order = std::ranges::find(orders.expel, offer.node_id, &Expulsion::node_id);
      if (order != orders.expel.end()) swarm_.Expel(offer.worker, "the coordinator says: " + order->reason);
    }
  }

  // False: time to end.
  bool Pause(std::stop_token stop, milliseconds pause) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop, pause, [] { return false; });
    return !stop.stop_requested();
  }

  const BackboneOptions options_;
  const HashSlab hash_slab_;
  Swarm& swarm_;
  LogSink& log_;
  const SteadyClock clock_;
  std::shared_ptr<TcpNet> net_;  // the swarm's links keep it
  std::unique_ptr<DataPort> port_;
  std::unique_ptr<HttpClient> client_;  // the reporter's, but for Stop
  mutable std::mutex mutex_;            // guards backbone_id_
  std::condition_variable_any wake_;
  std::string backbone_id_;
  bool said_dropped_ = false;  // the reporter's
  std::jthread ticker_, reporter_;
};

}  // namespace

Result<std::unique_ptr<BackboneSession>> BackboneSession::Attach(const BackboneOptions& options, HashSlab hash_slab,
                                                                 Swarm& swarm, LogSink& log) try {
  auto session = std::make_unique<HttpBackboneSession>(options, std::move(hash_slab), swarm, log);
  RETURN_IF_FAULT(session->Begin());
  return session;
} catch (const std::exception& error) {
  return Fail(FaultCode::kLocal, "attaching to the coordinator: {}", error.what());
}

}  // namespace linkcpp
