// ggml's tensor types by name and number, so that other folders can speak of "Q4_K" without ggml.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace linkcpp {

std::string TensorTypeName(std::uint32_t type);  // "Q4_K", "F32"; "type 99" for one this ggml does not know
std::optional<std::uint32_t> TensorTypeNumber(std::string_view name);  // any case; nullopt: no such type

// What a row is made of: F32 has blocks of 1 element and 4 bytes, Q4_K of 256 and 144. nullopt: ggml has no such type.
struct TensorBlock {
  std::uint64_t n_elements = 1;
  std::uint64_t size_bytes = 0;
};
std::optional<TensorBlock> TensorTypeBlock(std::uint32_t type);

}  // namespace linkcpp
