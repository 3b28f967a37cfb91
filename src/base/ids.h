// Distinct numbers are distinct types: a layer is not an expert.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace linkcpp {

template <class Tag, class Number>
struct Id {
  Number value = 0;

  constexpr Id() = default;
  constexpr explicit Id(Number number) : value(number) {}
  friend constexpr auto operator<=>(Id, Id) = default;
};

using LayerId = Id<struct LayerTag, std::uint16_t>;    // N of blk.N
using ExpertId = Id<struct ExpertTag, std::uint16_t>;  // index along ne[2] of blk.N.ffn_*_exps.weight

// One slice: all slabs of one (layer, expert).
struct SliceId {
  LayerId layer;
  ExpertId expert;
  friend constexpr auto operator<=>(SliceId, SliceId) = default;
};

}  // namespace linkcpp

template <class Tag, class Number>
struct std::hash<linkcpp::Id<Tag, Number>> {
  std::size_t operator()(linkcpp::Id<Tag, Number> id) const noexcept { return std::hash<Number>()(id.value); }
};

template <>
struct std::hash<linkcpp::SliceId> {
  std::size_t operator()(linkcpp::SliceId id) const noexcept {
    return (static_cast<std::size_t>(id.layer.value) << 16) | id.expert.value;
  }
};
