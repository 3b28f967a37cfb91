// SIGINT, SIGTERM and SIGHUP, blocked in every thread and taken by a program's main loop, so that it can end in order.
#pragma once

#include <signal.h>

#include <chrono>

namespace linkcpp {

class StopSignals {
 public:
  // For threads started from now on, and this one. Writing to a peer that is gone is an error from now on, not a death.
  StopSignals() {
    ::sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set_, number);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
  }
  // Whether one came within `timeout`.
  bool Wait(std::chrono::milliseconds timeout) const {
    const timespec wait{timeout.count() / 1000, timeout.count() % 1000 * 1'000'000};
    return ::sigtimedwait(&set_, nullptr, &wait) > 0;
  }

 private:
  sigset_t set_{};
};

}  // namespace linkcpp
