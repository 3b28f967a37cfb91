#include "worker/byte_size.h"

#include <algorithm>
#include <fstream>
#include <limits>

namespace linkcpp {
namespace {

// "MemAvailable:   123 kB" of /proc/meminfo, in bytes; 0: not found.
std::uint64_t MemInfo(std::string_view key) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  std::uint64_t kib = 0;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name.size() == key.size() + 1 && name.starts_with(key)) return kib * 1024;
  }
  return 0;
}

std::uint64_t ReadNumber(const char* path, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : otherwise;
}

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
std::uint64_t GroupLimit() {
  return ReadNumber("/sys/fs/cgroup/memory.max", kNoLimit);
}

}  // namespace

std::string FormatByteSize(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return std::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return std::format("{:.1f} {}", value, kUnits[unit]);
}

std::uint64_t TotalMemory() {
  const std::uint64_t physical = MemInfo("MemTotal");
  return physical == 0 ? 0 : std::min(physical, GroupLimit());
}

std::uint64_t AvailableMemory() {
  std::uint64_t available = MemInfo("MemAvailable");
  if (const std::uint64_t limit = GroupLimit(); limit != kNoLimit) {
    const std::uint64_t used = ReadNumber("/sys/fs/cgroup/memory.current", 0);
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

std::uint64_t DefaultMemoryOf(std::uint64_t available_bytes) {
  constexpr std::uint64_t kKeep = 1ull << 30, kLeast = 64ull << 20;
  const std::uint64_t half = available_bytes / 2;
  const std::uint64_t above_keep = available_bytes > kKeep ? available_bytes - kKeep : 0;
  return std::max(kLeast, std::min(half, above_keep));
}

std::uint64_t DefaultMemory(const DeviceInfo& device) {
  if (device.is_gpu && device.free_bytes > 0) return device.free_bytes / 5 * 4;
  return DefaultMemoryOf(AvailableMemory());
}

}  // namespace linkcpp
