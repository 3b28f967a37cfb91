// A file descriptor that closes itself, with whole reads and writes whose errors name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace linkcpp {

class File {
 public:
  static Result<File> Open(const std::string& path, int flags);  // as open(2), mode 0666; kLocal
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(path_, other.path_);
    return *this;
  }
  ~File();

  Result<void> ReadAt(std::uint64_t offset,
                      std::span<std::byte> bytes) const;  // kLocal: error, or the file ends before
  Result<void> WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) const;
  Result<void> Truncate(std::uint64_t size_bytes) const;
  Result<std::uint64_t> Size() const;
  bool TryLock() const;                      // advisory, other processes' too; held until the file is closed
  bool IsAt(const std::string& path) const;  // whether `path` is (still) this file
  Result<void> Close();                      // reports what a delayed write says
  int fd() const { return fd_; }

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

}  // namespace linkcpp
