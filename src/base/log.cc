#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

namespace linkcpp {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

class StderrLog final : public LogSink {
 public:
  StderrLog(std::string_view name, LogLevel least)
      : logger_(std::string(name), std::make_shared<spdlog::sinks::stderr_color_sink_mt>()) {
    logger_.set_pattern("%H:%M:%S.%e %^%l%$ %n: %v");
    logger_.set_level(ToSpdlog(least));
    logger_.flush_on(spdlog::level::debug);
    if (const char* wanted = std::getenv("LINKCPP_LOG")) {
      const std::string_view text = wanted;
      logger_.set_level(text == "debug"     ? spdlog::level::debug
                        : text == "info"    ? spdlog::level::info
                        : text == "warning" ? spdlog::level::warn
                        : text == "error"   ? spdlog::level::err
                                            : ToSpdlog(least));
    }
  }
  void Write(LogLevel level, std::string_view text) override { logger_.log(ToSpdlog(level), "{}", text); }

 private:
  spdlog::logger logger_;
};

}  // namespace

std::unique_ptr<LogSink> MakeStderrLog(std::string_view name, LogLevel least) {
  return std::make_unique<StderrLog>(name, least);
}

}  // namespace linkcpp
