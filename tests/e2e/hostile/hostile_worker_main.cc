// A worker that joins as any other, downloads and holds slices, passes for honest, and then does one kind of evil.
// For tests/e2e/hostile_test.py; never installed.
//
//   hostile_worker URL --evil swap --after 20 --share 0.5 --memory-bytes 67108864 --cache DIR     token: LINKCPP_TOKEN
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <print>
#include <thread>

#include "hostile/evil.h"
#include "kernel/device.h"
#include "net/tcp.h"
#include "worker/backbone_link.h"
#include "worker/catalog.h"
#include "worker/control_session.h"
#include "worker/dispatcher.h"
#include "worker/loader.h"
#include "worker/rack.h"
#include "worker/slab_cache.h"
#include "worker/wake.h"

namespace linkcpp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kReportEvery{1};
constexpr seconds kPoll{2};

struct Arguments {
  std::string url, name = "hostile", evil = "none", kernel_class, layers, experts, cache = "hostile-cache";
  std::uint64_t memory_bytes = 64u << 20;
  EvilOptions plan;
  long late_ms = 3000;
};

Wake* stop_sign = nullptr;

class HostileWorker {
 public:
  HostileWorker(const Arguments& arguments, const HttpEndpoint& coordinator, Device& device, SlabCache cache,
                LogSink& log)
      : arguments_(arguments),
        coordinator_(coordinator),
        log_(log),
        plan_(arguments.plan),
        cache_(std::move(cache)),
        kernel_class_(arguments.kernel_class.empty() ? device.kernel_class() : arguments.kernel_class),
        net_(TcpNet::Create(log)),
        rack_([&device, this](const ExpertShape& shape, std::uint32_t n_slots) {
          return MakeEvilStack(shape, n_slots, device, plan_);
        }),
        dispatcher_(rack_, log),
        loader_({.memory_bytes = arguments.memory_bytes}, rack_, cache_, HttpClient::Create(coordinator), log,
                [this] { HoldingsChanged(); }),
        control_(HttpClient::Create(coordinator)),
        poll_(HttpClient::Create(coordinator)) {
    stop_sign = &wake_;
  }

  ControlResult<void> Run() {
    JoinRequest request;
    request.name = arguments_.name;
    request.software = "linkcpp 0.1.0";
    request.kernel_class = kernel_class_;
    request.device = "CPU";
    request.n_threads = 1;
    request.memory_bytes = arguments_.memory_bytes;
    request.layers = arguments_.layers;
    request.experts = arguments_.experts;
    auto joined = control_.Join(request);
    if (!joined) return std::unexpected(joined.error());
    joined_ = *joined;
    auto detail = control_.Model(joined_.model_name);
    if (!detail) return std::unexpected(detail.error());
    auto catalog = Catalog::Make(*detail);
    if (!catalog) return std::unexpected(ControlFault{ControlState::kFatal, catalog.error().text});
    catalog_ = std::make_shared<const Catalog>(std::move(*catalog));
    std::println(stderr, "joined as {}", joined_.node_id);

    std::thread loader([this] { loader_.Run(); });
    std::thread poll([this] { Poll(); });
    while (!wake_.stopped()) {
      (void)control_.Report(joined_.node_id, {.ready = rack_.Ready(), .state = "ready", .error = {}});
      wake_.Wait(kReportEvery);
    }
    loader_.Stop();
    while (!ended_) {  // a call that begins just now misses one Stop
      poll_.Stop();
      std::this_thread::sleep_for(milliseconds(20));
    }
    poll.join();
    loader.join();
    {
      const std::lock_guard lock(mutex_);
      links_.clear();
    }
    ControlSession(HttpClient::Create(coordinator_)).Leave(joined_.node_id);
    return {};
  }

 private:
  void Poll() {
    std::uint64_t version = 0;
    while (!wake_.stopped()) {
      const auto orders = poll_.Orders(joined_.node_id, version, kPoll);
      if (!orders) {
        if (orders.error().state == ControlState::kUnknownNode) wake_.Stop();
        wake_.WaitForStop(milliseconds(300));
        continue;
      }
      if (!orders->admitted) std::println(stderr, "refused: {}", orders->refusal);
      version = orders->version;
      loader_.SetWanted(catalog_, orders->hold);
      Dial(orders->backbones);
    }
    ended_ = true;
  }

  void Dial(const std::vector<BackboneRef>& backbones) {
    const WorkerIdentity identity{
        .node_id = joined_.node_id, .model_id = joined_.model_id, .kernel_class = kernel_class_};
    const std::lock_guard lock(mutex_);
    for (const BackboneRef& backbone : backbones) {
      auto& link = links_[backbone.backbone_id];
      if (link != nullptr) {
        link->Update(backbone, identity);
        continue;
      }
      const auto dial = [this](const std::string& address, const std::string& fingerprint,
                               milliseconds timeout) -> Result<std::unique_ptr<Link>> {
        ASSIGN_OR_RETURN(auto dialled, net_->Dial(address, fingerprint, timeout));
        return MakeEvilLink(std::move(dialled), plan_, [this](LayerId layer) {
          const auto layers = rack_.Layers();
          for (std::size_t i = 0; i < layers.size(); ++i) {
            if (layers[i] == layer) return layers[(i + 1) % layers.size()];
          }
          return layer;
        });
      };
      link =
          std::make_unique<BackboneLink>(backbone, identity, dial, [this] { return rack_.Ready(); }, dispatcher_, log_);
    }
  }

  void HoldingsChanged() {
    {
      const std::lock_guard lock(mutex_);
      for (auto& [id, link] : links_) link->SendHoldings();
    }
    wake_.Ring();
  }

  const Arguments& arguments_;
  const HttpEndpoint coordinator_;
  LogSink& log_;
  EvilPlan plan_;
  const SlabCache cache_;
  const std::string kernel_class_;
  Wake wake_;
  std::unique_ptr<TcpNet> net_;
  Rack rack_;
  Dispatcher dispatcher_;
  Loader loader_;
  ControlSession control_, poll_;
  JoinReply joined_;
  std::shared_ptr<const Catalog> catalog_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<BackboneLink>> links_;  // by backbone id; guarded by mutex_
};

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("a worker that misbehaves on purpose, for tests", "hostile_worker");
  app.add_option("url", arguments.url)->required();
  app.add_option("--evil", arguments.evil, EvilNames())->capture_default_str();
  app.add_option("--share", arguments.plan.share, "of dispatches, once it begins")->capture_default_str();
  app.add_option("--after", arguments.plan.after, "honest dispatches first")->capture_default_str();
  app.add_option("--late-ms", arguments.late_ms)->capture_default_str();
  app.add_option("--name", arguments.name)->capture_default_str();
  app.add_option("--class", arguments.kernel_class, "kernel class to claim (default: the true one)");
  app.add_option("--layers", arguments.layers);
  app.add_option("--experts", arguments.experts);
  app.add_option("--memory-bytes", arguments.memory_bytes)->capture_default_str();
  app.add_option("--cache", arguments.cache)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto kind = EvilNamed(arguments.evil);
  if (!kind) {
    std::println(stderr, "no evil called {}; there are: {}", arguments.evil, EvilNames());
    return 2;
  }
  arguments.plan.kind = *kind;
  arguments.plan.late = milliseconds(arguments.late_ms);

  const auto log = MakeStderrLog("hostile");
  const auto device = Device::Open({.name = "cpu", .n_threads = 1}, *log);
  auto cache = SlabCache::Open(arguments.cache);
  const char* token = std::getenv("LINKCPP_TOKEN");
  const auto coordinator = ParseEndpoint(arguments.url, token == nullptr ? "" : token);
  if (!device || !cache || !coordinator) {
    std::println(stderr, "{}", !device ? device.error().text : !cache ? cache.error().text : coordinator.error().text);
    return 1;
  }
  HostileWorker worker(arguments, *coordinator, **device, std::move(*cache), *log);
  struct sigaction action{};
  action.sa_handler = [](int) { stop_sign->Stop(); };
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  if (const auto done = worker.Run(); !done) {
    std::println(stderr, "{}", done.error().text);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace linkcpp

int main(int argc, char** argv) {
  return linkcpp::Main(argc, argv);
}
