// The tensor types a made model can have: GGUF's number for each, and the size of its blocks.
//
// A table of our own, so that planning a model needs no ggml; a test compares it with ggml's.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace linkcpp {

enum class TensorType : std::uint32_t {  // in files: do not renumber
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

struct TensorTypeInfo {
  TensorType type = TensorType::kF32;
  std::string_view name;  // as ggml prints it: "q4_K"
  std::uint32_t block_elements = 1;
  std::uint32_t block_bytes = 4;
};

std::span<const TensorTypeInfo> AllTensorTypes();
const TensorTypeInfo& InfoOf(TensorType type);
bool IsQuantised(TensorType type);  // false: F32, F16, BF16

// Bytes of a whole tensor; ne[0] must be a multiple of the type's block.
std::uint64_t TensorBytes(TensorType type, const std::array<std::uint64_t, 4>& ne);

}  // namespace linkcpp
