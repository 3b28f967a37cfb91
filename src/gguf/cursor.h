// A forward reader over a ByteSource with a window of 1 MB: what a header parser needs to be fast on a table of 250,000
// strings without holding the file. Every byte it passes goes to a hasher.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "base/hash.h"
#include "base/result.h"
#include "gguf/source.h"

namespace linkcpp {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie in the file");

// Every read either yields all it was asked for or a kMalformed fault that says "at byte N: it ends …".
class Cursor {
 public:
  static constexpr std::size_t kWindowBytes = 1 << 20;

  Cursor(const ByteSource& source, Hasher& hasher)
      : source_(source), hasher_(hasher), window_(std::make_unique_for_overwrite<std::byte[]>(kWindowBytes)) {}

  std::uint64_t position() const { return base_ + at_; }
  std::uint64_t remaining() const { return source_.size_bytes() - position(); }

  template <class Number>
  Result<Number> Get() {
    if (end_ - at_ < sizeof(Number)) RETURN_IF_FAULT(Refill(sizeof(Number)));
    Number number;
    std::memcpy(&number, &window_[at_], sizeof number);
    at_ += sizeof number;
    return number;
  }

  Result<void> Skip(std::uint64_t n_bytes);

  // A u64 length and its bytes. kMalformed also when longer than `limit`.
  Result<std::string> String(std::uint64_t limit);
  Result<void> SkipStrings(std::uint64_t count);

  // Gives what was passed since the last refill to the hasher. Call once, at the end.
  void Finish();

 private:
  Result<void> Refill(std::size_t need);  // need <= kWindowBytes
  std::unexpected<Fault> Ends(std::uint64_t need) const;

  const ByteSource& source_;
  Hasher& hasher_;
  std::unique_ptr<std::byte[]> window_;
  std::uint64_t base_ = 0;  // file offset of window_[0]
  std::size_t at_ = 0;
  std::size_t end_ = 0;
};

}  // namespace linkcpp
