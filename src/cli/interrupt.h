// Ctrl-C as a question that long work asks, for commands that have something to clean up.
#pragma once

#include <csignal>

namespace linkcpp {

// While it lives, SIGINT and SIGTERM set a flag instead of ending the program. One at a time.
class InterruptGuard {
 public:
  InterruptGuard() : old_int_(std::signal(SIGINT, &OnSignal)), old_term_(std::signal(SIGTERM, &OnSignal)) {
    interrupted_ = 0;
  }
  ~InterruptGuard() {
    std::signal(SIGINT, old_int_);
    std::signal(SIGTERM, old_term_);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool KeepGoing() { return interrupted_ == 0; }

 private:
  static void OnSignal(int) { interrupted_ = 1; }
  static inline volatile std::sig_atomic_t interrupted_ = 0;
  void (*old_int_)(int);
  void (*old_term_)(int);
};

}  // namespace linkcpp
