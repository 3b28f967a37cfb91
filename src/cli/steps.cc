#include "cli/steps.h"

#include <unistd.h>

#include <cstdio>
#include <format>
#include <print>
#include <utility>

namespace linkcpp {

using std::chrono::steady_clock;

Steps::Steps(std::string name) : name_(std::move(name)), terminal_(::isatty(STDERR_FILENO) != 0) {}

Steps::~Steps() {
  if (width_ > 0) std::println(stderr, "");
}

void Steps::Begin(const std::string& what) {
  what_ = what;
  begun_ = steady_clock::now();
  drawn_at_ = {};
  if (terminal_) Draw(what_ + " …");
}

void Steps::Show(const std::string& progress) {
  const auto now = steady_clock::now();
  if (!terminal_ || now - drawn_at_ < std::chrono::milliseconds(100)) return;
  drawn_at_ = now;
  Draw(what_ + ": " + progress);
}

void Steps::End(const std::string& outcome) {
  const double seconds = std::chrono::duration<double>(steady_clock::now() - begun_).count();
  Draw(std::format("{}: {}, {:.1f} s", what_, outcome, seconds));
  std::println(stderr, "");
  width_ = 0;
}

void Steps::Draw(const std::string& text) {
  std::string line = name_ + ": " + text;
  const std::size_t width = line.size();
  if (width < width_) line += std::string(width_ - width, ' ');
  std::print(stderr, "{}{}", terminal_ ? "\r" : "", line);
  std::fflush(stderr);
  width_ = width;
}

}  // namespace linkcpp
