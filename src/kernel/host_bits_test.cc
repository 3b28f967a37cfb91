// Every weight type and every recipe against the same layer in bare ggml, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernel/expert_stack.h"
#include "kernel/host_layer_testing.h"
#include "kernel/stack_testing.h"

namespace linkcpp {
namespace {

using namespace testing;  // NOLINT: this file is made of it

// The host computes `tokens` tokens in one graph; the stack gets the same pairs in one dispatch, then shuffled, then
// those of some of the experts.
void ExpectHostsBits(const ToyLayer& toy, const Recipe& recipe, const HostLayer::Author& author, std::size_t used,
                     std::size_t tokens, std::uint64_t seed = 7) {
  SCOPED_TRACE(recipe.Describe());
  HostLayer host(toy, CpuOfGgml(), 1);
  const std::unique_ptr<ExpertStack> stack = Filled(toy, Cpu());
  ASSERT_NE(stack, nullptr);
  const auto lengths = stack->Check(recipe);
  ASSERT_TRUE(lengths) << lengths.error().text;
  const std::size_t n_out = lengths->n_out;
  Rng rng(seed);
  const std::vector<float> x = RandomFloats(tokens * lengths->n_in, rng);
  const std::vector<std::int32_t> ids = RandomIds(toy.n_experts, used, tokens, rng);
  const std::vector<float> expected = host.Run(author, x, ids, static_cast<std::int64_t>(tokens));
  ASSERT_EQ(expected.size(), tokens * used * n_out);

  const std::vector<SlotPair> pairs = PairsOf(ids, used);
  const auto n_rows = static_cast<std::uint32_t>(tokens);
  EXPECT_TRUE(SameBits(expected, RunPairs(*stack, recipe, x, n_rows, pairs))) << "in the host's order";

  std::vector<std::size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
  for (const std::uint32_t n_experts : {toy.n_experts, toy.n_experts / 2, 1u}) {
    std::vector<SlotPair> some;
    std::vector<float> wanted;
    for (const std::size_t i : order) {
      if (pairs[i].slot >= n_experts) continue;
      some.push_back(pairs[i]);
      const auto row = expected.begin() + static_cast<std::ptrdiff_t>(i * n_out);
      wanted.insert(wanted.end(), row, row + static_cast<std::ptrdiff_t>(n_out));
    }
    EXPECT_TRUE(SameBits(wanted, RunPairs(*stack, recipe, x, n_rows, some))) << "pairs of " << n_experts << " experts";
  }
}

// ---- every type

class EveryType : public ::testing::TestWithParam<ggml_type> {};

TEST_P(EveryType, HasTheHostsBitsOnTinyShapes) {
  const ggml_type type = GetParam();
  const auto block = static_cast<std::uint32_t>(ggml_blck_size(type));
  const std::uint32_t n_embd = std::max(64u, block);
  const std::uint32_t n_ff = std::max(32u, block);
  ExpectHostsBits(ToyLayer(GatedShape(type, type, n_embd, n_ff), 6, 1), Recipe::Swiglu(), HostSwiglu, 3, 5);
}

TEST_P(EveryType, HasTheHostsBitsOnSquareShapes) {
  const ToyLayer toy(GatedShape(GetParam(), GetParam(), 256, 256), 5, 2);
  ExpectHostsBits(toy, Recipe::Swiglu(), HostSwiglu, 4, 9);   // about 7 rows to an expert: on both sides of kManyRows
  ExpectHostsBits(toy, Recipe::Swiglu(), HostSwiglu, 2, 40);  // about 16
}

// What kManyRows says: the number of a slot's rows matters in one way only.
TEST_P(EveryType, BitsChangeAtManyRowsOnly) {
  ExpertShape shape;
  shape.projections[1] = testing::Matrix(GetParam(), 512, 80);
  const ToyLayer toy(shape, 2, 3);
  const Recipe recipe{{Project(kUp, 0)}};
  const auto stack = Filled(toy, Cpu());
  Rng rng(10);
  const std::vector<float> x = RandomFloats(512 * 300, rng);
  const auto rows = [&](std::uint32_t count) {
    std::vector<SlotPair> pairs;
    for (std::uint32_t i = 0; i < count; ++i) pairs.push_back({i, 1});
    return RunPairs(*stack, recipe, x, 300, pairs);
  };
  std::vector<float> few;
  for (std::uint32_t i = 0; i + 1 < kManyRows; ++i) {
    const std::vector<float> alone = RunPairs(*stack, recipe, x, 300, {{i, 1}});
    few.insert(few.end(), alone.begin(), alone.end());
  }
  for (const std::uint32_t count : {2u, 3u, kManyRows - 1})
    EXPECT_TRUE(SameBits(std::span(few).first(count * 80), rows(count)));
  const std::vector<float> many = rows(300);
  for (const std::uint32_t count : {kManyRows, 9u, 15u, 16u, 17u, 31u, 33u, 100u, 256u, 257u}) {
    EXPECT_TRUE(SameBits(std::span(many).first(count * 80), rows(count))) << count << " rows";
  }
}

std::string TypeName(const ::testing::TestParamInfo<ggml_type>& info) {
  return ggml_type_name(info.param);
}

INSTANTIATE_TEST_SUITE_P(Weights, EveryType,
                         ::testing::Values(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
                                           GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q2_K,
                                           GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
                                           GGML_TYPE_MXFP4, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_TQ1_0,
                                           GGML_TYPE_TQ2_0),
                         TypeName);

// ---- every recipe

TEST(Recipes, LargeQuantisedLayer) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, 3072, 1024), 5, 3);
  ExpectHostsBits(toy, Recipe::Swiglu(), HostSwiglu, 3, 4);
}

TEST(Recipes, GatedUnits) {
  for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    const ToyLayer toy(GatedShape(type, type, 128, 96), 6, 4);
    const std::pair<GluFn, ggml_glu_op> units[] = {{GluFn::kReglu, GGML_GLU_OP_REGLU},
                                                   {GluFn::kGeglu, GGML_GLU_OP_GEGLU},
                                                   {GluFn::kSwiglu, GGML_GLU_OP_SWIGLU},
                                                   {GluFn::kGegluErf, GGML_GLU_OP_GEGLU_ERF},
                                                   {GluFn::kGegluQuick, GGML_GLU_OP_GEGLU_QUICK}};
    for (const auto& [fn, op] : units) {
      const Recipe recipe{{Project(kUp, 0), Project(kGate, 0), Glu(fn, 2, 1), Project(kDown, 3)}};
      ExpectHostsBits(
          toy, recipe,
          [op](const HostLayer::Graph& g) {
            ggml_tensor* up = g.Project(kUp, g.x);
            return g.Project(kDown, ggml_glu_split(g.context, g.Project(kGate, g.x), up, op));
          },
          3, 5);
    }
  }
}

TEST(Recipes, SwigluOaiWithBiases) {
  const ToyLayer toy(GatedShape(GGML_TYPE_MXFP4, GGML_TYPE_MXFP4, 96, 64, true), 6, 5);
  const Recipe recipe{{Project(kUp, 0), Bias(kUp, 1), Project(kGate, 0), Bias(kGate, 3),
                       Glu(GluFn::kSwigluOai, 4, 2, 1.702f, 7.0f), Project(kDown, 5), Bias(kDown, 6)}};
  ExpectHostsBits(
      toy, recipe,
      [](const HostLayer::Graph& g) {
        ggml_tensor* up = g.Bias(kUp, g.Project(kUp, g.x));
        ggml_tensor* gate = g.Bias(kGate, g.Project(kGate, g.x));
        return g.Bias(kDown, g.Project(kDown, ggml_swiglu_oai(g.context, gate, up, 1.702f, 7.0f)));
      },
      4, 5);
}

TEST(Recipes, SwigluClamp) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 64), 6, 6);
  const Recipe recipe{{Project(kUp, 0), Project(kGate, 0), Glu(GluFn::kSwigluClamp, 2, 1, 0, 0.5f), Project(kDown, 3)}};
  ExpectHostsBits(
      toy, recipe,
      [](const HostLayer::Graph& g) {
        ggml_tensor* up = g.Project(kUp, g.x);
        return g.Project(kDown, ggml_swiglu_clamp(g.context, g.Project(kGate, g.x), up, 0.5f));
      },
      2, 4);
}

TEST(Recipes, SquaredReluWithoutGate) {
  ExpertShape shape = GatedShape(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 96);
  shape.projections[0].reset();
  const Recipe recipe{{Project(kUp, 0), Unary(UnaryFn::kRelu, 1), {.op = StepOp::kSquare, .a = 2}, Project(kDown, 3)}};
  ExpectHostsBits(
      ToyLayer(shape, 6, 7), recipe,
      [](const HostLayer::Graph& g) {
        return g.Project(kDown, ggml_sqr(g.context, ggml_relu(g.context, g.Project(kUp, g.x))));
      },
      3, 4);
}

TEST(Recipes, MergedGateAndUpAsViews) {
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q4_K}) {
    const ToyLayer toy(MergedShape(type, type, 256, 256), 5, 8);
    const auto half = [](const HostLayer::Graph& g, ggml_tensor* row, int which) {
      const std::int64_t n_ff = row->ne[0] / 2;
      return ggml_view_3d(g.context, row, n_ff, row->ne[1], row->ne[2], row->nb[1], row->nb[2],
                          static_cast<std::size_t>(which * n_ff) * sizeof(float));
    };
    const Recipe swiglu{{Project(kGateUp, 0), Half(1, 0), Half(1, 1), Glu(GluFn::kSwiglu, 2, 3), Project(kDown, 4)}};
    ExpectHostsBits(
        toy, swiglu,
        [&](const HostLayer::Graph& g) {
          ggml_tensor* both = g.Project(kGateUp, g.x);
          return g.Project(kDown, ggml_swiglu_split(g.context, half(g, both, 0), half(g, both, 1)));
        },
        3, 5);

    // Other readers of a half than a gated unit get a copy of it; the numbers are the same.
    const Recipe by_hand{{Project(kGateUp, 0),
                          Half(1, 0),
                          Half(1, 1),
                          Unary(UnaryFn::kGelu, 2),
                          {.op = StepOp::kMul, .a = 4, .b = 3},
                          Project(kDown, 5)}};
    ExpectHostsBits(
        toy, by_hand,
        [&](const HostLayer::Graph& g) {
          ggml_tensor* both = g.Project(kGateUp, g.x);
          return g.Project(kDown, ggml_mul(g.context, ggml_gelu(g.context, half(g, both, 0)), half(g, both, 1)));
        },
        3, 5);
  }
}

TEST(Recipes, OneRowsTwoHalves) {
  const ToyLayer toy(MergedShape(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 64), 5, 9);
  for (const bool swapped : {false, true}) {
    Step both = Glu(GluFn::kSwiglu, 1, 1);
    both.swapped = swapped;
    ExpectHostsBits(
        toy, Recipe{{Project(kGateUp, 0), both, Project(kDown, 2)}},
        [swapped](const HostLayer::Graph& g) {
          ggml_tensor* row = g.Project(kGateUp, g.x);
          return g.Project(kDown, swapped ? ggml_swiglu_swapped(g.context, row) : ggml_swiglu(g.context, row));
        },
        2, 4);
  }
  // With parameters ggml offers the split form only; halves of the row are its operands.
  for (const bool swapped : {false, true}) {
    Step both = Glu(GluFn::kSwigluOai, 1, 1, 1.702f, 7.0f);
    both.swapped = swapped;
    ExpectHostsBits(
        toy, Recipe{{Project(kGateUp, 0), both, Project(kDown, 2)}},
        [swapped](const HostLayer::Graph& g) {
          ggml_tensor* row = g.Project(kGateUp, g.x);
          ggml_tensor* first = ggml_view_3d(g.context, row, 64, row->ne[1], row->ne[2], row->nb[1], row->nb[2], 0);
          ggml_tensor* second = ggml_view_3d(g.context, row, 64, row->ne[1], row->ne[2], row->nb[1], row->nb[2], 256);
          return g.Project(kDown, swapped ? ggml_swiglu_oai(g.context, second, first, 1.702f, 7.0f)
                                          : ggml_swiglu_oai(g.context, first, second, 1.702f, 7.0f));
        },
        2, 4);
  }
}

TEST(Recipes, ScalesPerExpert) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 256, 256, false, true), 6, 10);
  const Recipe recipe{{Project(kUp, 0), Scale(kUp, 1), Project(kGate, 0), Scale(kGate, 3), Glu(GluFn::kSwiglu, 4, 2),
                       Project(kDown, 5), Scale(kDown, 6)}};
  ExpectHostsBits(
      toy, recipe,
      [](const HostLayer::Graph& g) {
        ggml_tensor* up = g.Scale(kUp, g.Project(kUp, g.x));
        ggml_tensor* gate = g.Scale(kGate, g.Project(kGate, g.x));
        return g.Scale(kDown, g.Project(kDown, ggml_swiglu_split(g.context, gate, up)));
      },
      3, 5);
}

TEST(Recipes, Clamps) {
  const ToyLayer toy(GatedShape(GGML_TYPE_F16, GGML_TYPE_F16, 64, 96), 6, 11);
  const Recipe before{{Project(kUp, 0), Clamp(1, -0.5f, 0.5f), Project(kGate, 0), Clamp(3, -INFINITY, 0.5f),
                       Glu(GluFn::kSwiglu, 4, 2), Project(kDown, 5)}};
  ExpectHostsBits(
      toy, before,
      [](const HostLayer::Graph& g) {
        ggml_tensor* up = ggml_clamp(g.context, g.Project(kUp, g.x), -0.5f, 0.5f);
        ggml_tensor* gate = ggml_clamp(g.context, g.Project(kGate, g.x), -INFINITY, 0.5f);
        return g.Project(kDown, ggml_swiglu_split(g.context, gate, up));
      },
      3, 4);
  const Recipe after{{Project(kUp, 0),
                      Clamp(1, -0.5f, 0.5f),
                      Project(kGate, 0),
                      Unary(UnaryFn::kSilu, 3),
                      Clamp(4, -INFINITY, 0.4f),
                      {.op = StepOp::kMul, .a = 5, .b = 2},
                      Project(kDown, 6)}};
  ExpectHostsBits(
      toy, after,
      [](const HostLayer::Graph& g) {
        ggml_tensor* up = ggml_clamp(g.context, g.Project(kUp, g.x), -0.5f, 0.5f);
        ggml_tensor* gate = ggml_clamp(g.context, ggml_silu(g.context, g.Project(kGate, g.x)), -INFINITY, 0.4f);
        return g.Project(kDown, ggml_mul(g.context, gate, up));
      },
      3, 4);
}

TEST(Recipes, AClampLeavesItsOperandAlone) {
  const ToyLayer toy(GatedShape(GGML_TYPE_F32, GGML_TYPE_F32, 64, 32), 4, 12);
  const Recipe clamped{{Project(kUp, 0), Clamp(1, 0, 0), {.op = StepOp::kAdd, .a = 1, .b = 2}, Project(kDown, 3)}};
  const Recipe plain{{Project(kUp, 0), Project(kDown, 1)}};
  const auto stack = Filled(toy, Cpu());
  Rng rng(1);
  const std::vector<float> x = RandomFloats(64, rng);
  const std::vector<SlotPair> pairs{{0, 0}, {0, 3}};
  EXPECT_TRUE(SameBits(RunPairs(*stack, plain, x, 1, pairs), RunPairs(*stack, clamped, x, 1, pairs)));
}

TEST(Recipes, SingleProjection) {
  ExpertShape shape;
  shape.projections[2] = testing::Matrix(GGML_TYPE_Q4_0, 96, 64);
  ExpectHostsBits(
      ToyLayer(shape, 6, 13), Recipe{{Project(kDown, 0)}},
      [](const HostLayer::Graph& g) { return g.Project(kDown, g.x); }, 4, 6);
}

TEST(Recipes, InputReadByMoreThanProjections) {  // rows can not be shared between pairs then
  const ToyLayer toy(GatedShape(GGML_TYPE_F16, GGML_TYPE_F16, 64, 64), 6, 14);
  const Recipe recipe{{Unary(UnaryFn::kTanh, 0),
                       Project(kUp, 1),
                       {.op = StepOp::kFactor, .a = 2, .p0 = 0.5f, .p1 = 1.5f},
                       {.op = StepOp::kAdd, .a = 3, .b = 0},
                       Project(kDown, 4)}};
  ExpectHostsBits(
      toy, recipe,
      [](const HostLayer::Graph& g) {
        ggml_tensor* up = g.Project(kUp, ggml_tanh(g.context, g.x));
        ggml_tensor* x = ggml_repeat_4d(g.context, g.x, 64, up->ne[1], up->ne[2], 1);
        return g.Project(kDown, ggml_add(g.context, ggml_scale_bias(g.context, up, 0.5f, 1.5f), x));
      },
      3, 4);
}

TEST(Recipes, EveryUnaryFunction) {
  const std::pair<UnaryFn, ggml_unary_op> functions[] = {{UnaryFn::kRelu, GGML_UNARY_OP_RELU},
                                                         {UnaryFn::kSilu, GGML_UNARY_OP_SILU},
                                                         {UnaryFn::kGelu, GGML_UNARY_OP_GELU},
                                                         {UnaryFn::kGeluQuick, GGML_UNARY_OP_GELU_QUICK},
                                                         {UnaryFn::kGeluErf, GGML_UNARY_OP_GELU_ERF},
                                                         {UnaryFn::kSigmoid, GGML_UNARY_OP_SIGMOID},
                                                         {UnaryFn::kTanh, GGML_UNARY_OP_TANH},
                                                         {UnaryFn::kNeg, GGML_UNARY_OP_NEG},
                                                         {UnaryFn::kExp, GGML_UNARY_OP_EXP},
                                                         {UnaryFn::kSoftplus, GGML_UNARY_OP_SOFTPLUS},
                                                         {UnaryFn::kAbs, GGML_UNARY_OP_ABS},
                                                         {UnaryFn::kElu, GGML_UNARY_OP_ELU},
                                                         {UnaryFn::kHardswish, GGML_UNARY_OP_HARDSWISH},
                                                         {UnaryFn::kHardsigmoid, GGML_UNARY_OP_HARDSIGMOID},
                                                         {UnaryFn::kStep, GGML_UNARY_OP_STEP},
                                                         {UnaryFn::kSgn, GGML_UNARY_OP_SGN}};
  static_assert(std::size(functions) == kUnaryFns);
  ExpertShape shape;
  shape.projections[1] = testing::Matrix(GGML_TYPE_F32, 32, 40);
  const ToyLayer toy(shape, 3, 15);
  for (const auto& [fn, op] : functions) {
    ExpectHostsBits(
        toy, Recipe{{Project(kUp, 0), Unary(fn, 1)}},
        [op](const HostLayer::Graph& g) { return ggml_unary(g.context, g.Project(kUp, g.x), op); }, 2, 3);
  }
}

}  // namespace
}  // namespace linkcpp
