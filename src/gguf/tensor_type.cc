#include "gguf/tensor_type.h"

#include <ggml.h>

#include <algorithm>
#include <format>

namespace linkcpp {
namespace {

std::string Upper(std::string_view text) {
  std::string upper(text);
  std::ranges::transform(upper, upper.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return upper;
}

}  // namespace

std::string TensorTypeName(std::uint32_t type) {
  if (type >= GGML_TYPE_COUNT || ggml_blck_size(static_cast<ggml_type>(type)) == 0) return std::format("type {}", type);
  return Upper(ggml_type_name(static_cast<ggml_type>(type)));
}

std::optional<std::uint32_t> TensorTypeNumber(std::string_view name) {
  const std::string wanted = Upper(name);
  for (std::uint32_t type = 0; type < GGML_TYPE_COUNT; ++type) {
    if (ggml_blck_size(static_cast<ggml_type>(type)) != 0 && TensorTypeName(type) == wanted) return type;
  }
  return std::nullopt;
}

std::optional<TensorBlock> TensorTypeBlock(std::uint32_t type) {
  if (type >= GGML_TYPE_COUNT) return std::nullopt;
  const auto n_elements = ggml_blck_size(static_cast<ggml_type>(type));
  const std::size_t size_bytes = ggml_type_size(static_cast<ggml_type>(type));
  if (n_elements <= 0 || size_bytes == 0) return std::nullopt;  // numbers of types that were given up
  return TensorBlock{static_cast<std::uint64_t>(n_elements), size_bytes};
}

}  // namespace linkcpp
