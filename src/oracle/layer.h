// One MoE layer in double: the router's choice, the chosen experts, their weighted sum; whole, or in shards apart.
//
// The sum over a row's experts runs in ascending expert order, so a layer in one piece and a layer split into shards
// differ only in how the same products are grouped.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/recipe.h"
#include "base/result.h"
#include "base/rng.h"
#include "oracle/expert.h"

namespace linkcpp {

enum class Gating : std::uint8_t {  // numbers as in a model's expert_gating_func
  kSoftmax = 1,                     // softmax over all experts
  kSigmoid = 2,                     // each expert by itself
  kSoftmaxWeight = 3,               // selected by logit, softmax over the selected
  kSqrtSoftplus = 4,                // sqrt(log(1 + e^logit))
};

struct RouterRule {
  Gating gating = Gating::kSoftmax;
  std::uint32_t n_used = 0;
  bool renormalise = true;     // the weights of the selected sum to one
  double scale = 1;            // every weight × scale, last
  bool select_logits = false;  // select by logit, whatever the gating
  bool weigh_input = false;    // the weight multiplies the expert's input instead of its output
  std::uint32_t n_groups =
      1;  // experts in equal groups; only the best n_groups_used groups (sum of their two best) count
  std::uint32_t n_groups_used = 1;
};

struct Router {
  RouterRule rule;
  std::uint32_t n_in = 0;
  std::uint32_t n_experts = 0;
  std::vector<float> weights;         // [n_experts, n_in]
  std::vector<float> bias;            // [n_experts] added to the logits, or empty
  std::vector<float> selection_bias;  // [n_experts] added for selection only, or empty
};

struct Choice {
  std::uint32_t expert = 0;
  double weight = 0;
};

// The router's choice for one row, best first; of equals the lower number. kRefused: sizes or rule that make no sense.
Result<std::vector<Choice>> Route(const Router& router, std::span<const double> x);

struct RoutedRow {
  std::vector<double> x;
  std::vector<Choice> choices;
};

using ExpertSource = std::function<Result<OracleExpert>(std::uint32_t expert)>;

// Those of `experts` (ascending) that a row chose, weighted and summed: one vector a row. Each expert is loaded once
// and dropped again. A row none of whose experts is here gives zeros of length n_out.
Result<std::vector<std::vector<double>>> RunLayer(const Recipe& recipe, const ExpertSource& source,
                                                  std::span<const RoutedRow> rows, bool weigh_input,
                                                  std::span<const std::uint32_t> experts, std::size_t n_out);

using Split = std::vector<std::vector<std::uint32_t>>;  // shards; every expert in exactly one, ascending inside

Split EvenSplit(std::uint32_t n_experts, std::uint32_t n_shards);  // ranges of nearly equal size
Split RandomSplit(std::uint32_t n_experts, std::uint32_t n_shards, Rng& rng);

// Every shard by itself (each with its own call of RunLayer), then the shards' results added in shard order.
Result<std::vector<std::vector<double>>> RunSplitLayer(const Recipe& recipe, const ExpertSource& source,
                                                       std::span<const RoutedRow> rows, bool weigh_input,
                                                       const Split& split, std::size_t n_out);

// Experts that at least one row chose, ascending.
std::vector<std::uint32_t> ExpertsTouched(std::span<const RoutedRow> rows);

// One number of a standard normal distribution (Box-Muller), for rows made up from a seed.
double Gaussian(Rng& rng);

}  // namespace linkcpp
