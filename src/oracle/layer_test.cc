#include "oracle/layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "oracle/architecture.h"
#include "oracle/half.h"
#include "oracle/metrics.h"

namespace linkcpp {
namespace {

std::vector<std::byte> RandomBlocks(const WeightLayout& layout, std::size_t n_elements, Rng& rng, float scale) {
  std::vector<std::byte> bytes(n_elements / layout.block_elements * layout.block_bytes);
  for (auto& b : bytes) b = static_cast<std::byte>(rng.Next());
  const auto half = ToHalf(scale);
  for (std::size_t at = 0; at < bytes.size(); at += layout.block_bytes) {
    const auto put = [&](std::size_t offset) {
      bytes[at + offset] = static_cast<std::byte>(half);
      bytes[at + offset + 1] = static_cast<std::byte>(half >> 8);
    };
    if (layout.type == WeightType::kQ4_K) put(0), put(2);
    if (layout.type == WeightType::kQ6_K) put(208);
  }
  return bytes;
}

// Expert `e` of a layer made from its number: Q4_K gate and up, Q6_K down, scaled so that results are around one.
OracleExpert SyntheticExpert(std::uint32_t e, std::uint32_t n_embd, std::uint32_t n_ff) {
  Rng rng(1000 + e);
  OracleExpert expert;
  const auto put = [&](Projection p, std::string_view type, std::uint32_t n_in, std::uint32_t n_out, float scale) {
    const WeightLayout layout = *LayoutNamed(type);
    const auto bytes = RandomBlocks(layout, std::size_t{n_in} * n_out, rng, scale);
    auto made = OracleMatrix::Make(ProjectionName(p), std::to_underlying(layout.type), n_in, n_out, bytes);
    expert.projections[static_cast<std::size_t>(p)] = std::move(made).value();
  };
  put(Projection::kGate, "Q4_K", n_embd, n_ff, 1e-4f);
  put(Projection::kUp, "Q4_K", n_embd, n_ff, 1e-4f);
  put(Projection::kDown, "Q6_K", n_ff, n_embd, 2e-5f);
  return expert;
}

Router SyntheticRouter(std::uint32_t n_in, std::uint32_t n_experts, std::uint32_t n_used, Rng& rng) {
  Router router{.rule = {.n_used = n_used},
                .n_in = n_in,
                .n_experts = n_experts,
                .weights = {},
                .bias = {},
                .selection_bias = {}};
  for (std::size_t i = 0; i < std::size_t{n_in} * n_experts; ++i) {
    router.weights.push_back(static_cast<float>(Gaussian(rng) / std::sqrt(n_in)));
  }
  return router;
}

std::vector<RoutedRow> Rows(const Router& router, std::uint32_t n, Rng& rng) {
  std::vector<RoutedRow> rows(n);
  for (RoutedRow& row : rows) {
    for (std::uint32_t i = 0; i < router.n_in; ++i) row.x.push_back(Gaussian(rng));
    row.choices = Route(router, row.x).value();
  }
  return rows;
}

Comparison Compare(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  Comparison comparison;
  for (std::size_t r = 0; r < a.size(); ++r)
    comparison.Add(std::span<const double>(a[r]), std::span<const double>(b[r]));
  return comparison;
}

// The shape of the 122B model's layers: 3072 -> 1024 -> 3072, 256 experts, 8 a token.
TEST(Layer, ShardsOfA122bLayerCombineToTheLayerInOnePiece) {
  Rng rng(7);
  const Router router = SyntheticRouter(3072, 256, 8, rng);
  const auto rows = Rows(router, 1, rng);
  const ExpertSource source = [](std::uint32_t e) -> Result<OracleExpert> { return SyntheticExpert(e, 3072, 1024); };
  const Recipe recipe = Recipe::Swiglu();
  const auto whole = RunLayer(recipe, source, rows, false, EvenSplit(256, 1)[0], 3072).value();
  double largest = 0;
  for (const double v : whole[0]) largest = std::max(largest, std::fabs(v));
  EXPECT_GT(largest, 0.1) << "the layer computes something";
  for (const Split& split : {EvenSplit(256, 2), EvenSplit(256, 256), RandomSplit(256, 5, rng)}) {
    const auto combined = RunSplitLayer(recipe, source, rows, false, split, 3072).value();
    EXPECT_LE(Compare(whole, combined).MaxAbs(), 4e-12);
    EXPECT_TRUE(AllClose(std::span<const double>(whole[0]), std::span<const double>(combined[0]), 1e-5));
  }
}

TEST(Layer, ALostShardIsNoticed) {
  Rng rng(8);
  const Router router = SyntheticRouter(256, 16, 4, rng);
  const auto rows = Rows(router, 3, rng);
  const ExpertSource source = [](std::uint32_t e) -> Result<OracleExpert> { return SyntheticExpert(e, 256, 256); };
  const auto whole = RunLayer(Recipe::Swiglu(), source, rows, false, EvenSplit(16, 1)[0], 256).value();
  for (const std::uint32_t n : {2u, 4u, 16u}) {
    Split split = EvenSplit(16, n);
    const auto all = RunSplitLayer(Recipe::Swiglu(), source, rows, false, split, 256).value();
    EXPECT_LE(Compare(whole, all).MaxAbs(), 1e-12 * Compare(whole, all).ReferenceMaxAbs());
    const std::uint32_t lost = rows[0].choices[0].expert;
    std::erase_if(split, [&](const auto& shard) { return std::ranges::contains(shard, lost); });
    const auto part = RunSplitLayer(Recipe::Swiglu(), source, rows, false, split, 256).value();
    EXPECT_FALSE(AllClose(std::span<const double>(whole[0]), std::span<const double>(part[0]), 1e-5));
  }
}

TEST(Split, PutsEveryExpertInOneShard) {
  Rng rng(3);
  for (const std::uint32_t n : {1u, 3u, 7u, 256u, 300u}) {
    for (const Split& split : {EvenSplit(256, n), RandomSplit(256, n, rng)}) {
      EXPECT_EQ(split.size(), n);
      std::set<std::uint32_t> seen;
      for (const auto& shard : split) {
        EXPECT_TRUE(std::ranges::is_sorted(shard));
        seen.insert(shard.begin(), shard.end());
      }
      EXPECT_EQ(seen.size(), 256u);
    }
  }
}

// Identity weights: the logits are the row itself.
Router PlainRouter(std::uint32_t n, std::uint32_t n_used) {
  Router router{.rule = {.n_used = n_used}, .n_in = n, .n_experts = n, .weights = {}, .bias = {}, .selection_bias = {}};
  router.weights.resize(std::size_t{n} * n);
  for (std::uint32_t i = 0; i < n; ++i) router.weights[std::size_t{i} * n + i] = 1;
  return router;
}

TEST(Router, SoftmaxOfTheBestRenormalised) {
  const double x[] = {std::log(1.0), std::log(5.0), std::log(2.0), std::log(3.0)};
  auto router = PlainRouter(4, 2);
  auto choices = Route(router, x).value();
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].expert, 1u);
  EXPECT_EQ(choices[1].expert, 3u);
  EXPECT_NEAR(choices[0].weight, 5.0 / 8, 1e-15);
  EXPECT_NEAR(choices[1].weight, 3.0 / 8, 1e-15);
  router.rule.renormalise = false;
  choices = Route(router, x).value();
  EXPECT_NEAR(choices[0].weight, 5.0 / 11, 1e-15);
  router.rule.gating = Gating::kSoftmaxWeight;
  EXPECT_NEAR(Route(router, x).value()[0].weight, 5.0 / 8, 1e-15);
}

TEST(Router, TheSelectionBiasSelectsButDoesNotWeigh) {
  auto router = PlainRouter(3, 1);
  router.rule = {.gating = Gating::kSigmoid, .n_used = 1, .renormalise = false, .scale = 2.5};
  router.selection_bias = {0, 0, 1};
  const double x[] = {1.0, 0.5, 0.0};
  const auto choices = Route(router, x).value();
  EXPECT_EQ(choices[0].expert, 2u);
  EXPECT_NEAR(choices[0].weight, 2.5 * 0.5, 1e-15);  // sigmoid(0), without the bias
}

TEST(Router, OnlyTheBestGroupsCount) {
  auto router = PlainRouter(6, 2);
  router.rule = {.gating = Gating::kSigmoid, .n_used = 2, .renormalise = true, .n_groups = 3, .n_groups_used = 1};
  const double x[] = {3.0, -9.0, 1.0, 2.0, 0.5, 0.0};  // the best single is in group 0, the best two in group 1
  const auto choices = Route(router, x).value();
  EXPECT_EQ(choices[0].expert, 3u);
  EXPECT_EQ(choices[1].expert, 2u);
}

TEST(Router, OfEqualsTheLowerNumberWins) {
  const double x[] = {1, 2, 2, 2};
  const auto choices = Route(PlainRouter(4, 2), x).value();
  EXPECT_EQ(choices[0].expert, 1u);
  EXPECT_EQ(choices[1].expert, 2u);
}

TEST(Router, NonsenseIsRefused) {
  const double x[] = {1, 2, 3, 4};
  EXPECT_FALSE(Route(PlainRouter(4, 5), x).has_value());
  EXPECT_FALSE(Route(PlainRouter(4, 0), x).has_value());
  EXPECT_FALSE(Route(PlainRouter(3, 1), x).has_value());
}

TEST(Architecture, TheUsualRecipeIsSwiglu) {
  ExpertParts parts;
  parts.weight = {true, true, true, false};
  EXPECT_EQ(RecipeFor(*RulesOf("qwen3moe"), parts).value(), Recipe::Swiglu());
}

TEST(Architecture, BiasesMergedAndUngatedExperts) {
  ExpertParts parts{.weight = {true, true, true, false}, .bias = {true, true, true, false}, .scale = {}};
  EXPECT_EQ(RecipeFor(*RulesOf("gpt-oss"), parts)->Describe(),
            "up.0 bias[up](1) gate.0 bias[gate](3) swiglu_oai(4,2) down.5 bias[down](6)");
  parts = {.weight = {false, false, true, true}, .bias = {}, .scale = {false, false, true, false}};
  EXPECT_EQ(RecipeFor(*RulesOf("gemma4"), parts)->Describe(),
            "gate_up.0 half0(1) half1(1) geglu(2,3) down.4 scale[down](5)");
  parts = {.weight = {false, true, true, false}, .bias = {}, .scale = {}};
  EXPECT_EQ(RecipeFor(*RulesOf("nemotron_h_moe"), parts)->Describe(), "up.0 relu(1) sqr(2) down.3");
  parts.weight[static_cast<std::size_t>(Projection::kDown)] = false;
  EXPECT_FALSE(RecipeFor(*RulesOf("llama"), parts).has_value());
}

}  // namespace
}  // namespace linkcpp
