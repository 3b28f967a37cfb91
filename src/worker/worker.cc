#include "worker/worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gguf/manifest.h"
#include "kernel/expert_stack.h"
#include "net/tcp.h"
#include "worker/byte_size.h"
#include "worker/control_session.h"
#include "worker/dispatcher.h"
#include "worker/loader.h"
#include "worker/peers.h"
#include "worker/rack.h"
#include "worker/seat.h"
#include "worker/slab_cache.h"
#include "worker/wake.h"

namespace linkcpp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr milliseconds kTick{200};
constexpr std::size_t kMaxErrorBytes = 1000;  // of a report; the coordinator keeps less
constexpr seconds kReportEvery{3};
constexpr milliseconds kRetryFirst{200};
constexpr milliseconds kRetryMost{10'000};

std::string HostName() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "worker";
}

class WorkerImpl final : public Worker {
 public:
  WorkerImpl(WorkerOptions options, std::unique_ptr<Device> device, SlabCache cache, Seat seat, LogSink& log,
             std::function<void(const WorkerProgress&)> on_progress)
      : options_(std::move(options)),
        device_(std::move(device)),
        cache_(std::move(cache)),
        seat_(std::move(seat)),
        log_(log),
        on_progress_(std::move(on_progress)),
        net_(TcpNet::Create(log)),
        rack_([this](const ExpertShape& shape, std::uint32_t n_slots) {
          return ExpertStack::Create(shape, n_slots, *device_);
        }),
        dispatcher_(rack_, log),
        loader_({.memory_bytes = options_.memory_bytes}, rack_, cache_, HttpClient::Create(options_.coordinator), log,
                [this] { OnHoldingsChanged(); }),
        control_(HttpClient::Create(options_.coordinator)),
        poll_(HttpClient::Create(options_.coordinator)),
        peers_([this](const std::string& address, const std::string& fingerprint,
                      milliseconds timeout) { return net_->Dial(address, fingerprint, timeout); },
               [this] { return rack_.Ready(); }, dispatcher_, log) {}

  Result<void> Run() override;
  void Stop() override { wake_.Stop(); }

 private:
  struct Membership {  // what the last join gave us
    std::string node_id, model_name, warning;
    std::shared_ptr<const Catalog> catalog;
    seconds poll{20};
    std::uint64_t generation = 0;  // of joins; 0: not joined
  };

  ControlResult<std::vector<LayerHoldings>> Dowry();
  bool TryJoin();
  bool Fatal(const std::string& text);
  void Follow(const ControlFault& fault, std::string_view doing);
  void SendReport(const std::string& state);
  void ShowProgress(const std::string& state);
  std::string State();
  void Leave();

  void PollLoop();
  void ApplyOrders(const Membership& membership, const NodeOrders& orders);

  void OnHoldingsChanged();

  const WorkerOptions options_;
  const std::unique_ptr<Device> device_;
  const SlabCache cache_;
  const Seat seat_;
  LogSink& log_;
  const std::function<void(const WorkerProgress&)> on_progress_;

  Wake wake_;
  std::unique_ptr<TcpNet> net_;
  Rack rack_;
  Dispatcher dispatcher_;
  Loader loader_;
  ControlSession control_;  // the control thread's (Run)
  ControlSession poll_;     // the poll thread's

  std::mutex mutex_;
  Membership membership_;          // guarded by mutex_
  std::optional<Fault> fatal_;     // guarded by mutex_
  std::string control_error_;      // guarded by mutex_; why the coordinator can not be used right now
  std::string refusal_;            // guarded by mutex_; why we are not admitted
  std::atomic<bool> away_{false};  // the coordinator does not answer
  std::atomic<bool> rejoin_{true};
  std::atomic<bool> report_now_{false};

  Peers peers_;  // last: its links call what is above
};

// ---------------------------------------------------------------- the control thread

bool WorkerImpl::Fatal(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!fatal_) fatal_ = Fault{FaultCode::kRefused, text};
  wake_.Ring();
  return false;
}

void WorkerImpl::Follow(const ControlFault& fault, std::string_view doing) {
  switch (fault.state) {
    case ControlState::kUnknownNode: rejoin_ = true; break;
    case ControlState::kRefused:  // a coordinator that has changed under us, with another model perhaps
      log_.Warning("{}: {}; joining again", doing, fault.text);
      rejoin_ = true;
      break;
    case ControlState::kFatal: Fatal(fault.text); return;
    case ControlState::kAway: {
      const bool was_away = away_.exchange(true);
      if (!was_away) log_.Warning("the coordinator does not answer ({}): {}; trying again", doing, fault.text);
      break;
    }
  }
  const std::lock_guard lock(mutex_);
  control_error_ = fault.text;
}

// What we bring: loaded slices when we join again, those of our last run when we have just started. Empty when the
// coordinator's model is another.
ControlResult<std::vector<LayerHoldings>> WorkerImpl::Dowry() {
  auto models = control_.Models();
  if (!models) return std::unexpected(models.error());
  const ModelSummary* model = nullptr;
  for (const ModelSummary& summary : models->models) {
    const bool it = options_.model.empty() ? models->models.size() == 1
                                           : options_.model == summary.name || options_.model == summary.model_id;
    if (it) model = &summary;
  }
  if (model == nullptr) return {};
  {
    const std::lock_guard lock(mutex_);
    if (membership_.catalog && membership_.catalog->model_id() == model->model_id) return rack_.Ready();
  }
  return seat_.Load(model->model_id);
}

bool WorkerImpl::TryJoin() {
  const auto give_up = [this](const ControlFault& fault, std::string_view doing) {
    // At this point even "not found" is final: no such model, or no coordinator at this address.
    if (fault.state != ControlState::kAway) return Fatal(fault.text);
    Follow(fault, doing);
    return false;
  };
  auto dowry = Dowry();
  if (!dowry) return give_up(dowry.error(), "joining");
  JoinRequest request;
  request.name = options_.name;
  request.software = options_.software;
  request.kernel_class = device_->kernel_class();
  request.device = device_->info().name;
  request.n_threads = device_->n_threads();
  request.memory_bytes = options_.memory_bytes;
  request.model = options_.model;
  request.layers = options_.layers;
  request.experts = options_.experts;
  request.ready = std::move(*dowry);
  const auto reply = control_.Join(request);
  if (!reply) return give_up(reply.error(), "joining");

  std::shared_ptr<const Catalog> catalog;
  {
    const std::lock_guard lock(mutex_);
    catalog = membership_.catalog;
  }
  if (!catalog || catalog->model_id() != reply->model_id || catalog->model_name() != reply->model_name) {
    const auto leave = [&] {
      control_.Leave(reply->node_id);
    };  // or it would stand there as a ghost until it times out
    const auto detail = control_.Model(reply->model_name);
    if (!detail) {
      leave();
      return give_up(detail.error(), "asking for the model");
    }
    auto made = Catalog::Make(*detail);
    if (!made) {
      leave();
      return Fatal(std::format("can not serve this model: {}", made.error().text));
    }
    catalog = std::make_shared<const Catalog>(std::move(*made));
  }
  log_.Info("joined as {} for {}, giving {} on {}", reply->node_id, reply->model_name,
            FormatByteSize(options_.memory_bytes), device_->info().name);
  if (!reply->warning.empty()) log_.Error("{}", reply->warning);  // on a terminal, too: its owner has to act
  const std::lock_guard lock(mutex_);
  membership_ = {.node_id = reply->node_id,
                 .model_name = reply->model_name,
                 .warning = reply->warning,
                 .catalog = std::move(catalog),
                 .poll = seconds(std::clamp<std::uint32_t>(reply->poll_seconds, 1, 120)),
                 .generation = membership_.generation + 1};
  control_error_.clear();
  away_ = false;
  rejoin_ = false;
  return true;
}

std::string WorkerImpl::State() {
  if (away_) return "reconnecting";
  if (rejoin_) return "joining";
  const auto loading = loader_.status();
  if (!loading.settled && loading.slices_wanted == 0) return "joining";  // no orders yet
  if (loading.settled) return loading.slices_wanted == 0 ? "idle" : "ready";
  return "downloading";
}

void WorkerImpl::SendReport(const std::string& state) {
  std::string node_id, error;
  {
    const std::lock_guard lock(mutex_);
    node_id = membership_.node_id;
  }
  const auto loading = loader_.status();
  const auto counters = dispatcher_.counters();
  const auto sent = control_.Report(node_id, {.ready = rack_.Ready(),
                                              .downloaded_bytes = loading.downloaded_bytes,
                                              .wanted_bytes = loading.wanted_bytes,
                                              .memory_used_bytes = loading.memory_used_bytes,
                                              .pairs_computed = counters.pairs,
                                              .dispatches = counters.dispatches,
                                              .busy_us = counters.busy_us,
                                              .state = state,
                                              .error = loading.error.substr(0, kMaxErrorBytes)});
  if (!sent) {
    Follow(sent.error(), "our report");
    return;
  }
  if (away_.exchange(false)) log_.Info("the coordinator answers again");
  const std::lock_guard lock(mutex_);
  control_error_.clear();
}

void WorkerImpl::ShowProgress(const std::string& state) {
  if (!on_progress_) return;
  WorkerProgress progress;
  progress.state = state;
  const auto loading = loader_.status();
  const auto counters = dispatcher_.counters();
  {
    const std::lock_guard lock(mutex_);
    progress.model = membership_.model_name;
    progress.node_id = membership_.node_id;
    progress.error = !control_error_.empty() ? control_error_ : !refusal_.empty() ? refusal_ : loading.error;
    if (progress.error.empty()) progress.error = membership_.warning;
  }
  progress.downloaded_bytes = loading.downloaded_bytes;
  progress.wanted_bytes = loading.wanted_bytes;
  progress.slices_ready = rack_.n_ready();
  progress.slices_wanted = loading.slices_wanted;
  progress.memory_used_bytes = loading.memory_used_bytes;
  progress.memory_bytes = options_.memory_bytes;
  progress.pairs_computed = counters.pairs;
  progress.dispatches = counters.dispatches;
  progress.backbones = peers_.n_connected();
  on_progress_(progress);
}

Result<void> WorkerImpl::Run() {
  std::thread loader([this] { loader_.Run(); });
  std::thread poll([this] { PollLoop(); });
  std::atomic<bool> ended{false};
  // Calls in progress end when the worker is stopped. Again and again: a call that begins just then misses one Stop.
  std::thread stopper([this, &ended] {
    while (!wake_.WaitForStop(seconds(60))) {
    }
    while (!ended) {
      loader_.Stop();
      poll_.Stop();
      control_.Stop();
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  auto retry = kRetryFirst;
  auto next_try = steady_clock::now();
  auto next_report = next_try;
  Result<void> outcome;
  while (!wake_.stopped()) {
    const auto now = steady_clock::now();
    if (rejoin_ && now >= next_try) {
      const bool joined = TryJoin();
      next_try = steady_clock::now() + (joined ? milliseconds(seconds(1)) : retry);
      retry = joined ? kRetryFirst : std::min(retry * 2, kRetryMost);
      next_report = steady_clock::now();
    } else if (!rejoin_ && (report_now_.exchange(false) || now >= next_report)) {
      SendReport(State());
      next_report = steady_clock::now() + kReportEvery;
    }
    peers_.DropUnlisted();
    ShowProgress(State());
    {
      const std::lock_guard lock(mutex_);
      if (fatal_) {
        outcome = std::unexpected(*fatal_);
        break;
      }
    }
    wake_.Wait(kTick);
  }
  wake_.Stop();
  if (outcome) ShowProgress("leaving");
  Leave();
  poll.join();
  loader.join();
  ended = true;
  stopper.join();
  return outcome;
}

void WorkerImpl::Leave() {
  peers_.Leave("the worker was stopped");
  std::string node_id;
  {
    const std::lock_guard lock(mutex_);
    node_id = membership_.node_id;
  }
  if (!node_id.empty()) ControlSession(HttpClient::Create(options_.coordinator)).Leave(node_id);
}

// ---------------------------------------------------------------- the poll thread

void WorkerImpl::PollLoop() {
  std::uint64_t generation = 0, version = 0;
  auto retry = kRetryFirst;
  while (!wake_.stopped()) {
    Membership membership;
    {
      const std::lock_guard lock(mutex_);
      membership = membership_;
    }
    if (rejoin_) {
      wake_.WaitForStop(milliseconds(20));
      continue;
    }
    if (membership.generation != generation) {
      generation = membership.generation;
      version = 0;
    }
    const auto asked_at = steady_clock::now();
    const auto orders = poll_.Orders(membership.node_id, version, membership.poll);
    if (wake_.stopped()) return;
    if (!orders) {
      Follow(orders.error(), "our request for orders");
      wake_.WaitForStop(retry);
      retry = std::min(retry * 2, kRetryMost);
      continue;
    }
    if (away_.exchange(false)) log_.Info("the coordinator answers again");
    retry = kRetryFirst;
    const bool news = orders->version != version;
    version = orders->version;
    ApplyOrders(membership, *orders);  // also when the version is the same: tickets are fresh
    // A coordinator that is about to stop answers at once.
    if (!news && steady_clock::now() - asked_at < milliseconds(500)) wake_.WaitForStop(milliseconds(500));
  }
}

void WorkerImpl::ApplyOrders(const Membership& membership, const NodeOrders& orders) {
  loader_.SetWanted(membership.catalog, orders.hold);
  {
    const std::lock_guard lock(mutex_);
    const std::string refusal = orders.admitted ? "" : "not admitted: " + orders.refusal;
    if (!refusal.empty() && refusal != refusal_) log_.Warning("{}", refusal);
    refusal_ = refusal;
  }
  const WorkerIdentity identity{.node_id = membership.node_id,
                                .model_id = membership.catalog->model_id(),
                                .kernel_class = device_->kernel_class()};
  peers_.Follow(orders, identity);
}

// ---------------------------------------------------------------- any thread

void WorkerImpl::OnHoldingsChanged() {
  peers_.SendHoldings();
  if (loader_.status().settled) {
    std::string model_id;
    {
      const std::lock_guard lock(mutex_);
      if (membership_.catalog) model_id = membership_.catalog->model_id();
    }
    if (auto saved = seat_.Save(model_id, rack_.Ready()); !saved) log_.Warning("{}", saved.error().text);
  }
  report_now_ = true;
  wake_.Ring();
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::Create(const WorkerOptions& wanted, LogSink& log,
                                               std::function<void(const WorkerProgress&)> on_progress) try {
  WorkerOptions options = wanted;
  if (options.name.empty()) options.name = HostName();
  if (options.cache_dir.empty()) options.cache_dir = DefaultCacheDir();
  ASSIGN_OR_RETURN(SlabCache cache, SlabCache::Open(options.cache_dir));
  ASSIGN_OR_RETURN(Seat seat, Seat::Take(options.cache_dir));
  ASSIGN_OR_RETURN(auto device, Device::Open(options.device, log));
  if (options.memory_bytes == 0) options.memory_bytes = DefaultMemory(device->info());
  const std::uint64_t there_is = device->info().is_gpu ? device->info().total_bytes : TotalMemory();
  if (there_is != 0 && options.memory_bytes > there_is) {
    return Fail(FaultCode::kLocal, "{} were offered, {} has {}", FormatByteSize(options.memory_bytes),
                device->info().is_gpu ? device->info().name : "this machine", FormatByteSize(there_is));
  }
  return std::make_unique<WorkerImpl>(std::move(options), std::move(device), std::move(cache), std::move(seat), log,
                                      std::move(on_progress));
} catch (const std::exception& error) {
  return Fail(FaultCode::kLocal, "can not start a worker: {}", error.what());
}

}  // namespace linkcpp
