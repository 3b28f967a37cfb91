// Time as an argument: the real clock, and one that tests move by hand.
#pragma once

#include <chrono>

namespace linkcpp {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

// One thread at a time.
class FakeClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(Duration step) { now_ += step; }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

}  // namespace linkcpp
