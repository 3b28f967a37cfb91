#include "planner/fill_room.h"

#include <algorithm>
#include <numeric>
#include <ranges>

namespace linkcpp {

std::vector<std::size_t> FillRoom(std::span<const std::uint64_t> pieces, std::uint64_t room) {
  constexpr std::uint64_t kLeastUnit = 16 << 10;
  std::uint64_t unit = 0, all = 0;
  for (const std::uint64_t bytes : pieces) unit = std::gcd(unit, bytes);
  unit = std::max(unit, kLeastUnit);
  const auto units = [unit](std::uint64_t bytes) { return (bytes + unit - 1) / unit; };
  for (const std::uint64_t bytes : pieces) all += units(bytes);

  constexpr std::size_t kUnreached = SIZE_MAX;
  std::vector<std::size_t> last(std::min(room / unit, all) + 1, kUnreached);  // the piece that reached a sum first
  last[0] = pieces.size();
  std::size_t best = 0;
  for (std::size_t i = 0; i < pieces.size() && best + 1 < last.size(); ++i) {
    const std::uint64_t size = units(pieces[i]);
    for (std::size_t sum = last.size() - 1; size > 0 && sum >= size; --sum) {
      if (last[sum] != kUnreached || last[sum - size] == kUnreached) continue;
      last[sum] = i;
      best = std::max(best, sum);
    }
  }
  std::vector<std::size_t> chosen;
  for (std::size_t sum = best; sum > 0; sum -= units(pieces[last[sum]])) chosen.push_back(last[sum]);
  std::ranges::reverse(chosen);
  return chosen;
}

}  // namespace linkcpp
