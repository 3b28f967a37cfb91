// Bytes by offset: a file on disk, or memory that stands in for one in tests and fuzzers.
//
// What the GGUF reader, the hasher and the shard cutter read from. Knows nothing of what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace linkcpp {

// Size and modification time are those at opening. ReadAt may be called from any thread.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills all of `bytes`. kLocal: I/O error, or the range goes past the end (the file shrank, or the caller is wrong).
  virtual Result<void> ReadAt(std::uint64_t offset, std::span<std::byte> bytes) const = 0;

  virtual std::uint64_t size_bytes() const = 0;
  virtual std::int64_t modified_ns() const { return 0; }      // since the epoch
  virtual int fd() const { return -1; }                       // for copy_file_range and mmap; -1: there is none
  virtual Result<void> CheckUnchanged() const { return {}; }  // kLocal: size or modification time differ by now
};

// kLocal: not there, not readable, or not a plain file (a directory, a pipe, a device).
Result<std::unique_ptr<ByteSource>> OpenFileSource(const std::string& path);

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string bytes) : bytes_(std::move(bytes)) {}
  Result<void> ReadAt(std::uint64_t offset, std::span<std::byte> bytes) const override;
  std::uint64_t size_bytes() const override { return bytes_.size(); }

 private:
  std::string bytes_;
};

// "No space left on device", for an errno.
std::string ErrnoText(int number);

}  // namespace linkcpp
