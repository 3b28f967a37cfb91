// ggml's tensor types by name and number, so that other folders can speak of "Q4_K" without ggml.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace linkcpp {

std::string TensorTypeName(std::uint32_t type);  // "Q4_K", "F32"; "type 99" for one this ggml does not know
std::optional<std::uint32_t> TensorTypeNumber(std::string_view name);  // any case; nullopt: no such type

}  // namespace linkcpp
