#include "swarm/call.h"

#include <algorithm>

namespace linkcpp {

Call::Call(LayerId layer_in, const Recipe& recipe_in, std::span<const float> x_in, std::uint32_t n_in_in,
           std::span<const Pair> pairs_in, std::span<float> y_in, std::uint32_t n_out_in)
    : layer(layer_in),
      recipe(recipe_in),
      x(x_in),
      n_in(n_in_in),
      pairs(pairs_in),
      y(y_in),
      n_out(n_out_in),
      claimed_(pairs_in.size()),
      carriers_(pairs_in.size()),
      remaining_(pairs_in.size()) {}

std::vector<std::uint32_t> Call::Claim(std::span<const std::uint32_t> numbers) {
  std::vector<std::uint32_t> positions;
  positions.reserve(numbers.size());
  for (std::uint32_t i = 0; i < numbers.size(); ++i) {
    if (claimed_[numbers[i]] != 0) continue;
    claimed_[numbers[i]] = 1;
    positions.push_back(i);
  }
  if (!positions.empty()) ++writers_;
  return positions;
}

void Call::Carry(const Flight& flight) {
  for (const std::uint32_t pair : flight.pairs) ++carriers_[pair];
}

void Call::PutDown(const Flight& flight) {
  for (const std::uint32_t pair : flight.pairs) {
    if (--carriers_[pair] == 0 && claimed_[pair] == 0) orphans_.push_back(pair);
  }
}

std::vector<std::uint32_t> Call::TakeOrphans() {
  std::vector<std::uint32_t> taken;
  taken.swap(orphans_);
  std::erase_if(taken, [&](std::uint32_t pair) { return claimed_[pair] != 0 || carriers_[pair] != 0; });
  std::ranges::sort(taken);
  taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
  return taken;
}

}  // namespace linkcpp
