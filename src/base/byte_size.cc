#include "base/byte_size.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <format>
#include <string>

namespace linkcpp {

Result<std::uint64_t> ParseByteSize(std::string_view text) {
  const std::string_view whole = text;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const auto refuse = [&](std::string_view why) {
    return Fail(FaultCode::kRefused, "'{}' {}: write a size such as 512M, 4G or 1.5GiB", whole, why);
  };
  if (error != std::errc() || !std::isfinite(number)) return refuse("is not a size");
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::string unit;
  for (const char c : text) unit += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (unit.ends_with('B')) unit.pop_back();
  if (unit.ends_with('I')) unit.pop_back();
  static constexpr std::string_view kUnits = "KMGT";
  double factor = 1;
  if (unit.size() > 1 || (unit.size() == 1 && kUnits.find(unit[0]) == std::string_view::npos))
    return refuse("is not a size");
  if (text.size() > 1 && unit.empty() && std::toupper(static_cast<unsigned char>(text.front())) == 'I')
    return refuse("is not a size");
  if (!unit.empty()) factor = std::pow(1024.0, static_cast<double>(kUnits.find(unit[0]) + 1));
  const double bytes = number * factor;
  if (bytes < 1) return refuse("is no memory at all");
  if (bytes >= std::pow(1024.0, 5)) return refuse("is more than any machine has");
  return static_cast<std::uint64_t>(bytes);
}

std::string BinarySizeText(std::uint64_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (bytes >= 1ull << 30) return std::format("{:.2f} GiB", number / (1ull << 30));
  if (bytes >= 1ull << 20) return std::format("{:.1f} MiB", number / (1ull << 20));
  if (bytes >= 1ull << 10) return std::format("{:.1f} KiB", number / (1ull << 10));
  return std::format("{} B", bytes);
}

std::string ByteSizeOption(std::uint64_t bytes) {
  constexpr std::uint64_t kMuch = 16ull << 20;
  return bytes >= kMuch ? std::format("{}M", bytes >> 20) : std::format("{}K", bytes >> 10);
}

}  // namespace linkcpp
