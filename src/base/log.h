// A log sink that is passed in. The library never prints: a program gives it a place to say things.
#pragma once

#include <format>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace linkcpp {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Write may be called from any thread.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void Write(LogLevel level, std::string_view text) = 0;

  template <class... Args>
  void Debug(std::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kDebug, std::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void Info(std::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kInfo, std::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void Warning(std::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kWarning, std::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void Error(std::format_string<Args...> format, Args&&... args) {
    Write(LogLevel::kError, std::format(format, std::forward<Args>(args)...));
  }
};

class NullLog final : public LogSink {
 public:
  void Write(LogLevel, std::string_view) override {}
};

// Lines on standard error: "time level name: text". LINKCPP_LOG=debug|info|warning|error chooses the least level shown.
std::unique_ptr<LogSink> MakeStderrLog(std::string_view name, LogLevel least = LogLevel::kInfo);

}  // namespace linkcpp
