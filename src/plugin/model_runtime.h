// One model that the host has loaded: its file, its swarm, its attachment to the coordinator, and the experts computed
// here. Lives as long as the host keeps a weight buffer of it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "admission/auditor.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "gguf/model.h"
#include "plugin/config.h"
#include "plugin/local_experts.h"
#include "swarm/backbone_session.h"
#include "swarm/swarm.h"

namespace linkcpp {

class ModelRuntime {
 public:
  // Opens the file's header and attaches to the coordinator, if there is one.
  // kRefused: the coordinator has another model, or the token is wrong. kGone: no coordinator there.
  static Result<std::unique_ptr<ModelRuntime>> Open(const std::string& path, const PluginConfig& config, LogSink& log);

  ~ModelRuntime();

  const ModelFile& model() const { return model_; }

  // Blocks; any thread, one at a time inside. The first call waits for coverage (config.wait_seconds).
  Result<void> Compute(LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                       std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out);

  // The host has mapped [base, base + size) of split `file`, starting at file_offset: keep expert bytes out of memory
  // and the rest ready.
  void AdviseMapping(std::uint16_t file, std::uint64_t file_offset, std::uint64_t size, void* base);

 private:
  ModelRuntime(ModelFile model, const PluginConfig& config, LogSink& log);
  void WaitForCoverage();

  ModelFile model_;
  const PluginConfig config_;
  LogSink& log_;
  SteadyClock clock_;
  CpuExperts local_;
  CpuExperts second_kernel_;          // for checks of experts without an oracle; on the auditor's thread
  std::unique_ptr<Auditor> auditor_;  // nullptr: no coordinator. Outlives the swarm, which wakes it
  std::unique_ptr<Swarm> swarm_;
  std::unique_ptr<BackboneSession> session_;  // nullptr: no coordinator

  std::mutex mutex_;  // guards what follows, and makes Compute one at a time
  bool waited_ = false;
  std::set<std::pair<std::uint16_t, std::string>> traced_;
};

// The models of this process, by path. Thread-safe.
class ModelRegistry {
 public:
  ModelRegistry(const PluginConfig& config, LogSink& log) : config_(config), log_(log) {}

  // The runtime of the file whose mapping contains `address` (/proc/self/maps), or of the configured model when
  // address is nullptr. Splits share the runtime of their first file.
  Result<std::shared_ptr<ModelRuntime>> ForMapping(const void* address, std::uint16_t* file,
                                                   std::uint64_t* file_offset);
  Result<std::shared_ptr<ModelRuntime>> ForPath(const std::string& path);

 private:
  const PluginConfig config_;
  LogSink& log_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<ModelRuntime>> models_;
};

// "/m/a-00003-of-00005.gguf" -> "/m/a-00001-of-00005.gguf" and 2; other paths come back as they are, with 0.
std::pair<std::string, std::uint16_t> FirstSplit(const std::string& path);

// The path a stock llama.cpp was told on its command line (-m, --model) or by LLAMA_ARG_MODEL; "": none.
std::string ModelOfCommandLine(const std::vector<std::string>& arguments);

}  // namespace linkcpp
