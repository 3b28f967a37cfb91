#include "worker/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "worker/slab_cache.h"

namespace linkcpp {

Result<File> File::Open(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (fd < 0) return Fail(FaultCode::kLocal, "cannot open {}: {}", path, DiskReason(errno));
  return File(fd, path);
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> File::ReadAt(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(FaultCode::kLocal, "cannot read {}: {}", path_, std::strerror(errno));
    if (n == 0)
      return Fail(FaultCode::kLocal, "{} ends at byte {}, {} more were expected", path_, offset, bytes.size());
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<void> File::WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(FaultCode::kLocal, "cannot write {}: {}", path_, DiskReason(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<void> File::Truncate(std::uint64_t size_bytes) const {
  if (::ftruncate(fd_, static_cast<off_t>(size_bytes)) != 0) {
    return Fail(FaultCode::kLocal, "cannot truncate {}: {}", path_, DiskReason(errno));
  }
  return {};
}

Result<std::uint64_t> File::Size() const {
  struct stat info{};
  if (::fstat(fd_, &info) != 0) return Fail(FaultCode::kLocal, "cannot stat {}: {}", path_, std::strerror(errno));
  return static_cast<std::uint64_t>(info.st_size);
}

bool File::TryLock() const {
  return ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
}

bool File::IsAt(const std::string& path) const {
  struct stat ours{}, there{};
  return ::fstat(fd_, &ours) == 0 && ::stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
         ours.st_dev == there.st_dev;
}

Result<void> File::Close() {
  if (::close(std::exchange(fd_, -1)) != 0)
    return Fail(FaultCode::kLocal, "cannot finish {}: {}", path_, DiskReason(errno));
  return {};
}

}  // namespace linkcpp
