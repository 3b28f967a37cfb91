#include "gguf/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace linkcpp {
namespace {

std::int64_t ModifiedNs(const struct stat& status) {
  return static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
}

class FileSource final : public ByteSource {
 public:
  FileSource(std::string path, int fd, const struct stat& status)
      : path_(std::move(path)),
        fd_(fd),
        size_bytes_(static_cast<std::uint64_t>(status.st_size)),
        modified_ns_(ModifiedNs(status)) {}
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override { ::close(fd_); }

  Result<void> ReadAt(std::uint64_t offset, std::span<std::byte> bytes) const override {
    if (offset > size_bytes_ || bytes.size() > size_bytes_ - offset) {
      return Fail(FaultCode::kLocal, "{}: {} bytes at {} go past its end at {}", path_, bytes.size(), offset,
                  size_bytes_);
    }
    while (!bytes.empty()) {
      const ssize_t got = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        return Fail(FaultCode::kLocal, "{}: reading {} bytes at {}: {}", path_, bytes.size(), offset, ErrnoText(errno));
      }
      if (got == 0) {
        return Fail(FaultCode::kLocal, "{}: ends at {} now, it had {} bytes when it was opened", path_, offset,
                    size_bytes_);
      }
      bytes = bytes.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

  std::uint64_t size_bytes() const override { return size_bytes_; }
  std::int64_t modified_ns() const override { return modified_ns_; }
  int fd() const override { return fd_; }

  Result<void> CheckUnchanged() const override {
    struct stat status{};
    if (::fstat(fd_, &status) != 0) return Fail(FaultCode::kLocal, "{}: {}", path_, ErrnoText(errno));
    if (static_cast<std::uint64_t>(status.st_size) != size_bytes_ || ModifiedNs(status) != modified_ns_) {
      return Fail(FaultCode::kLocal, "{} was changed while it was being read: try again", path_);
    }
    return {};
  }

 private:
  const std::string path_;
  const int fd_;
  const std::uint64_t size_bytes_;
  const std::int64_t modified_ns_;
};

}  // namespace

std::string ErrnoText(int number) {
  return std::generic_category().message(number);
}

Result<std::unique_ptr<ByteSource>> OpenFileSource(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Fail(FaultCode::kLocal, "{}: {}", path, ErrnoText(errno));
  struct stat status{};
  if (::fstat(fd, &status) != 0) {
    const int number = errno;
    ::close(fd);
    return Fail(FaultCode::kLocal, "{}: {}", path, ErrnoText(number));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(fd);
    return Fail(FaultCode::kLocal, "{} is {}, not a file", path, S_ISDIR(status.st_mode) ? "a directory" : "special");
  }
  return std::make_unique<FileSource>(path, fd, status);
}

Result<void> MemorySource::ReadAt(std::uint64_t offset, std::span<std::byte> bytes) const {
  if (offset > bytes_.size() || bytes.size() > bytes_.size() - offset) {
    return Fail(FaultCode::kLocal, "{} bytes at {} go past the end at {}", bytes.size(), offset, bytes_.size());
  }
  if (!bytes.empty()) std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
  return {};
}

}  // namespace linkcpp
