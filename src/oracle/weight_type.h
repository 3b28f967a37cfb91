// The weight types that have an oracle: their names, block sizes, and what they are called when they have none.
//
// Numbers are those of the GGUF format (a tensor's type field), so the rest of linkcpp passes them through unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace linkcpp {

enum class WeightType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

// What a kernel turns a row into before it multiplies it with weights (rows.h).
enum class RowFormat : std::uint8_t { kF32, kF16, kBf16, kQ8_0, kQ8_1, kQ8_K };
std::string_view RowFormatName(RowFormat format);

struct WeightLayout {
  WeightType type;
  std::string_view name;         // "Q4_K"
  std::uint32_t block_elements;  // elements share one block, along a row
  std::uint32_t block_bytes;
  RowFormat cpu_rows;  // what ggml's CPU kernels turn a row into before a product with this type
};

// Every type that has an oracle, in the order of their numbers.
std::span<const WeightLayout> AllWeightLayouts();

// "Q4_K", "IQ2_XXS", "type 77": also for types without an oracle.
std::string WeightTypeName(std::uint32_t ggml_type);

// kRefused: no oracle for this type; the text names it and those there are.
Result<WeightLayout> LayoutOf(std::uint32_t ggml_type);

// "q4_k" or "Q4_K". kRefused as above.
Result<WeightLayout> LayoutNamed(std::string_view name);

// Bytes of `n_rows` rows of `n_elements`. kRefused: a row is not a whole number of blocks.
Result<std::uint64_t> BytesOf(const WeightLayout& layout, std::uint64_t n_elements, std::uint64_t n_rows);

}  // namespace linkcpp
