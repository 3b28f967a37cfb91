// The symbol a stock ggml looks for in the library that GGML_BACKEND_PATH names.
#include "plugin/plugin.h"

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  return linkcpp::PluginRegistry();
}
