// The ggml backend: one ACCEL device, "LinkCPP", that takes expert tensors and computes the splits the host hands it.
#pragma once

#include <ggml-backend.h>

namespace linkcpp {

// The registry entry, made once per process; nullptr when the plug-in must not be used here (the reason was logged).
ggml_backend_reg_t PluginRegistry();

inline constexpr const char* kDeviceName = "LinkCPP";  // also the buffer type's name: -ot "exps=LinkCPP"

}  // namespace linkcpp
