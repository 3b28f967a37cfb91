// "1 token", "2 tokens".
#pragma once

#include <cstdint>
#include <format>
#include <string>
#include <string_view>

namespace linkcpp {

inline std::string CountText(std::uint64_t n, std::string_view thing) {
  return std::format("{} {}{}", n, thing, n == 1 ? "" : "s");
}

}  // namespace linkcpp
