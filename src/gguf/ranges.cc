#include <algorithm>
#include <charconv>
#include <numeric>

#include "gguf/shard.h"

namespace linkcpp {
namespace {

// Decimal digits to a number; one that is too large for 64 bits becomes the largest.
std::optional<std::uint64_t> Number(std::string_view digits) {
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() ? number : UINT64_MAX;
}

bool IsAll(std::string_view text) {
  return text.empty() || text == "all";
}

// "16 is out of range" -> "expert 16 is out of range"
std::unexpected<Fault> Named(const Fault& fault, std::string_view what) {
  if (fault.code == FaultCode::kRefused) return Fail(fault.code, "{} {}", what, fault.text);
  return Wrap(fault, what);
}

}  // namespace

Result<std::vector<std::uint16_t>> ParseRanges(std::string_view text, std::uint32_t limit) {
  limit = std::min(limit, 65536u);
  std::vector<bool> taken(limit, IsAll(text));
  for (std::string_view rest = IsAll(text) ? "" : text; rest.data() != nullptr && !IsAll(text);) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t colon = item.find(':');
    const auto first = Number(item.substr(0, colon));
    const auto last = colon == std::string_view::npos ? first : Number(item.substr(colon + 1));
    if (!first || !last || (colon != std::string_view::npos && *last <= *first)) {
      return Fail(FaultCode::kMalformed,
                  "'{}' in '{}' is not a number or a range FIRST:END with FIRST < END, as in 0:16,40", item, text);
    }
    const std::uint64_t greatest = colon == std::string_view::npos ? *last : *last - 1;
    if (greatest >= limit) {
      const std::uint64_t wrong = std::max<std::uint64_t>(*first, limit);
      if (limit == 0) return Fail(FaultCode::kRefused, "{} is out of range: there are none", wrong);
      return Fail(FaultCode::kRefused, "{} is out of range: 0 to {} exist", wrong, limit - 1);
    }
    std::fill(taken.begin() + static_cast<std::ptrdiff_t>(*first),
              taken.begin() + static_cast<std::ptrdiff_t>(greatest) + 1, true);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  std::vector<std::uint16_t> numbers;
  for (std::uint32_t i = 0; i < limit; ++i) {
    if (taken[i]) numbers.push_back(static_cast<std::uint16_t>(i));
  }
  return numbers;
}

std::string FormatRanges(std::span<const std::uint16_t> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;  // "8,9" is no longer than "8:10"
    if (!text.empty()) text += ',';
    text += end - i == 1 ? std::format("{}", numbers[i]) : std::format("{}:{}", numbers[i], numbers[end - 1] + 1);
    i = end;
  }
  return text;
}

Result<std::vector<std::uint16_t>> ParseLayers(std::string_view text, const ModelFile& model) {
  RETURN_IF_FAULT(model.RequireExperts());
  if (IsAll(text)) {
    std::vector<std::uint16_t> layers;
    for (const MoeLayer& layer : model.moe_layers()) layers.push_back(layer.layer.value);
    return layers;
  }
  auto layers = ParseRanges(text, model.moe_layers().back().layer.value + 1u);
  return layers ? layers : Named(layers.error(), "layer");
}

Result<std::vector<std::uint16_t>> ParseExperts(std::string_view text, const ModelFile& model) {
  RETURN_IF_FAULT(model.RequireExperts());
  auto experts = ParseRanges(text, model.max_experts());
  return experts ? experts : Named(experts.error(), "expert");
}

}  // namespace linkcpp
