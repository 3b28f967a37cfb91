#include "kernel/arrange.h"

#include <algorithm>
#include <numeric>

namespace linkcpp {
namespace {

// No slot twice within a run of `width` pairs.
bool DistinctWithin(std::span<const SlotPair> pairs, std::size_t width, ArrangeScratch& scratch) {
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (i % width == 0 && ++scratch.stamp == 0) {  // wrapped: old stamps mean nothing now
      std::ranges::fill(scratch.seen, 0);
      scratch.stamp = 1;
    }
    if (pairs[i].slot >= scratch.seen.size()) scratch.seen.resize(pairs[i].slot + std::size_t{1}, 0);
    std::uint32_t& seen = scratch.seen[pairs[i].slot];
    if (seen == scratch.stamp) return false;
    seen = scratch.stamp;
  }
  return true;
}

// Pairs are `used` for one row, then as many for the next row, and so on without gaps. 0: they are not.
std::size_t PairsPerRow(std::span<const SlotPair> pairs) {
  std::size_t used = 0;
  while (used < pairs.size() && pairs[used].row == pairs.front().row) ++used;
  if (pairs.size() % used != 0) return 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].row != pairs.front().row + i / used) return 0;
  }
  return used;
}

}  // namespace

Arrangement Arrange(std::span<const SlotPair> pairs, bool may_share, ArrangeScratch& scratch) {
  const auto n_pairs = static_cast<std::int64_t>(pairs.size());
  const std::size_t used = PairsPerRow(pairs);
  if (may_share && used > 0 && DistinctWithin(pairs, used, scratch)) {
    return {.used = static_cast<std::int64_t>(used),
            .tokens = n_pairs / static_cast<std::int64_t>(used),
            .shared_rows = true};
  }
  if (DistinctWithin(pairs, pairs.size(), scratch)) return {.used = n_pairs, .tokens = 1};
  return {.used = 1, .tokens = n_pairs};
}

std::vector<std::vector<std::size_t>> PartsOf(std::span<const SlotPair> pairs, std::size_t most) {
  std::vector<std::size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return pairs[i].slot; });

  std::vector<std::vector<std::size_t>> parts;
  for (auto begin = order.begin(); begin != order.end();) {
    const std::uint32_t slot = pairs[*begin].slot;
    const auto end = std::find_if(begin, order.end(), [&](std::size_t i) { return pairs[i].slot != slot; });
    const auto count = static_cast<std::size_t>(end - begin);
    const std::size_t n_pieces = (count + most - 1) / most;
    for (std::size_t piece = 0; piece < n_pieces; ++piece) {
      const auto from = begin + static_cast<std::ptrdiff_t>(count * piece / n_pieces);
      const auto to = begin + static_cast<std::ptrdiff_t>(count * (piece + 1) / n_pieces);
      const auto length = static_cast<std::size_t>(to - from);
      // Pieces of one slot never meet again in a part: each is more than half of one.
      if (parts.empty() || n_pieces > 1 || parts.back().size() + length > most) parts.emplace_back();
      parts.back().insert(parts.back().end(), from, to);
    }
    begin = end;
  }
  return parts;
}

}  // namespace linkcpp
