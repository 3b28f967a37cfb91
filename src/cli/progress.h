// A progress bar on standard error, shown only when that is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace linkcpp {

// One thread at a time. Redraws at most ten times a second; the destructor ends the line.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Show(std::uint64_t done_bytes, std::uint64_t total_bytes);

 private:
  const std::string what_;
  const bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

// "612 bytes", "1.57 GB": thousands, not 1024s.
std::string SizeText(std::uint64_t bytes);

}  // namespace linkcpp
