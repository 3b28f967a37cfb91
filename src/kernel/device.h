// A device that computes experts: one ggml backend with its threads, and the buffer type the host would have chosen.
//
// Opening loads ggml's backends, once per process; inside a host that has loaded them already it uses those and loads
// nothing. The kernel class names everything that can change the last bits of a result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "kernel/openmp_spin.h"

namespace linkcpp {

struct DeviceOptions {
  std::string name;   // "" or "auto": the best there is (a GPU before the CPU); "cpu"; or a ggml device name, any case
  int n_threads = 0;  // CPU devices; 0: one per core
  std::string backend_path;  // load this ggml backend library and use its device (a CPU variant by path); "": all
  // See kernel/openmp_spin.h. Counts where the OpenMP runtime comes with the backend; where it comes with the program,
  // the program restarts itself (RestartWithOpenMpSpin). Negative: leave the runtime's default.
  int spin_count = kDefaultSpinCount;
};

struct DeviceInfo {
  std::string name;  // ggml's device name, e.g. "CPU", "Vulkan0"
  std::string description;
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
  bool is_gpu = false;
  std::string library;   // path of the backend's code; "" when it is not a library of its own
  std::string features;  // what the backend says it uses: "NEON=1 DOTPROD=1"; "" when it does not say
};

class Device {
 public:
  // Call before the process has other threads: loading changes the environment for a moment. `log` must outlive the
  // device; it gets ggml's own messages when it was us who loaded the backends.
  // kRefused: no such device (the text lists those there are). kLocal: its backend does not load or start.
  static Result<std::unique_ptr<Device>> Open(const DeviceOptions& options, LogSink& log);
  static Result<DeviceInfo> Find(const std::string& name);  // which one Open would use, not started; as Open
  static std::vector<DeviceInfo> List();                    // loads the backends too; never our own plug-in's device
  // Whether llama.cpp would let device `name` compute with a matrix of ggml type number `type`, or a tensor of so many
  // experts (0: a matrix). Asked as it asks before it places one; a Vulkan device has a largest tensor, or no kernel
  // for a type. true: no such device.
  static bool TakesWeight(const std::string& name, std::uint32_t type, std::uint32_t n_in, std::uint32_t n_out,
                          std::uint32_t n_experts, std::uint32_t n_used);
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual int n_threads() const = 0;
  // "ggml-0.27.0/CPU/sapphirerapids/1f0c9a77/glibc-2.43+fma": same text, same bits (with the same tensor types). The
  // number stands for the backend's machine code and what it found at run time; the C library is there because
  // activations call its expf and tanhf. On a GPU it ends with the device's and driver's description as far as they
  // tell; there the bits may also depend on the batch. ASCII, made for comparing and showing, not for parsing.
  virtual const std::string& kernel_class() const = 0;
  // True on CPUs: a row's bits do not depend on what else is in the dispatch (but see kManyRows in expert_stack.h).
  // GPUs choose other kernels for other sizes.
  virtual bool batch_invariant() const = 0;
};

}  // namespace linkcpp
