// KernelClass, LibraryOf and FeaturesOf of backends.h.
#include <dlfcn.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#include <ggml.h>

#include <algorithm>
#include <cstdlib>
#include <format>
#include <fstream>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kernel/backends.h"

namespace linkcpp {

std::string LibraryOf(ggml_backend_reg_t registration) {
  Dl_info where{};
  if (dladdr(registration, &where) == 0 || where.dli_fname == nullptr) return "";
  return where.dli_fname;
}

std::string FeaturesOf(ggml_backend_reg_t registration) {
  std::string text;
  const auto features = reinterpret_cast<ggml_backend_get_features_t>(
      ggml_backend_reg_get_proc_address(registration, "ggml_backend_get_features"));
  if (features == nullptr) return text;
  for (const ggml_backend_feature* feature = features(registration); feature->name != nullptr; ++feature) {
    text += std::format("{}{}={}", text.empty() ? "" : " ", feature->name, feature->value);
  }
  return text;
}

namespace {

// "/usr/lib/…/libggml-cpu-sapphirerapids.so" -> "sapphirerapids"; "builtin" when the backend is not a library of its
// own.
std::string Variant(const std::string& library) {
  std::string name = library.substr(library.find_last_of('/') + 1);
  name = name.substr(0, name.rfind(".so"));  // not the first dot: "armv8.2_1"
  constexpr std::string_view kPrefix = "libggml-cpu-";
  if (name.starts_with(kPrefix)) return name.substr(kPrefix.size());
  return name == "libggml-cpu" ? "plain" : "builtin";
}

// Eight digits for the backend's machine code and for what it found at run time (SVE length, repacking). The code
// itself and not a version, because two builds of one version may round differently.
std::string CodeNumber(ggml_backend_reg_t registration, const std::string& library) {
  Hasher hasher;
  if (!library.empty()) {
    std::ifstream file(library, std::ios::binary);
    std::vector<char> block(1 << 16);
    while (file.read(block.data(), static_cast<std::streamsize>(block.size())), file.gcount() > 0) {
      hasher.Update(std::string_view(block.data(), static_cast<std::size_t>(file.gcount())));
    }
  }
  hasher.Update(FeaturesOf(registration));
  return hasher.Finish().Hex().substr(0, 8);
}

std::string MathLibrary() {
#ifdef __GLIBC__
  std::string name = std::format("glibc-{}", gnu_get_libc_version());
#else
  std::string name = "libc";
#endif
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("fma"))
    name += "+fma";  // the C library picks its expf by this, whatever ggml was built for
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
  const std::string library = LibraryOf(registration);
  const std::string code = CodeNumber(registration, library);
  std::string text = std::format("ggml-{}/{}/", ggml_version(), ggml_backend_reg_name(registration));
  if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
    text += std::format("{}/{}/{}{}", Variant(library), code, MathLibrary(), Switches());
  } else {
    text += std::format("{}/{}", code, ggml_backend_dev_description(device));
    if (const std::string driver = Driver(); !driver.empty()) text += "/" + driver;
  }
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

}  // namespace linkcpp
