#include "swarm/data_port.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "swarm/swarm.h"
#include "wire/messages.h"
#include "wire/ticket.h"

namespace linkcpp {
namespace {

constexpr auto kHelloWithin = std::chrono::seconds(5);
constexpr std::size_t kMaxPending = 64;  // then the oldest has to go: an honest worker says Hello at once
constexpr LinkLimits kHelloLimits{.max_header_bytes = 64u << 10, .max_payload_bytes = 0};

// Where a link's frames go: to the port, and to the new owner once there is one. Transport's thread.
struct Relay {
  bool handed_on = false;
  Link::Handlers owner;
};

// A link that is being read from already; Start only says who gets the rest.
class RelayedLink final : public Link {
 public:
  RelayedLink(std::shared_ptr<TcpNet> net, std::unique_ptr<Link> link, std::shared_ptr<Relay> relay)
      : net_(std::move(net)), relay_(std::move(relay)), link_(std::move(link)) {}
  void Start(Handlers handlers) override {
    relay_->owner = std::move(handlers);
    relay_->handed_on = true;
  }
  Result<void> Send(std::span<const std::byte> header, std::span<const std::span<const std::byte>> payload) override {
    return link_->Send(header, payload);
  }
  void Close(std::string reason) override { link_->Close(std::move(reason)); }
  std::string peer() const override { return link_->peer(); }
  LinkStats stats() const override { return link_->stats(); }
  void set_limits(LinkLimits limits) override { link_->set_limits(limits); }

 private:
  const std::shared_ptr<TcpNet> net_;  // its thread must outlive the link
  const std::shared_ptr<Relay> relay_;
  const std::unique_ptr<Link> link_;
};

std::int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class TcpDataPort final : public DataPort {
 public:
  TcpDataPort(std::shared_ptr<TcpNet> net, OnWorker on_worker, const Clock& clock, LogSink& log)
      : net_(std::move(net)), on_worker_(std::move(on_worker)), clock_(clock), log_(log) {}

  ~TcpDataPort() override {
    listener_.reset();
    std::map<std::uint64_t, Pending> pending;
    std::unique_lock lock(mutex_);
    no_handler_.wait(lock, [this] { return n_handlers_ == 0; });  // they do not block
    pending.swap(pending_);
  }  // the lock goes first, then the links

  Result<void> Listen(const std::string& listen) {
    ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(listen));
    if (!IsLoopback(where.host)) {
      ASSIGN_OR_RETURN(certificate_, MakeCertificate("linkcpp backbone"));
    }
    ASSIGN_OR_RETURN(listener_, net_->Listen(listen, certificate_.has_value() ? &*certificate_ : nullptr,
                                             [this](std::unique_ptr<Link> link) { Take(std::move(link)); }));
    return {};
  }

  std::string address() const override { return listener_->address(); }
  std::string fingerprint() const override { return certificate_.has_value() ? certificate_->fingerprint : ""; }

  void Admit(Admission admission) override {
    std::lock_guard lock(mutex_);
    admission_ = std::move(admission);
  }

  void Tick() override {
    std::vector<Pending> expired;  // destroyed without the lock
    std::lock_guard lock(mutex_);
    const TimePoint now = clock_.Now();
    for (auto entry = pending_.begin(); entry != pending_.end();) {
      if (now - entry->second.since < kHelloWithin) {
        ++entry;
        continue;
      }
      log_.Debug("data port: {} said no Hello in time", entry->second.link->peer());
      expired.push_back(std::move(entry->second));
      entry = pending_.erase(entry);
    }
  }

 private:
  struct Pending {
    std::unique_ptr<Link> link;
    TimePoint since;
    std::shared_ptr<Relay> relay;
    bool refused = false;
  };

  // Transport's thread, as all below.
  void Take(std::unique_ptr<Link> link) {
    link->set_limits(kHelloLimits);
    auto relay = std::make_shared<Relay>();
    Link& started = *link;
    Pending oldest;  // destroyed without the lock
    std::uint64_t number = 0;
    {
      std::lock_guard lock(mutex_);
      if (pending_.size() >= kMaxPending) {
        log_.Warning("data port: {} links wait to say Hello, dropping the one from {}", pending_.size(),
                     pending_.begin()->second.link->peer());
        oldest = std::move(pending_.begin()->second);
        pending_.erase(pending_.begin());
      }
      number = next_++;
      pending_.emplace(number, Pending{std::move(link), clock_.Now(), relay});
    }
    // `started` is safe: only this thread or a tick seconds from now takes it out of pending_.
    started.Start({.on_frame =
                       [this, relay, number](const FrameView& frame) {
                         return relay->handed_on ? relay->owner.on_frame(frame) : Hello(number, frame);
                       },
                   .on_close =
                       [this, relay, number](const Fault& why) {
                         if (relay->handed_on) return relay->owner.on_close(why);
                         Gone(number, why);
                       }});
  }

  std::optional<Pending> TakeOut(std::uint64_t number) {
    std::lock_guard lock(mutex_);
    const auto entry = pending_.find(number);
    if (entry == pending_.end()) return std::nullopt;
    Pending pending = std::move(entry->second);
    pending_.erase(entry);
    ++n_handlers_;
    return pending;
  }

  // A handler that took its link out owns it, so that nobody's destructor waits for the handler; this counts it.
  struct Leaving {
    TcpDataPort& port;
    ~Leaving() {
      std::lock_guard lock(port.mutex_);
      if (--port.n_handlers_ == 0) port.no_handler_.notify_all();
    }
  };

  void Gone(std::uint64_t number, const Fault& why) {
    std::optional<Pending> pending = TakeOut(number);
    if (!pending.has_value()) return;
    const Leaving leaving{*this};
    if (!pending->refused) log_.Debug("data port: {} left before it was let in: {}", pending->link->peer(), why.text);
    pending.reset();
  }

  Result<void> Hello(std::uint64_t number, const FrameView& frame) {
    std::optional<Pending> pending = TakeOut(number);
    if (!pending.has_value()) return Fail(FaultCode::kGone, "too late");
    const Leaving leaving{*this};
    if (pending->refused) return Fail(FaultCode::kMalformed, "more frames after a refusal");
    Result<HelloMessage> hello = Check(frame);
    if (!hello.has_value()) {
      log_.Warning("data port: {} is not let in: {}", pending->link->peer(), hello.error().text);
      (void)pending->link->Send(EncodeMessage(FaultMessage{0, hello.error().code, hello.error().text}), {});
      pending->link->Close(hello.error().text);
      pending->refused = true;
      std::lock_guard lock(mutex_);
      pending_.emplace(number, std::move(*pending));
      return {};
    }
    std::string backbone_id;
    {
      std::lock_guard lock(mutex_);
      backbone_id = admission_->backbone_id;
    }
    if (auto sent = pending->link->Send(EncodeMessage(WelcomeMessage{backbone_id, kMaxDataPayloadBytes}), {});
        !sent.has_value()) {
      return sent;  // destroys the link
    }
    on_worker_(std::move(hello->node_id), std::move(hello->kernel_class),
               std::make_unique<RelayedLink>(net_, std::move(pending->link), pending->relay));
    return {};
  }

  Result<HelloMessage> Check(const FrameView& frame) {
    ASSIGN_OR_RETURN(Message message, DecodeMessage(frame.header, frame.payload.size()));
    auto* const hello = std::get_if<HelloMessage>(&message);
    if (hello == nullptr) return Fail(FaultCode::kMalformed, "the first frame of a link must be a Hello");
    if (hello->protocol != kProtocolVersion) {
      return Fail(FaultCode::kRefused,
                  "the worker speaks protocol {}, this backbone {}: install the same release on both", hello->protocol,
                  kProtocolVersion);
    }
    std::optional<Admission> admission;
    {
      std::lock_guard lock(mutex_);
      admission = admission_;
    }
    if (!admission.has_value()) return Fail(FaultCode::kBusy, "this backbone has not reached its coordinator yet");
    if (hello->model_id != admission->model_id) {
      return Fail(FaultCode::kRefused, "the worker holds slices of model {}, this backbone runs {}",
                  hello->model_id.substr(0, 12), admission->model_id.substr(0, 12));
    }
    ASSIGN_OR_RETURN(const Ticket ticket, OpenTicket(hello->ticket, admission->ticket_key, UnixNow()));
    if (ticket.node_id != hello->node_id || ticket.backbone_id != admission->backbone_id ||
        ticket.model_id != admission->model_id) {
      return Fail(FaultCode::kRefused,
                  "the ticket is for another worker, backbone or model: ask the coordinator for a new one");
    }
    return std::move(*hello);
  }

  const std::shared_ptr<TcpNet> net_;
  const OnWorker on_worker_;
  const Clock& clock_;
  LogSink& log_;
  std::optional<Certificate> certificate_;
  std::mutex mutex_;  // guards what follows; never held while a link is called or destroyed, but for its name
  std::optional<Admission> admission_;
  std::map<std::uint64_t, Pending> pending_;  // by age
  std::uint64_t next_ = 0;
  int n_handlers_ = 0;
  std::condition_variable no_handler_;
  std::unique_ptr<TcpNet::Listener> listener_;  // last: stops calling us first
};

}  // namespace

Result<std::unique_ptr<DataPort>> DataPort::Open(std::shared_ptr<TcpNet> net, const std::string& listen,
                                                 OnWorker on_worker, const Clock& clock, LogSink& log) {
  auto port = std::make_unique<TcpDataPort>(std::move(net), std::move(on_worker), clock, log);
  RETURN_IF_FAULT(port->Listen(listen));
  return port;
}

}  // namespace linkcpp
