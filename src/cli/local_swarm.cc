#include "cli/local_swarm.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <format>
#include <thread>

#include "cli/progress.h"
#include "coordinator/host_process.h"
#include "coordinator/registry.h"
#include "coordinator/server.h"
#include "coordinator/token_store.h"
#include "worker/byte_size.h"

namespace linkcpp {
namespace {

constexpr std::chrono::seconds kStopPatience{5};
constexpr std::uint64_t kSpareDisk = 64u << 20;

class Local final : public LocalSwarm {
 public:
  Local(const ServedModel& served, LogSink& log) : served_(served), log_(log) {}

  ~Local() override {
    for (const auto& worker : workers_) worker->Terminate();
    const auto deadline = std::chrono::steady_clock::now() + kStopPatience;
    const auto running = [this] {
      return std::ranges::any_of(workers_, [](const auto& worker) { return !worker->Ended(); });
    };
    while (running() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    workers_.clear();  // kills who is left
  }

  Result<void> Begin(const LocalSwarmOptions& options) {
    const std::uint64_t bytes = served_.summary().expert_bytes;
    const auto n = static_cast<std::uint64_t>(options.n_workers);
    if (n > served_.manifest().n_slices()) {
      return Fail(FaultCode::kRefused, "{} workers are more than {} has slices ({})", n, served_.name(),
                  served_.manifest().n_slices());
    }
    std::uint64_t slice = 0;
    for (const MoeLayer& layer : served_.model().moe_layers()) slice = std::max(slice, layer.slice_bytes);
    // A slice counts 33/32 of its bytes (docs/coordinator.md); shares do not come out in whole slices, and a device's
    // own layout pads.
    const std::uint64_t memory = bytes / n + bytes / n / 8 + 4 * slice + (1u << 20);
    if (const std::uint64_t there_is = AvailableMemory(); there_is != 0 && memory * n > there_is) {
      return Fail(FaultCode::kLocal,
                  "{} workers need {} of memory for the experts of {} and this machine has {} free: use --swarm with "
                  "workers elsewhere",
                  n, SizeText(memory * n), served_.name(), SizeText(there_is));
    }
    std::error_code error;
    if (const auto disk = std::filesystem::space(options.folder, error);
        !error && disk.available < bytes + kSpareDisk) {
      return Fail(FaultCode::kLocal,
                  "the workers keep {} of slices in {} and {} are free there: set TMPDIR to a folder with room",
                  SizeText(bytes), options.folder, SizeText(disk.available));
    }
    ASSIGN_OR_RETURN(tokens_, TokenStore::Open(options.folder + "/tokens.db"));
    ASSIGN_OR_RETURN(const auto token, tokens_->New("verify"));
    registry_ = std::make_unique<Registry>(served_, MakeTicketKeys(), RegistryOptions{}, clock_, log_);
    ASSIGN_OR_RETURN(
        server_, CoordinatorServer::Start({.listen = "127.0.0.1:0", .certificate = {}, .version = "verify"}, served_,
                                          *registry_, *tokens_, log_));
    endpoint_ = {.url = std::format("http://127.0.0.1:{}", server_->port()), .token = token.token, .fingerprint = {}};
    for (int i = 1; i <= options.n_workers; ++i) {
      HostCommand command;
      command.arguments = {options.worker_binary,
                           endpoint_.url,
                           "--name",
                           std::format("worker{}", i),
                           "--memory",
                           std::to_string(memory),
                           "--device",
                           options.device,
                           "--threads",
                           std::to_string(options.n_threads),
                           "--cache",
                           options.folder + "/slices"};
      command.environment = {{"LINKCPP_TOKEN", token.token}};
      ASSIGN_OR_RETURN(auto worker, HostProcess::Start(command, std::format("{}/worker{}.log", options.folder, i)));
      workers_.push_back(std::move(worker));
    }
    return {};
  }

  HttpEndpoint endpoint() const override { return endpoint_; }

  Result<void> Check() override {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const auto how = workers_[i]->Ended();
      if (!how) continue;
      std::string text = std::format("worker{} ended {}; its last words:", i + 1, *how);
      for (const std::string& line : workers_[i]->LastLines()) text += "\n  " + line;
      return Fail(FaultCode::kLocal, "{}", text);
    }
    return {};
  }

 private:
  const ServedModel& served_;
  LogSink& log_;
  const SteadyClock clock_;
  std::unique_ptr<TokenStore> tokens_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<CoordinatorServer> server_;
  HttpEndpoint endpoint_;
  std::vector<std::unique_ptr<HostProcess>> workers_;
};

}  // namespace

Result<std::unique_ptr<LocalSwarm>> LocalSwarm::Start(const LocalSwarmOptions& options, const ServedModel& served,
                                                      LogSink& log) {
  auto swarm = std::make_unique<Local>(served, log);
  RETURN_IF_FAULT(swarm->Begin(options));
  return swarm;
}

}  // namespace linkcpp
