// What each MoE architecture does around its experts: the recipe that follows from the tensors a layer has, and the
// router's rule where the model file does not say it.
//
// A serving swarm never asks this table: there the host's graph says what is computed. It is for checks that run from
// the model file alone (`linkcpp oracle`, `linkcpp verify expert`, canary rows).
#pragma once

#include <array>
#include <string_view>

#include "base/recipe.h"
#include "base/result.h"
#include "oracle/layer.h"

namespace linkcpp {

struct ArchitectureRules {
  std::string_view name;  // "" for an architecture the table does not have: then the usual rules are assumed
  enum class Activation : std::uint8_t { kSilu, kGelu, kRelu, kReluSquared, kSwigluOai } activation = Activation::kSilu;
  Gating gating = Gating::kSoftmax;  // unless the file has expert_gating_func
  bool renormalise = true;           // unless the file has expert_weights_norm
  bool select_logits = false;
  bool weigh_input = false;
};

// kRefused: an architecture whose experts use a function outside the recipe's vocabulary.
Result<ArchitectureRules> RulesOf(std::string_view architecture);

// Which tensors a layer's experts have, indexed by Projection.
struct ExpertParts {
  std::array<bool, kProjections> weight{};
  std::array<bool, kProjections> bias{};
  std::array<bool, kProjections> scale{};
};

// In the host graph's order: up, gate (or both in one), activation, down; scale, then bias, after each projection.
// kRefused: no down weights, or neither up nor gate_up.
Result<Recipe> RecipeFor(const ArchitectureRules& rules, const ExpertParts& parts);

}  // namespace linkcpp
