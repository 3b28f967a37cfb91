// ggml's backend libraries in this process: load them once, in a way that suits a program of ours, and not at all
// inside a host that has loaded them already.
#pragma once

#include <ggml-backend.h>

#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "kernel/device.h"

namespace linkcpp {

// Loads all backends unless a CPU device is registered. GGML_BACKEND_PATH is hidden while loading: it names our own
// plug-in, which must not run inside a worker. kLocal: there is no CPU device afterwards.
Result<void> EnsureBackends(const DeviceOptions& options, LogSink& log);

// Loads one backend library (a path ggml's own search would pass over) and returns its registration; the same path
// again returns the same one. kLocal: not a backend, or not for this machine.
Result<ggml_backend_reg_t> LoadBackend(const DeviceOptions& options, LogSink& log);

// Devices that can hold and run experts: CPUs and GPUs, without our own plug-in's.
std::vector<ggml_backend_dev_t> UsableDevices();

DeviceInfo Describe(ggml_backend_dev_t device);

// The library that a backend's code lies in, "" when that can not be told; and what it says it uses, "NEON=1 SVE=1".
std::string LibraryOf(ggml_backend_reg_t registration);
std::string FeaturesOf(ggml_backend_reg_t registration);

// What can change the last bits of a result on this device, as text.
std::string KernelClass(ggml_backend_dev_t device);

// ggml's own messages go to `log` until Stop with the same sink. Does nothing unless we loaded the backends.
void ForwardGgmlLog(LogSink& log);
void StopGgmlLog(LogSink& log);

}  // namespace linkcpp
