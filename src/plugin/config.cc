#include "plugin/config.h"

#include <charconv>
#include <fstream>
#include <string_view>

#include "base/byte_size.h"

namespace linkcpp {
namespace {

Result<double> ParseNumber(std::string_view name, const std::string& text, double least, double most) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= least && number <= most)) {
    return Fail(FaultCode::kLocal, "{}={} is not a number from {} to {}", name, text, least, most);
  }
  return number;
}

}  // namespace

Result<PluginConfig> ReadConfig(const std::function<std::optional<std::string>(const char* name)>& lookup) {
  PluginConfig config;
  const auto text = [&](const char* name, std::string& into) {
    if (const auto value = lookup(name); value && !value->empty()) into = *value;
  };
  text("LINKCPP_COORDINATOR", config.coordinator);
  text("LINKCPP_TOKEN", config.token);
  text("LINKCPP_DATA_LISTEN", config.data_listen);
  text("LINKCPP_DATA_ADVERTISE", config.data_advertise);
  text("LINKCPP_MODEL", config.model);
  if (config.token.empty()) {
    if (const auto path = lookup("LINKCPP_TOKEN_FILE"); path && !path->empty()) {
      std::ifstream file(*path);
      if (!(file >> config.token))
        return Fail(FaultCode::kLocal, "LINKCPP_TOKEN_FILE={}: there is no token in it", *path);
    }
  }
  if (const auto value = lookup("LINKCPP_LOCAL"); value && !value->empty()) {
    if (*value != "allow" && *value != "deny") {
      return Fail(FaultCode::kLocal, "LINKCPP_LOCAL={} is neither 'allow' nor 'deny'", *value);
    }
    config.allow_local = *value == "allow";
  }
  if (const auto value = lookup("LINKCPP_LOCAL_MEMORY"); value && !value->empty() && *value != "0") {
    const auto bytes = ParseByteSize(*value);
    if (!bytes) return Fail(FaultCode::kLocal, "LINKCPP_LOCAL_MEMORY={}: {}", *value, bytes.error().text);
    config.local_memory_bytes = *bytes;
  }
  const auto number = [&](const char* name, double least, double most) -> Result<std::optional<double>> {
    const auto value = lookup(name);
    if (!value || value->empty()) return std::nullopt;
    ASSIGN_OR_RETURN(const double parsed, ParseNumber(name, *value, least, most));
    return parsed;
  };
  ASSIGN_OR_RETURN(const auto threads, number("LINKCPP_THREADS", 1, 1024));
  if (threads) config.n_threads = static_cast<int>(*threads);
  ASSIGN_OR_RETURN(const auto wait, number("LINKCPP_WAIT_S", 0, 86'400));
  if (wait) config.wait_seconds = *wait;
  ASSIGN_OR_RETURN(const auto deadline, number("LINKCPP_DEADLINE_MS", 1, 3'600'000));
  if (deadline) config.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(*deadline));
  ASSIGN_OR_RETURN(const auto hedge, number("LINKCPP_HEDGE_MS", 0, 3'600'000));
  if (hedge) config.hedge_after = std::chrono::milliseconds(static_cast<std::int64_t>(*hedge));
  ASSIGN_OR_RETURN(const auto spot_share, number("LINKCPP_SPOT_CHECKS", 0, 1));
  if (spot_share) config.spot_share = *spot_share;
  ASSIGN_OR_RETURN(const auto check_cpu, number("LINKCPP_CHECK_CPU", 0, 1));
  if (check_cpu) config.check_cpu_share = *check_cpu;
  if (const auto value = lookup("LINKCPP_CANARIES"); value && !value->empty()) {
    if (*value != "on" && *value != "off") {
      return Fail(FaultCode::kLocal, "LINKCPP_CANARIES={} is neither 'on' nor 'off'", *value);
    }
    config.canaries = *value == "on";
  }
  if (const auto value = lookup("LINKCPP_TRACE")) config.trace = !value->empty() && *value != "0";
  return config;
}

}  // namespace linkcpp
