// Checks a recipe against the shape of an expert before anything is built: every value's length, every tensor it names.
//
// Recipes come from the network and ggml aborts on operands that do not fit, so whatever ggml would assert is decided
// here. Pure: no ggml.
#pragma once

#include <cstdint>
#include <vector>

#include "base/recipe.h"
#include "base/result.h"
#include "kernel/expert_stack.h"

namespace linkcpp {

struct RecipePlan {
  std::vector<std::uint32_t> lengths;  // of value 0, 1, …, steps
  bool input_only_projected = false;   // value 0 is read by kProject alone, so its row may stand for several pairs

  std::uint32_t n_in() const { return lengths.front(); }
  std::uint32_t n_out() const { return lengths.back(); }
  std::uint64_t floats_per_pair() const;  // all values of one pair together
};

// kRefused: says which step and why.
Result<RecipePlan> PlanRecipe(const Recipe& recipe, const ExpertShape& shape);

}  // namespace linkcpp
