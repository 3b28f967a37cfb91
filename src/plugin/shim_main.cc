// libggml-linkcpp.so: the symbol a stock ggml looks for in the library that GGML_BACKEND_PATH names, and nothing else.
//
// The plug-in itself is liblinkcpp-plugin.so beside this file, opened so that its symbols resolve among its own
// libraries first. The host exports symbols of libraries it has built in (llama-server 0.7: a cpp-httplib of another
// version), and without this our calls would land in them. docs/plugin.md, "Two libraries".
#include <dlfcn.h>
#include <ggml-backend.h>

#include <cstdio>
#include <string>

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  static ggml_backend_reg_t const registry = []() -> ggml_backend_reg_t {
    Dl_info here{};
    if (::dladdr(reinterpret_cast<void*>(&ggml_backend_init), &here) == 0 || here.dli_fname == nullptr) return nullptr;
    const std::string self = here.dli_fname;
    const auto slash = self.rfind('/');
    const std::string path = (slash == std::string::npos ? "" : self.substr(0, slash + 1)) + "liblinkcpp-plugin.so";
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    auto* const make = library == nullptr
                           ? nullptr
                           : reinterpret_cast<ggml_backend_reg_t (*)()>(::dlsym(library, "linkcpp_plugin_registry"));
    if (make == nullptr) {
      std::fprintf(stderr, "linkcpp: the plug-in cannot be loaded: %s\n", ::dlerror());
      return nullptr;
    }
    return make();
  }();
  return registry;
}
