#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <format>
#include <print>

namespace linkcpp {

std::string SizeText(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1'000) return std::format("{} bytes", bytes);
  if (bytes < 1'000'000) return std::format("{:.2f} kB", value / 1e3);
  if (bytes < 1'000'000'000) return std::format("{:.2f} MB", value / 1e6);
  return std::format("{:.2f} GB", value / 1e9);
}

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) != 0), start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::println(stderr, "");
}

void ProgressBar::Show(std::uint64_t done_bytes, std::uint64_t total_bytes) {
  if (!terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  // What is over in a blink needs no bar.
  if (!drawn_ && now - start_ < std::chrono::milliseconds(300)) return;
  if (drawn_ && done_bytes < total_bytes && now - last_ < std::chrono::milliseconds(100)) return;
  constexpr std::uint64_t kWidth = 30;
  const double share = total_bytes == 0 ? 1.0 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
  const auto full = std::min(kWidth, static_cast<std::uint64_t>(share * kWidth));
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::print(stderr, "\r{} [{}{}] {:3.0f}% of {}, {}/s   ", what_, std::string(full, '#'),
             std::string(kWidth - full, '.'), share * 100, SizeText(total_bytes),
             SizeText(static_cast<std::uint64_t>(static_cast<double>(done_bytes) / std::max(seconds, 1e-3))));
  std::fflush(stderr);
  drawn_ = true;
  last_ = now;
}

}  // namespace linkcpp
