#include "oracle/weight_type.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace linkcpp {
namespace {

constexpr std::array kLayouts = {
    WeightLayout{WeightType::kF32, "F32", 1, 4, RowFormat::kF32},
    WeightLayout{WeightType::kF16, "F16", 1, 2, RowFormat::kF16},
    WeightLayout{WeightType::kQ4_0, "Q4_0", 32, 18, RowFormat::kQ8_0},
    WeightLayout{WeightType::kQ4_1, "Q4_1", 32, 20, RowFormat::kQ8_1},
    WeightLayout{WeightType::kQ5_0, "Q5_0", 32, 22, RowFormat::kQ8_0},
    WeightLayout{WeightType::kQ5_1, "Q5_1", 32, 24, RowFormat::kQ8_1},
    WeightLayout{WeightType::kQ8_0, "Q8_0", 32, 34, RowFormat::kQ8_0},
    WeightLayout{WeightType::kQ2_K, "Q2_K", 256, 84, RowFormat::kQ8_K},
    WeightLayout{WeightType::kQ3_K, "Q3_K", 256, 110, RowFormat::kQ8_K},
    WeightLayout{WeightType::kQ4_K, "Q4_K", 256, 144, RowFormat::kQ8_K},
    WeightLayout{WeightType::kQ5_K, "Q5_K", 256, 176, RowFormat::kQ8_K},
    WeightLayout{WeightType::kQ6_K, "Q6_K", 256, 210, RowFormat::kQ8_K},
    WeightLayout{WeightType::kIQ4_NL, "IQ4_NL", 32, 18, RowFormat::kQ8_0},
    WeightLayout{WeightType::kIQ4_XS, "IQ4_XS", 256, 136, RowFormat::kQ8_K},
    WeightLayout{WeightType::kBF16, "BF16", 1, 2, RowFormat::kBf16},
    WeightLayout{WeightType::kMXFP4, "MXFP4", 32, 17, RowFormat::kQ8_0},
};

// Types of the format that have no oracle, by number.
constexpr std::pair<std::uint32_t, std::string_view> kOtherNames[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"},
    {22, "IQ2_S"}, {24, "I8"},    {25, "I16"},     {26, "I32"},    {27, "I64"},     {28, "F64"},   {29, "IQ1_M"},
    {34, "TQ1_0"}, {35, "TQ2_0"}, {40, "NVFP4"},   {41, "Q1_0"},   {42, "Q2_0"},
};

std::string KnownNames() {
  std::string text;
  for (const WeightLayout& layout : kLayouts) text.append(text.empty() ? "" : ", ").append(layout.name);
  return text;
}

}  // namespace

std::string_view RowFormatName(RowFormat format) {
  switch (format) {
    case RowFormat::kF32: return "F32";
    case RowFormat::kF16: return "F16";
    case RowFormat::kBf16: return "BF16";
    case RowFormat::kQ8_0: return "Q8_0";
    case RowFormat::kQ8_1: return "Q8_1";
    case RowFormat::kQ8_K: return "Q8_K";
  }
  return "?";
}

std::span<const WeightLayout> AllWeightLayouts() {
  return kLayouts;
}

std::string WeightTypeName(std::uint32_t ggml_type) {
  for (const WeightLayout& layout : kLayouts) {
    if (std::to_underlying(layout.type) == ggml_type) return std::string(layout.name);
  }
  for (const auto& [number, name] : kOtherNames) {
    if (number == ggml_type) return std::string(name);
  }
  return std::format("type {}", ggml_type);
}

Result<WeightLayout> LayoutOf(std::uint32_t ggml_type) {
  for (const WeightLayout& layout : kLayouts) {
    if (std::to_underlying(layout.type) == ggml_type) return layout;
  }
  return Fail(FaultCode::kRefused, "there is no oracle for weights of type {}; there is one for {}",
              WeightTypeName(ggml_type), KnownNames());
}

Result<WeightLayout> LayoutNamed(std::string_view name) {
  std::string upper(name);
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const WeightLayout& layout : kLayouts) {
    if (layout.name == upper) return layout;
  }
  return Fail(FaultCode::kRefused, "there is no oracle for weights of type {}; there is one for {}", name,
              KnownNames());
}

Result<std::uint64_t> BytesOf(const WeightLayout& layout, std::uint64_t n_elements, std::uint64_t n_rows) {
  if (n_elements % layout.block_elements != 0) {
    return Fail(FaultCode::kRefused, "a row of {} elements is not a whole number of {} blocks of {}", n_elements,
                layout.name, layout.block_elements);
  }
  return n_elements / layout.block_elements * layout.block_bytes * n_rows;
}

}  // namespace linkcpp
