// For tests: what a link's handlers were told, to be waited for from the test's thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/link.h"

namespace linkcpp {

inline std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline Result<void> SendText(Link& link, std::string_view header, std::string_view payload = "") {
  const std::array pieces = {BytesOf(payload)};
  return link.Send(BytesOf(header), pieces);
}

class Inbox {
 public:
  struct Frame {
    std::string header, payload;
  };

  Link::Handlers Handlers() {
    return {.on_frame = [this](const FrameView& view) -> Result<void> {
              const std::lock_guard lock(mutex_);
              if (reinterpret_cast<std::uintptr_t>(view.payload.data()) % 16 != 0) ++n_misaligned_;
              frames_.push_back({TextOf(view.header), TextOf(view.payload)});
              changed_.notify_all();
              return {};
            },
            .on_close =
                [this](const Fault& why) {
                  const std::lock_guard lock(mutex_);
                  closes_.push_back(why);
                  changed_.notify_all();
                }};
  }

  // False: not within ten seconds.
  bool WaitFrames(std::size_t n) {
    return WaitFor([&] { return frames_.size() >= n; });
  }
  bool WaitClosed() {
    return WaitFor([&] { return !closes_.empty(); });
  }

  std::vector<Frame> frames() {
    const std::lock_guard lock(mutex_);
    return frames_;
  }
  std::vector<Fault> closes() {
    const std::lock_guard lock(mutex_);
    return closes_;
  }
  int n_misaligned() {
    const std::lock_guard lock(mutex_);
    return n_misaligned_;
  }

 private:
  template <class Condition>
  bool WaitFor(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), condition);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Frame> frames_;
  std::vector<Fault> closes_;
  int n_misaligned_ = 0;
};

}  // namespace linkcpp
