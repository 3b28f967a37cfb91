// Ctrl-C as a question that long work asks, for commands that have something to clean up.
#pragma once

#include <csignal>
#include <cstddef>
#include <iterator>

namespace linkcpp {

// While it lives, SIGINT, SIGTERM and SIGHUP (its terminal is closed) set a flag instead of ending the program. One at
// a time.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted_ = 0;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) old_[i] = std::signal(kSignals[i], &OnSignal);
  }
  ~InterruptGuard() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) std::signal(kSignals[i], old_[i]);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool KeepGoing() { return interrupted_ == 0; }

 private:
  static void OnSignal(int) { interrupted_ = 1; }
  static inline volatile std::sig_atomic_t interrupted_ = 0;
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  void (*old_[std::size(kSignals)])(int);
};

}  // namespace linkcpp
