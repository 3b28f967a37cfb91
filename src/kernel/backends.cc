#include "kernel/backends.h"

#include <dlfcn.h>
#include <ggml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>

namespace linkcpp {
namespace {

std::mutex loading_mutex;  // guards the registry while we load, and the map
std::map<std::string, ggml_backend_reg_t, std::less<>> loaded_paths;

std::mutex log_mutex;  // guards the three below
bool we_loaded = false;
std::string last_error;           // ggml's, since it was last cleared
std::vector<LogSink*> log_sinks;  // one for each open device; the latest gets ggml's messages

void OnGgmlLog(ggml_log_level level, const char* text, void*) {
  std::string_view line(text);
  while (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  if (line.empty()) return;
  const std::lock_guard lock(log_mutex);
  if (level == GGML_LOG_LEVEL_ERROR) last_error = line;
  if (log_sinks.empty()) return;
  switch (level) {
    case GGML_LOG_LEVEL_ERROR: log_sinks.back()->Write(LogLevel::kError, line); break;
    case GGML_LOG_LEVEL_WARN: log_sinks.back()->Write(LogLevel::kWarning, line); break;
    default: log_sinks.back()->Write(LogLevel::kDebug, line); break;
  }
}

bool HasCpu() {
  return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) != nullptr;
}

bool IsOurPlugin(ggml_backend_dev_t device) {
  const auto named = [](const char* name) {
    std::string lower(name == nullptr ? "" : name);
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return lower.starts_with("linkcpp");
  };
  return named(ggml_backend_dev_name(device)) || named(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
}

// An environment variable as it will be found again.
class HiddenVariable {
 public:
  explicit HiddenVariable(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) value_ = value;
    unsetenv(name);
  }
  ~HiddenVariable() {
    if (value_) setenv(name_, value_->c_str(), 1);
  }
  HiddenVariable(const HiddenVariable&) = delete;
  HiddenVariable& operator=(const HiddenVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> value_;
};

std::uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  std::string unit;
  while (file >> key >> kibibytes) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kibibytes * 1024;
  }
  return 0;
}

}  // namespace

void ForwardGgmlLog(LogSink& log) {
  const std::lock_guard lock(log_mutex);
  if (we_loaded) log_sinks.push_back(&log);
}

void StopGgmlLog(LogSink& log) {
  const std::lock_guard lock(log_mutex);
  const auto mine = std::ranges::find(log_sinks, &log);
  if (mine != log_sinks.end()) log_sinks.erase(mine);
}

namespace {

// While it lives, ggml may load backends: nothing has been loaded before, and its messages go to `log`.
class FirstLoading {
 public:
  FirstLoading(const DeviceOptions& options, LogSink& log) : log_(log) {
    if (LimitOpenMpSpin(options.spin_count) == SpinLimit::kTooLate) {
      log.Debug("OpenMP's threads spin for long; where cores are shared, set GOMP_SPINCOUNT={}", options.spin_count);
    }
    ggml_log_set(OnGgmlLog, nullptr);
    {
      const std::lock_guard lock(log_mutex);
      we_loaded = true;
    }
    ForwardGgmlLog(log_);
  }
  ~FirstLoading() { StopGgmlLog(log_); }
  FirstLoading(const FirstLoading&) = delete;
  FirstLoading& operator=(const FirstLoading&) = delete;

 private:
  LogSink& log_;
  const HiddenVariable plugin_{"GGML_BACKEND_PATH"};
};

}  // namespace

Result<void> EnsureBackends(const DeviceOptions& options, LogSink& log) {
  const std::lock_guard lock(loading_mutex);
  if (HasCpu()) return {};
  {
    const FirstLoading loading(options, log);
    ggml_backend_load_all();
  }
  if (HasCpu()) return {};
  return Fail(FaultCode::kLocal,
              "ggml found no CPU backend: install ggml's backend libraries, or name one with a backend path");
}

Result<ggml_backend_reg_t> LoadBackend(const DeviceOptions& options, LogSink& log) {
  const std::lock_guard lock(loading_mutex);
  if (const auto known = loaded_paths.find(options.backend_path); known != loaded_paths.end()) return known->second;
  std::optional<FirstLoading> loading;
  if (!HasCpu()) loading.emplace(options, log);
  {
    const std::lock_guard log_lock(log_mutex);
    last_error.clear();
  }
  ggml_backend_reg_t registration = ggml_backend_load(options.backend_path.c_str());
  if (registration == nullptr) {
    const std::lock_guard log_lock(log_mutex);
    return Fail(FaultCode::kLocal, "{} is not a backend that ggml {} loads on this machine ({})", options.backend_path,
                ggml_version(),
                last_error.empty() ? "wrong file, another ggml version, or instructions this CPU lacks" : last_error);
  }
  loaded_paths.emplace(options.backend_path, registration);
  return registration;
}

std::vector<ggml_backend_dev_t> UsableDevices() {
  std::vector<ggml_backend_dev_t> devices;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    const auto type = ggml_backend_dev_type(device);
    const bool computes = type == GGML_BACKEND_DEVICE_TYPE_CPU || type == GGML_BACKEND_DEVICE_TYPE_GPU ||
                          type == GGML_BACKEND_DEVICE_TYPE_IGPU;
    if (computes && !IsOurPlugin(device)) devices.push_back(device);
  }
  return devices;
}

DeviceInfo Describe(ggml_backend_dev_t device) {
  DeviceInfo info;
  info.name = ggml_backend_dev_name(device);
  info.description = ggml_backend_dev_description(device);
  std::size_t free = 0;
  std::size_t total = 0;
  ggml_backend_dev_memory(device, &free, &total);
  info.is_gpu = ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
  // ggml reports the whole machine as free on a CPU.
  const std::uint64_t available = info.is_gpu ? 0 : AvailableMemory();
  info.free_bytes = available != 0 ? available : free;
  info.total_bytes = total;
  info.library = LibraryOf(ggml_backend_dev_backend_reg(device));
  info.features = FeaturesOf(ggml_backend_dev_backend_reg(device));
  return info;
}

}  // namespace linkcpp
