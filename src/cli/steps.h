// What a long command is doing, a line a step on standard error; on a terminal the line counts while it goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace linkcpp {

// One thread at a time.
class Steps {
 public:
  explicit Steps(std::string name);  // of the command, in front of each line
  ~Steps();                          // ends a line that was drawn
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  void Begin(const std::string& what);
  void Show(const std::string& progress);  // "37 of 128"; at most ten times a second
  void End(const std::string& outcome = "done");

 private:
  void Draw(const std::string& text);
  const std::string name_;
  const bool terminal_;
  std::string what_;
  std::size_t width_ = 0;  // of what is on the terminal's line
  std::chrono::steady_clock::time_point begun_, drawn_at_;
};

}  // namespace linkcpp
