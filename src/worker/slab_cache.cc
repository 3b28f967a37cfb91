#include "worker/slab_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "worker/file.h"

namespace linkcpp {
namespace {

namespace fs = std::filesystem;

void RemoveOldFiles(const std::string& dir, std::chrono::hours age) {
  std::error_code ignored;
  const auto oldest = fs::file_time_type::clock::now() - age;
  for (fs::directory_iterator it(dir, ignored), end; !ignored && it != end; it.increment(ignored)) {
    std::error_code error;
    const auto written = fs::last_write_time(it->path(), error);
    if (!error && written < oldest) fs::remove(it->path(), error);
  }
}

}  // namespace

Result<SlabCache> SlabCache::Open(const std::string& dir) {
  SlabCache cache(dir);
  for (const std::string& folder : {dir + "/slabs", dir + "/tmp", cache.downloads_dir()}) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return Fail(FaultCode::kLocal, "cannot make the cache folder {}: {}", folder, error.message());
    if (::access(folder.c_str(), W_OK | X_OK) != 0) {
      return Fail(FaultCode::kLocal, "cannot write in the cache folder {}: {}", folder, std::strerror(errno));
    }
  }
  RemoveOldFiles(dir + "/tmp", std::chrono::hours(24));
  RemoveOldFiles(cache.downloads_dir(), std::chrono::hours(24 * 7));  // a broken download may be resumed for a week
  return cache;
}

std::string SlabCache::PathOf(const Hash& hash) const {
  const std::string hex = hash.Hex();
  return dir_ + "/slabs/" + hex.substr(0, 2) + "/" + hex;
}

bool SlabCache::Has(const Hash& hash, std::uint64_t size_bytes) const {
  struct stat info{};
  return ::stat(PathOf(hash).c_str(), &info) == 0 && static_cast<std::uint64_t>(info.st_size) == size_bytes;
}

Result<void> SlabCache::Put(const Hash& hash, std::span<const std::byte> bytes) const {
  if (const Hash actual = HashOf(bytes); actual != hash) {
    return Fail(FaultCode::kRefused, "bytes with hash {} offered as slab {}", actual.Hex(), hash.Hex());
  }
  if (Has(hash, bytes.size())) return {};
  static std::atomic<std::uint64_t> counter{0};
  const std::string path = PathOf(hash);
  const std::string part = std::format("{}/tmp/{}.{}.{}.part", dir_, hash.Hex(), ::getpid(), counter++);
  auto written = [&]() -> Result<void> {
    ASSIGN_OR_RETURN(File file, File::Open(part, O_WRONLY | O_CREAT | O_EXCL));
    RETURN_IF_FAULT(file.WriteAt(0, bytes));
    return file.Close();
  }();
  if (written) {
    const std::string folder = path.substr(0, path.rfind('/'));
    if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
      written = Fail(FaultCode::kLocal, "cannot make {}: {}", folder, DiskReason(errno));
    } else if (::rename(part.c_str(), path.c_str()) != 0) {
      written = Fail(FaultCode::kLocal, "cannot move a slab to {}: {}", path, DiskReason(errno));
    }
  }
  if (!written) ::unlink(part.c_str());
  return written;
}

Result<void> SlabCache::Get(const Hash& hash, std::span<std::byte> out) const {
  const std::string path = PathOf(hash);
  if (!Has(hash, out.size())) {
    struct stat info{};
    if (::stat(path.c_str(), &info) != 0) return Fail(FaultCode::kRefused, "slab {} is not in the cache", hash.Hex());
    ::unlink(path.c_str());
    return Fail(FaultCode::kRefused, "cached slab {} has {} bytes instead of {} and was deleted", path, info.st_size,
                out.size());
  }
  ASSIGN_OR_RETURN(File file, File::Open(path, O_RDONLY));
  RETURN_IF_FAULT(file.ReadAt(0, out));
  if (HashOf(out) != hash) {
    ::unlink(path.c_str());
    return Fail(FaultCode::kRefused, "cached slab {} does not have its hash any more and was deleted", path);
  }
  return {};
}

std::uint64_t FreeDiskBytes(const std::string& dir) {
  struct statvfs info{};
  return ::statvfs(dir.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize : 0;
}

bool IsDiskFull(int error_number) {
  return error_number == ENOSPC || error_number == EDQUOT;
}

std::string DiskReason(int error_number) {
  if (IsDiskFull(error_number)) return "the disk is full: free some space, or choose another folder with --cache";
  return std::strerror(error_number);
}

}  // namespace linkcpp
