// KernelClass of backends.h.
#include <dlfcn.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#include <ggml.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <format>
#include <fstream>

#include "kernel/backends.h"

namespace linkcpp {
namespace {

// "/usr/lib/…/libggml-cpu-sapphirerapids.so" -> "sapphirerapids"; "builtin" when the backend is not a library of its own.
std::string VariantOf(const void* symbol) {
  Dl_info where{};
  if (symbol == nullptr || dladdr(symbol, &where) == 0 || where.dli_fname == nullptr) return "unknown";
  std::string name = where.dli_fname;
  name = name.substr(name.find_last_of('/') + 1);
  name = name.substr(0, name.find('.'));
  constexpr std::string_view kPrefix = "libggml-cpu-";
  if (name.starts_with(kPrefix)) return name.substr(kPrefix.size());
  return name == "libggml-cpu" ? "plain" : "builtin";
}

// ggml's list says which instructions the library was built for and what it found at run time (SVE length, repacking).
std::uint32_t FeatureNumber(ggml_backend_reg_t registration) {
  std::uint32_t number = 0x811c9dc5u;
  const auto add = [&number](const char* text) {
    for (; *text != 0; ++text) number = (number ^ static_cast<unsigned char>(*text)) * 0x01000193u;
    number = (number ^ 0xffu) * 0x01000193u;
  };
  const auto features = reinterpret_cast<ggml_backend_get_features_t>(
      ggml_backend_reg_get_proc_address(registration, "ggml_backend_get_features"));
  if (features == nullptr) return 0;
  for (ggml_backend_feature* feature = features(registration); feature->name != nullptr; ++feature) {
    add(feature->name);
    add(feature->value);
  }
  return number;
}

std::string MathLibrary() {
#ifdef __GLIBC__
  std::string name = std::format("glibc-{}", gnu_get_libc_version());
#else
  std::string name = "libc";
#endif
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("fma")) name += "+fma";  // the C library picks its expf by this, whatever ggml was built for
#endif
  return name;
}

// Switches that make ggml's CPU backend multiply in another order.
std::string Switches() {
  std::string text;
  for (const char* name : {"GGML_CPU_TILED_MM", "GGML_CPU_TILED_MM_FORCE"}) {
    if (const char* value = std::getenv(name)) text += std::format("/{}={}", name, value);
  }
  return text;
}

// Driver versions as the kernel tells them; ggml does not.
std::string Driver() {
  for (const char* path : {"/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/sys/module/amdgpu/version"}) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line) || line.empty()) continue;
    return line;
  }
  return "";
}

}  // namespace

std::string KernelClass(ggml_backend_dev_t device) {
  ggml_backend_reg_t registration = ggml_backend_dev_backend_reg(device);
  const char* backend = ggml_backend_reg_name(registration);
  std::string text = std::format("ggml-{}/{}/", ggml_version(), backend);
  if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
    const void* symbol = ggml_backend_reg_get_proc_address(registration, "ggml_backend_set_n_threads");
    text += std::format("{}/{:08x}/{}{}", VariantOf(symbol), FeatureNumber(registration), MathLibrary(), Switches());
  } else {
    text += ggml_backend_dev_description(device);
    if (const std::string driver = Driver(); !driver.empty()) text += "/" + driver;
  }
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

}  // namespace linkcpp
