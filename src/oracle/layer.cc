#include "oracle/layer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <set>

namespace linkcpp {
namespace {

constexpr double kLeastWeightSum = 0x1p-14;  // the host's floor under the sum of the selected weights

std::vector<double> Softmax(std::span<const double> logits) {
  const double top = *std::ranges::max_element(logits);
  std::vector<double> out;
  double sum = 0;
  for (const double logit : logits) sum += out.emplace_back(std::exp(logit - top));
  for (double& p : out) p /= sum;
  return out;
}

std::vector<double> Probabilities(Gating gating, const std::vector<double>& logits) {
  switch (gating) {
    case Gating::kSoftmax: return Softmax(logits);
    case Gating::kSoftmaxWeight: return logits;
    case Gating::kSigmoid:
    case Gating::kSqrtSoftplus: break;
  }
  std::vector<double> out;
  for (const double logit : logits) {
    if (gating == Gating::kSigmoid) out.push_back(1 / (1 + std::exp(-logit)));
    if (gating == Gating::kSqrtSoftplus) out.push_back(std::sqrt(logit > 20 ? logit : std::log1p(std::exp(logit))));
  }
  return out;
}

// Experts outside the best groups are never selected. A group's worth is the sum of its two best.
void MaskGroups(const RouterRule& rule, std::vector<double>& selection) {
  if (rule.n_groups <= 1) return;
  const std::size_t size = selection.size() / rule.n_groups;
  std::vector<std::pair<double, std::size_t>> worth;
  for (std::size_t g = 0; g < rule.n_groups; ++g) {
    std::vector<double> group(selection.begin() + static_cast<std::ptrdiff_t>(g * size),
                              selection.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::ranges::sort(group, std::greater());
    worth.emplace_back(group[0] + (size > 1 ? group[1] : 0), g);
  }
  std::ranges::stable_sort(worth, [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = rule.n_groups_used; i < worth.size(); ++i) {
    for (std::size_t e = 0; e < size; ++e) {
      selection[worth[i].second * size + e] = -std::numeric_limits<double>::infinity();
    }
  }
}

Result<void> CheckRouter(const Router& router, std::size_t n_in) {
  const RouterRule& rule = router.rule;
  if (n_in != router.n_in) {
    return Fail(FaultCode::kRefused, "the router takes rows of {}, this one has {}", router.n_in, n_in);
  }
  if (router.weights.size() != static_cast<std::size_t>(router.n_in) * router.n_experts) {
    return Fail(FaultCode::kRefused, "the router has {} weights, {} x {} are needed", router.weights.size(),
                router.n_in, router.n_experts);
  }
  if (rule.n_used == 0 || rule.n_used > router.n_experts) {
    return Fail(FaultCode::kRefused, "the router selects {} of {} experts", rule.n_used, router.n_experts);
  }
  for (const auto* extra : {&router.bias, &router.selection_bias}) {
    if (!extra->empty() && extra->size() != router.n_experts) {
      return Fail(FaultCode::kRefused, "the router has {} biases for {} experts", extra->size(), router.n_experts);
    }
  }
  if (rule.n_groups > 1 &&
      (router.n_experts % rule.n_groups != 0 || rule.n_groups_used == 0 || rule.n_groups_used > rule.n_groups ||
       rule.n_used > router.n_experts / rule.n_groups * rule.n_groups_used)) {
    return Fail(FaultCode::kRefused, "the router selects {} experts from {} of {} groups of {} experts", rule.n_used,
                rule.n_groups_used, rule.n_groups, router.n_experts);
  }
  return {};
}

}  // namespace

Result<std::vector<Choice>> Route(const Router& router, std::span<const double> x) {
  RETURN_IF_FAULT(CheckRouter(router, x.size()));
  const RouterRule& rule = router.rule;
  std::vector<double> logits;
  for (std::uint32_t e = 0; e < router.n_experts; ++e) {
    double sum = 0;
    for (std::uint32_t i = 0; i < router.n_in; ++i) sum += router.weights[std::size_t{e} * router.n_in + i] * x[i];
    logits.push_back(sum + (router.bias.empty() ? 0 : router.bias[e]));
  }
  const std::vector<double> probabilities = Probabilities(rule.gating, logits);

  std::vector<double> selection = rule.select_logits ? logits : probabilities;
  for (std::size_t e = 0; e < router.selection_bias.size(); ++e) selection[e] += router.selection_bias[e];
  MaskGroups(rule, selection);
  std::vector<std::uint32_t> order(router.n_experts);
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) { return selection[a] > selection[b]; });
  order.resize(rule.n_used);

  std::vector<double> weights;
  for (const std::uint32_t e : order) weights.push_back(probabilities[e]);
  if (rule.gating == Gating::kSoftmaxWeight) weights = Softmax(weights);
  if (rule.renormalise) {
    const double sum = std::max(std::accumulate(weights.begin(), weights.end(), 0.0), kLeastWeightSum);
    for (double& w : weights) w /= sum;
  }
  std::vector<Choice> choices;
  for (std::size_t i = 0; i < order.size(); ++i) choices.push_back({order[i], weights[i] * rule.scale});
  return choices;
}

Result<std::vector<std::vector<double>>> RunLayer(const Recipe& recipe, const ExpertSource& source,
                                                  std::span<const RoutedRow> rows, bool weigh_input,
                                                  std::span<const std::uint32_t> experts, std::size_t n_out) {
  std::vector<std::vector<double>> sums(rows.size(), std::vector<double>(n_out));
  for (const std::uint32_t e : experts) {
    std::optional<OracleExpert> expert;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (const Choice& choice : rows[r].choices) {
        if (choice.expert != e) continue;
        if (!expert.has_value()) {
          ASSIGN_OR_RETURN(expert, source(e));
        }
        std::vector<double> x = rows[r].x;
        if (weigh_input) {
          for (double& v : x) v *= choice.weight;
        }
        ASSIGN_OR_RETURN(const std::vector<double> y, RunExpert(recipe, *expert, x));
        if (y.size() != n_out)
          return Fail(FaultCode::kRefused, "expert {} gives rows of {}, not {}", e, y.size(), n_out);
        const double weight = weigh_input ? 1 : choice.weight;
        for (std::size_t i = 0; i < n_out; ++i) sums[r][i] += weight * y[i];
      }
    }
  }
  return sums;
}

Split EvenSplit(std::uint32_t n_experts, std::uint32_t n_shards) {
  Split split(std::max(n_shards, 1u));
  for (std::uint64_t e = 0; e < n_experts; ++e) {
    split[e * split.size() / n_experts].push_back(static_cast<std::uint32_t>(e));
  }
  return split;
}

Split RandomSplit(std::uint32_t n_experts, std::uint32_t n_shards, Rng& rng) {
  Split split(std::max(n_shards, 1u));
  for (std::uint32_t e = 0; e < n_experts; ++e) split[rng.Below(split.size())].push_back(e);
  return split;
}

Result<std::vector<std::vector<double>>> RunSplitLayer(const Recipe& recipe, const ExpertSource& source,
                                                       std::span<const RoutedRow> rows, bool weigh_input,
                                                       const Split& split, std::size_t n_out) {
  std::vector<std::vector<double>> combined(rows.size(), std::vector<double>(n_out));
  for (const auto& shard : split) {
    ASSIGN_OR_RETURN(const auto part, RunLayer(recipe, source, rows, weigh_input, shard, n_out));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t i = 0; i < n_out; ++i) combined[r][i] += part[r][i];
    }
  }
  return combined;
}

std::vector<std::uint32_t> ExpertsTouched(std::span<const RoutedRow> rows) {
  std::set<std::uint32_t> touched;
  for (const RoutedRow& row : rows) {
    for (const Choice& choice : row.choices) touched.insert(choice.expert);
  }
  return {touched.begin(), touched.end()};
}

double Gaussian(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
  return radius * std::cos(2 * std::numbers::pi * rng.Uniform());
}

}  // namespace linkcpp
