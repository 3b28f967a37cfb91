// liblinkcpp-preload.so: keeps a stock llama.cpp from reading the whole model when it maps it.
//
// The host maps the file with MAP_POPULATE and asks the kernel to fetch all of it, so every expert byte would be read
// whoever holds it. Preloaded by `linkcpp serve`, this library drops the populate flag and the read-ahead advice for
// GGUF files and changes nothing else; the plug-in then asks for the backbone's bytes itself. Needs no configuration.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

template <class Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool IsGguf(int fd) {
  char magic[4] = {};
  const int saved = errno;
  const bool is = fd >= 0 && ::pread(fd, magic, sizeof magic, 0) == sizeof magic && std::memcmp(magic, "GGUF", 4) == 0;
  errno = saved;
  return is;
}

// The mappings whose advice is dropped. A model has few splits; more than this many are simply advised as usual.
struct Range {
  std::uintptr_t begin, end;
};
constexpr std::size_t kMaxRanges = 256;
Range g_ranges[kMaxRanges];
std::size_t g_n_ranges = 0;

bool InModel(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (std::size_t i = 0; i < __atomic_load_n(&g_n_ranges, __ATOMIC_ACQUIRE); ++i) {
    if (at >= g_ranges[i].begin && at < g_ranges[i].end) return true;
  }
  return false;
}

using MmapFunction = void*(void*, size_t, int, int, int, off_t);

void* Map(MmapFunction* next, void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  const bool model = (flags & MAP_POPULATE) != 0 && (flags & MAP_ANONYMOUS) == 0 && IsGguf(fd);
  void* const mapped = next(address, length, protection, model ? flags & ~MAP_POPULATE : flags, fd, offset);
  const std::size_t n = __atomic_load_n(&g_n_ranges, __ATOMIC_ACQUIRE);
  if (model && mapped != MAP_FAILED && n < kMaxRanges) {
    g_ranges[n] = {reinterpret_cast<std::uintptr_t>(mapped), reinterpret_cast<std::uintptr_t>(mapped) + length};
    __atomic_store_n(&g_n_ranges, n + 1, __ATOMIC_RELEASE);  // models are mapped by one thread
  }
  return mapped;
}

}  // namespace

#define LINKCPP_EXPORT extern "C" __attribute__((visibility("default")))

LINKCPP_EXPORT void* mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  static MmapFunction* const next = Next<MmapFunction>("mmap");
  return Map(next, address, length, protection, flags, fd, offset);
}

LINKCPP_EXPORT void* mmap64(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  static MmapFunction* const next = Next<MmapFunction>("mmap64");
  return Map(next, address, length, protection, flags, fd, offset);
}

LINKCPP_EXPORT int posix_madvise(void* address, size_t length, int advice) {
  static auto* const next = Next<int(void*, size_t, int)>("posix_madvise");
  if (advice == POSIX_MADV_WILLNEED && InModel(address)) return 0;
  return next(address, length, advice);
}

LINKCPP_EXPORT int posix_fadvise(int fd, off_t offset, off_t length, int advice) {
  static auto* const next = Next<int(int, off_t, off_t, int)>("posix_fadvise");
  // Whole-file advice only: the plug-in's own advice names ranges.
  if (length == 0 && (advice == POSIX_FADV_SEQUENTIAL || advice == POSIX_FADV_WILLNEED) && IsGguf(fd)) return 0;
  return next(fd, offset, length, advice);
}

LINKCPP_EXPORT int posix_fadvise64(int fd, off_t offset, off_t length, int advice) {
  static auto* const next = Next<int(int, off_t, off_t, int)>("posix_fadvise64");
  if (length == 0 && (advice == POSIX_FADV_SEQUENTIAL || advice == POSIX_FADV_WILLNEED) && IsGguf(fd)) return 0;
  return next(fd, offset, length, advice);
}
