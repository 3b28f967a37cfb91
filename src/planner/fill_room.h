// Which pieces fill a room best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace linkcpp {

// The indices of those whose sum is the largest that `room` bytes hold; of several such choices the one that needs the
// fewest of `pieces`, counted from its beginning. Exact where all sizes are multiples of 16 KiB; else each is rounded
// up to that. Takes room / (greatest common divisor, at least 16 KiB) * pieces steps.
std::vector<std::size_t> FillRoom(std::span<const std::uint64_t> pieces, std::uint64_t room);

}  // namespace linkcpp
