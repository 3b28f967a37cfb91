#include "gguf/cursor.h"

#include <algorithm>

namespace linkcpp {

std::unexpected<Fault> Cursor::Ends(std::uint64_t need) const {
  return Fail(FaultCode::kMalformed, "at byte {}: {} bytes are needed, but the file ends at {} (truncated?)",
              position(), need, source_.size_bytes());
}

Result<void> Cursor::Refill(std::size_t need) {
  if (need > remaining()) return Ends(need);
  hasher_.Update(std::span(window_.get(), at_));
  std::memmove(window_.get(), window_.get() + at_, end_ - at_);
  base_ += at_;
  end_ -= at_;
  at_ = 0;
  const std::uint64_t rest = source_.size_bytes() - base_ - end_;
  const auto n_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kWindowBytes - end_, rest));
  RETURN_IF_FAULT(source_.ReadAt(base_ + end_, std::span(window_.get() + end_, n_bytes)));
  end_ += n_bytes;
  return {};
}

Result<void> Cursor::Skip(std::uint64_t n_bytes) {
  if (n_bytes > remaining()) return Ends(n_bytes);
  while (n_bytes > end_ - at_) {
    n_bytes -= end_ - at_;
    at_ = end_;
    RETURN_IF_FAULT(Refill(1));
  }
  at_ += static_cast<std::size_t>(n_bytes);
  return {};
}

Result<std::string> Cursor::String(std::uint64_t limit) {
  const std::uint64_t start = position();
  ASSIGN_OR_RETURN(const auto length, Get<std::uint64_t>());
  if (length > remaining()) {
    return Fail(FaultCode::kMalformed, "at byte {}: a string of {} bytes runs past the end of the file at {}", start,
                length, source_.size_bytes());
  }
  if (length > limit) {
    return Fail(FaultCode::kMalformed, "at byte {}: a string of {} bytes where at most {} make sense", start, length,
                limit);
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    if (at_ == end_) RETURN_IF_FAULT(Refill(1));
    const std::size_t part = std::min(text.size() - done, end_ - at_);
    std::memcpy(text.data() + done, &window_[at_], part);
    done += part;
    at_ += part;
  }
  return text;
}

Result<void> Cursor::SkipStrings(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const auto length, Get<std::uint64_t>());
    if (length <= end_ - at_) {
      at_ += static_cast<std::size_t>(length);
    } else if (length > remaining()) {
      return Fail(FaultCode::kMalformed, "at byte {}: a string of {} bytes runs past the end of the file at {}",
                  position() - 8, length, source_.size_bytes());
    } else {
      RETURN_IF_FAULT(Skip(length));
    }
  }
  return {};
}

void Cursor::Finish() {
  hasher_.Update(std::span(window_.get(), at_));
  std::memmove(window_.get(), window_.get() + at_, end_ - at_);
  base_ += at_;
  end_ -= at_;
  at_ = 0;
}

}  // namespace linkcpp
