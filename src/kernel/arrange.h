// Which arrangement (recipe_graph.h) a dispatch takes. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/expert_stack.h"
#include "kernel/recipe_graph.h"

namespace linkcpp {

// Reused between calls so that a decode allocates nothing.
struct ArrangeScratch {
  std::vector<std::uint32_t> seen;  // per slot: the last stamp it was met under
  std::uint32_t stamp = 0;
};

// `may_share`: value 0 is only projected (RecipePlan::input_only_projected). Slots are below 2^16; pairs is not empty.
Arrangement Arrange(std::span<const SlotPair> pairs, bool may_share, ArrangeScratch& scratch);

// Which pairs a dispatch of more than `most` pairs runs together, as indices into `pairs`. A slot's pairs stay
// together; only a slot with more than `most` is cut, into pieces of at least most / 2, so that no piece falls below
// kManyRows when the whole does not. Fewer slots to a part also means fewer weights to read. most >= 2 * kManyRows.
std::vector<std::vector<std::size_t>> PartsOf(std::span<const SlotPair> pairs, std::size_t most);

}  // namespace linkcpp
