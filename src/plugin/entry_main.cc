// The one symbol of liblinkcpp-plugin.so; shim_main.cc asks for it.
#include "plugin/plugin.h"

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t linkcpp_plugin_registry() {
  return linkcpp::PluginRegistry();
}
