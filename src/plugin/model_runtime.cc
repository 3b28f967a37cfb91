#include "plugin/model_runtime.h"

#include <fcntl.h>
#include <ggml.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <format>
#include <fstream>
#include <thread>

#include "base/hash.h"
#include "gguf/slab_hash.h"
#include "gguf/tensor_type.h"

namespace linkcpp {
namespace {

constexpr std::uint64_t kSecondKernelBytes = std::uint64_t{64} << 20;

std::vector<std::string> CommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  std::string argument;
  while (std::getline(file, argument, '\0')) arguments.push_back(argument);
  return arguments;
}

std::string ProgramName() {
  const auto arguments = CommandLine();
  if (arguments.empty()) return "llama.cpp";
  const auto slash = arguments[0].rfind('/');
  return slash == std::string::npos ? arguments[0] : arguments[0].substr(slash + 1);
}

}  // namespace

std::pair<std::string, std::uint16_t> FirstSplit(const std::string& path) {
  // <prefix>-00001-of-00005.gguf
  constexpr std::size_t kTail = 20;
  if (path.size() <= kTail) return {path, 0};
  const std::string tail = path.substr(path.size() - kTail);
  unsigned number = 0;
  unsigned count = 0;
  if (std::sscanf(tail.c_str(), "-%5u-of-%5u.gguf", &number, &count) != 2 || number == 0 || number > count)
    return {path, 0};
  if (std::format("-{:05}-of-{:05}.gguf", number, count) != tail) return {path, 0};
  return {path.substr(0, path.size() - kTail) + std::format("-{:05}-of-{:05}.gguf", 1, count),
          static_cast<std::uint16_t>(number - 1)};
}

std::string ModelOfCommandLine(const std::vector<std::string>& arguments) {
  for (std::size_t i = 1; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == "-m" || arguments[i] == "--model") return arguments[i + 1];
  }
  const char* from_environment = std::getenv("LLAMA_ARG_MODEL");
  return from_environment != nullptr ? from_environment : "";
}

ModelRuntime::ModelRuntime(ModelFile model, const PluginConfig& config, LogSink& log)
    : model_(std::move(model)),
      config_(config),
      log_(log),
      local_(model_, config.local_memory_bytes, config.n_threads, log),
      second_kernel_(model_, kSecondKernelBytes, 1, log) {}

ModelRuntime::~ModelRuntime() {
  if (auditor_ != nullptr) auditor_->Stop();  // before the swarm goes
}

Result<std::unique_ptr<ModelRuntime>> ModelRuntime::Open(const std::string& path, const PluginConfig& config,
                                                         LogSink& log) {
  ASSIGN_OR_RETURN(ModelFile model, ModelFile::Open(path));
  std::unique_ptr<ModelRuntime> runtime(new ModelRuntime(std::move(model), config, log));
  SwarmOptions swarm{.allow_local = config.allow_local, .deadline = config.deadline, .hedge_after = config.hedge_after};
  const bool audited = !config.coordinator.empty() && (config.canaries || config.spot_share > 0);
  if (audited) {
    runtime->auditor_ = std::make_unique<Auditor>(runtime->model_, &runtime->second_kernel_,
                                                  AuditorOptions{.canaries = config.canaries,
                                                                 .cpu_share = config.check_cpu_share,
                                                                 .ggml = std::format("ggml-{}", ggml_version())},
                                                  runtime->clock_, log);
    swarm.gated = config.canaries;
    swarm.spot_share = config.spot_share;
    swarm.on_news = [auditor = runtime->auditor_.get()] { auditor->Wake(); };
  }
  runtime->swarm_ = Swarm::Create(swarm, &runtime->local_, runtime->clock_, log);
  if (audited) runtime->auditor_->Start(*runtime->swarm_);
  if (config.coordinator.empty()) {
    log.Info("LINKCPP_COORDINATOR is not set: all experts of {} are computed here", path);
    return runtime;
  }
  BackboneOptions options;
  ASSIGN_OR_RETURN(options.coordinator, ParseEndpoint(config.coordinator, config.token));
  options.data_listen = config.data_listen;
  options.data_advertise = config.data_advertise;
  options.program = ProgramName();
  options.kernel_class = "host";
  options.header_hash = runtime->model_.header_hash().Hex();
  auto session = BackboneSession::Attach(
      options,
      [&model = runtime->model_](const SlabProbe& wanted) {
        return HashSlab(model, {LayerId(wanted.layer), ExpertId(wanted.expert)}, wanted.tensor).transform(&Hash::Hex);
      },
      *runtime->swarm_, log);
  if (!session) return Wrap(session.error(), std::format("attaching {} to {}", path, options.coordinator.url));
  runtime->session_ = std::move(*session);
  log.Info("{} attached to {} as backbone {}", path, options.coordinator.url, runtime->session_->backbone_id());
  return runtime;
}

void ModelRuntime::WaitForCoverage() {
  waited_ = true;
  if (session_ == nullptr) return;
  std::uint64_t n_slices = 0;
  for (const MoeLayer& layer : model_.moe_layers()) n_slices += layer.n_experts;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  double told = 0;
  while (swarm_->CoveredSlices() < n_slices && seconds() < config_.wait_seconds) {
    if (seconds() >= told + 1) {
      told = seconds();
      log_.Info("waiting for workers: {} of {} slices are covered ({:.0f} of {:.0f} s)", swarm_->CoveredSlices(),
                n_slices, told, config_.wait_seconds);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::uint64_t covered = swarm_->CoveredSlices();
  if (covered < n_slices) {
    log_.Warning(
        "{} of {} slices have no worker: {}", n_slices - covered, n_slices,
        config_.allow_local ? "they are computed here" : "a request that needs one fails (LINKCPP_LOCAL=deny)");
  } else {
    log_.Info("all {} slices are covered by workers", n_slices);
  }
}

Result<void> ModelRuntime::Compute(LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                                   std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out) {
  const std::lock_guard lock(mutex_);
  if (!waited_) WaitForCoverage();
  if (config_.trace && traced_.emplace(layer.value, recipe.Describe()).second) {
    log_.Info("trace: layer {} {}: {}", layer.value, recipe.steps.size() > 1 ? "fused" : "single", recipe.Describe());
  }
  return swarm_->Compute(layer, recipe, x, n_in, pairs, y, n_out);
}

void ModelRuntime::AdviseMapping(std::uint16_t file, std::uint64_t file_offset, std::uint64_t size, void* base) {
  // A fault in the backbone reads around it, as far as the disk reads ahead (128 KiB to 8 MiB seen): not next to
  // experts.
  constexpr std::uint64_t kReadAround = std::uint64_t{8} << 20;
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const int fd = ::open(model_.paths()[file].c_str(), O_RDONLY | O_CLOEXEC);
  std::uint64_t expert_bytes = 0;
  for (const TensorInfo& tensor : model_.tensors()) {
    if (tensor.file != file) continue;
    const std::uint64_t begin = (tensor.offset + page - 1) / page * page;  // whole pages inside the tensor
    const std::uint64_t end = (tensor.offset + tensor.size_bytes) / page * page;
    if (!ParseExpertTensorName(tensor.name)) {
      if (fd >= 0)
        ::posix_fadvise(fd, static_cast<off_t>(tensor.offset), static_cast<off_t>(tensor.size_bytes),
                        POSIX_FADV_WILLNEED);
      continue;
    }
    if (begin >= end || begin < file_offset || end > file_offset + size) continue;
    // Unmap what the host may have populated, stop read-around, and let the page cache go.
    char* const at = static_cast<char*>(base) + (begin - file_offset);
    ::madvise(at, end - begin, MADV_DONTNEED);
    const std::uint64_t before = std::min(kReadAround, begin);  // the host maps files from their beginning
    ::madvise(at - before, end - begin + before + kReadAround, MADV_RANDOM);
    if (fd >= 0) ::posix_fadvise(fd, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
    expert_bytes += end - begin;
  }
  if (fd >= 0) ::close(fd);
  log_.Debug("{} bytes of experts in {} are left on disk", expert_bytes, model_.paths()[file]);
}

Result<std::shared_ptr<ModelRuntime>> ModelRegistry::ForPath(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (auto known = models_[path].lock()) return known;
  ASSIGN_OR_RETURN(std::shared_ptr<ModelRuntime> fresh, ModelRuntime::Open(path, config_, log_));
  models_[path] = fresh;
  return fresh;
}

Result<std::shared_ptr<ModelRuntime>> ModelRegistry::ForMapping(const void* address, std::uint16_t* file,
                                                                std::uint64_t* file_offset) {
  *file = 0;
  *file_offset = 0;
  if (address == nullptr) {
    const std::string path = config_.model.empty() ? ModelOfCommandLine(CommandLine()) : config_.model;
    if (path.empty()) {
      return Fail(FaultCode::kLocal,
                  "the model file is not known: set LINKCPP_MODEL to its path, or let the host map it");
    }
    return ForPath(FirstSplit(path).first);
  }
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    std::uint64_t begin = 0, end = 0, offset = 0, inode = 0;
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64 " %n", &begin, &end, &offset,
                    &inode, &path_at) < 4) {
      continue;
    }
    const auto wanted = reinterpret_cast<std::uint64_t>(address);
    if (wanted < begin || wanted >= end || inode == 0) continue;
    const auto [first, split] = FirstSplit(line.substr(static_cast<std::size_t>(path_at)));
    *file = split;
    *file_offset = offset + (wanted - begin);
    return ForPath(first);
  }
  return Fail(FaultCode::kLocal, "the host's model mapping is not in /proc/self/maps");
}

}  // namespace linkcpp
