// A device that computes experts: one ggml backend with its threads, and the buffer type the host would have chosen.
//
// Opening loads ggml's backends (once per process). The kernel class names everything that can change the last bits of
// a result: backend, CPU variant, ggml version, and per tensor type the buffer type.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"

namespace linkcpp {

struct DeviceOptions {
  std::string name;    // "" or "auto": the best there is (a GPU before the CPU); "cpu"; or a ggml device name, any case
  int n_threads = 0;   // CPU devices; 0: one per core
  std::string backend_path;  // load this ggml backend library instead of all (a CPU variant by path); "": all
};

struct DeviceInfo {
  std::string name;         // ggml's device name, e.g. "CPU", "Vulkan0"
  std::string description;
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
  bool is_gpu = false;
};

class Device {
 public:
  // kLocal: no such device; the text lists those there are.
  static Result<std::unique_ptr<Device>> Open(const DeviceOptions& options, LogSink& log);
  static std::vector<DeviceInfo> List();
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual int n_threads() const = 0;
  // "ggml-0.27.0/CPU/sapphirerapids": same text, same bits (with the same tensor types).
  virtual const std::string& kernel_class() const = 0;
};

}  // namespace linkcpp
