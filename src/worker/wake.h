// A bell and a stop sign that a signal handler may use: eventfds underneath.
#pragma once

#include <atomic>
#include <chrono>

namespace linkcpp {

class Wake {
 public:
  Wake();
  ~Wake();
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  void Ring();  // any thread, async-signal-safe; remembered until the next Wait
  void Stop();  // as Ring, for good
  bool stopped() const { return stopped_.load(); }
  void Wait(std::chrono::milliseconds most);               // until rung or stopped; one thread
  bool WaitForStop(std::chrono::milliseconds most) const;  // true: stopped; any number of threads

 private:
  static_assert(std::atomic<bool>::is_always_lock_free);
  int bell_, stop_sign_;  // the sign is never read, so that everybody sees it
  std::atomic<bool> stopped_{false};
};

}  // namespace linkcpp
