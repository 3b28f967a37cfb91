#include "kernel/expert_stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernel/host_layer_testing.h"

namespace linkcpp {
namespace {

using testing::GatedShape;
using testing::HostLayer;
using testing::MergedShape;
using testing::RandomFloats;
using testing::ToyLayer;

constexpr Projection kGate = Projection::kGate;
constexpr Projection kUp = Projection::kUp;
constexpr Projection kDown = Projection::kDown;
constexpr Projection kGateUp = Projection::kGateUp;

Step Project(Projection projection, std::uint8_t a) { return {.op = StepOp::kProject, .projection = projection, .a = a}; }
Step Bias(Projection projection, std::uint8_t a) { return {.op = StepOp::kBias, .projection = projection, .a = a}; }
Step Scale(Projection projection, std::uint8_t a) { return {.op = StepOp::kScale, .projection = projection, .a = a}; }
Step Glu(GluFn fn, std::uint8_t a, std::uint8_t b, float p0 = 0, float p1 = 0) {
  return {.op = StepOp::kGlu, .fn = static_cast<std::uint8_t>(fn), .a = a, .b = b, .p0 = p0, .p1 = p1};
}
Step Unary(UnaryFn fn, std::uint8_t a) { return {.op = StepOp::kUnary, .fn = static_cast<std::uint8_t>(fn), .a = a}; }
Step Half(std::uint8_t a, std::uint8_t which) { return {.op = StepOp::kHalf, .fn = which, .a = a}; }
Step Clamp(std::uint8_t a, float least, float most) { return {.op = StepOp::kClamp, .a = a, .p0 = least, .p1 = most}; }

// One thread by default: on a busy machine a second one costs more than it brings, and Purity has the threads' test.
Device& Cpu(int n_threads = 1) {
  static NullLog log;
  static std::map<int, std::unique_ptr<Device>> devices;
  std::unique_ptr<Device>& device = devices[n_threads];
  if (!device) {
    auto opened = Device::Open({.name = "cpu", .n_threads = n_threads, .backend_path = ""}, log);
    if (opened) device = std::move(*opened);
  }
  return *device;
}

ggml_backend_dev_t CpuOfGgml() {
  Cpu();  // loads the backends
  return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

std::unique_ptr<ExpertStack> Filled(const ToyLayer& toy, Device& device) {
  auto stack = ExpertStack::Create(toy.shape, toy.n_experts, device);
  EXPECT_TRUE(stack) << stack.error().text;
  if (!stack) return nullptr;
  for (std::uint32_t expert = 0; expert < toy.n_experts; ++expert) {
    const auto loaded = (*stack)->Load(expert, toy.Slabs(expert));
    EXPECT_TRUE(loaded) << loaded.error().text;
  }
  return std::move(*stack);
}

// tokens × used expert numbers, distinct within a token.
std::vector<std::int32_t> RandomIds(std::uint32_t n_experts, std::size_t used, std::size_t tokens, Rng& rng) {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> deck(n_experts);
  std::iota(deck.begin(), deck.end(), 0);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t i = 0; i < used; ++i) std::swap(deck[i], deck[i + rng.Below(n_experts - i)]);
    ids.insert(ids.end(), deck.begin(), deck.begin() + static_cast<std::ptrdiff_t>(used));
  }
  return ids;
}

std::vector<SlotPair> PairsOf(const std::vector<std::int32_t>& ids, std::size_t used) {
  std::vector<SlotPair> pairs;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    pairs.push_back({.row = static_cast<std::uint32_t>(i / used), .slot = static_cast<std::uint32_t>(ids[i])});
  }
  return pairs;
}

::testing::AssertionResult SameBits(std::span<const float> expected, std::span<const float> actual) {
  if (expected.size() != actual.size()) {
    return ::testing::AssertionFailure() << actual.size() << " numbers, not " << expected.size();
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(expected[i]) == std::bit_cast<std::uint32_t>(actual[i])) continue;
    return ::testing::AssertionFailure() << "number " << i << ": expected " << expected[i] << ", got " << actual[i];
  }
  return ::testing::AssertionSuccess();
}

std::vector<float> RunPairs(ExpertStack& stack, const Recipe& recipe, const std::vector<float>& x, std::uint32_t n_rows,
                            const std::vector<SlotPair>& pairs) {
  const auto lengths = stack.Check(recipe);
  EXPECT_TRUE(lengths) << lengths.error().text;
  if (!lengths) return {};
  std::vector<float> y(pairs.size() * lengths->n_out, std::numeric_limits<float>::quiet_NaN());
  const auto ran = stack.Run(recipe, x, n_rows, pairs, y);
  EXPECT_TRUE(ran) << ran.error().text;
  return y;
}

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

ggml_tensor* HostSwiglu(const HostLayer::Graph& g) {
  ggml_tensor* up = g.Project(kUp, g.x);
  ggml_tensor* gate = g.Project(kGate, g.x);
  return g.Project(kDown, ggml_swiglu_split(g.context, gate, up));
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
  for (const std::uint32_t count : {2u, 3u, kManyRows - 1}) EXPECT_TRUE(SameBits(std::span(few).first(count * 80), rows(count)));
  const std::vector<float> many = rows(300);
  for (const std::uint32_t count : {kManyRows, 9u, 15u, 16u, 17u, 31u, 33u, 100u, 256u, 257u}) {
    EXPECT_TRUE(SameBits(std::span(many).first(count * 80), rows(count))) << count << " rows";
  }
}

std::string TypeName(const ::testing::TestParamInfo<ggml_type>& info) { return ggml_type_name(info.param); }

INSTANTIATE_TEST_SUITE_P(Weights, EveryType,
                         ::testing::Values(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
                                           GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K,
                                           GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_MXFP4,
                                           GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_TQ1_0, GGML_TYPE_TQ2_0),
                         TypeName);

// ---- every recipe

TEST(Recipes, LargeQuantisedLayer) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, 3072, 1024), 5, 3);
  ExpectHostsBits(toy, Recipe::Swiglu(), HostSwiglu, 3, 4);
}

TEST(Recipes, GatedUnits) {
  for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    const ToyLayer toy(GatedShape(type, type, 128, 96), 6, 4);
    const std::pair<GluFn, ggml_glu_op> units[] = {
        {GluFn::kReglu, GGML_GLU_OP_REGLU},         {GluFn::kGeglu, GGML_GLU_OP_GEGLU},
        {GluFn::kSwiglu, GGML_GLU_OP_SWIGLU},       {GluFn::kGegluErf, GGML_GLU_OP_GEGLU_ERF},
        {GluFn::kGegluQuick, GGML_GLU_OP_GEGLU_QUICK}};
    for (const auto& [fn, op] : units) {
      const Recipe recipe{{Project(kUp, 0), Project(kGate, 0), Glu(fn, 2, 1), Project(kDown, 3)}};
      ExpectHostsBits(toy, recipe, [op](const HostLayer::Graph& g) {
        ggml_tensor* up = g.Project(kUp, g.x);
        return g.Project(kDown, ggml_glu_split(g.context, g.Project(kGate, g.x), up, op));
      }, 3, 5);
    }
  }
}

TEST(Recipes, SwigluOaiWithBiases) {
  const ToyLayer toy(GatedShape(GGML_TYPE_MXFP4, GGML_TYPE_MXFP4, 96, 64, true), 6, 5);
  const Recipe recipe{{Project(kUp, 0), Bias(kUp, 1), Project(kGate, 0), Bias(kGate, 3),
                       Glu(GluFn::kSwigluOai, 4, 2, 1.702f, 7.0f), Project(kDown, 5), Bias(kDown, 6)}};
  ExpectHostsBits(toy, recipe, [](const HostLayer::Graph& g) {
    ggml_tensor* up = g.Bias(kUp, g.Project(kUp, g.x));
    ggml_tensor* gate = g.Bias(kGate, g.Project(kGate, g.x));
    return g.Bias(kDown, g.Project(kDown, ggml_swiglu_oai(g.context, gate, up, 1.702f, 7.0f)));
  }, 4, 5);
}

TEST(Recipes, SwigluClamp) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 64), 6, 6);
  const Recipe recipe{{Project(kUp, 0), Project(kGate, 0), Glu(GluFn::kSwigluClamp, 2, 1, 0, 0.5f), Project(kDown, 3)}};
  ExpectHostsBits(toy, recipe, [](const HostLayer::Graph& g) {
    ggml_tensor* up = g.Project(kUp, g.x);
    return g.Project(kDown, ggml_swiglu_clamp(g.context, g.Project(kGate, g.x), up, 0.5f));
  }, 2, 4);
}

TEST(Recipes, SquaredReluWithoutGate) {
  ExpertShape shape = GatedShape(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 96);
  shape.projections[0].reset();
  const Recipe recipe{{Project(kUp, 0), Unary(UnaryFn::kRelu, 1), {.op = StepOp::kSquare, .a = 2}, Project(kDown, 3)}};
  ExpectHostsBits(ToyLayer(shape, 6, 7), recipe, [](const HostLayer::Graph& g) {
    return g.Project(kDown, ggml_sqr(g.context, ggml_relu(g.context, g.Project(kUp, g.x))));
  }, 3, 4);
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
    ExpectHostsBits(toy, swiglu, [&](const HostLayer::Graph& g) {
      ggml_tensor* both = g.Project(kGateUp, g.x);
      return g.Project(kDown, ggml_swiglu_split(g.context, half(g, both, 0), half(g, both, 1)));
    }, 3, 5);

    // Other readers of a half than a gated unit get a copy of it; the numbers are the same.
    const Recipe by_hand{{Project(kGateUp, 0), Half(1, 0), Half(1, 1), Unary(UnaryFn::kGelu, 2),
                          {.op = StepOp::kMul, .a = 4, .b = 3}, Project(kDown, 5)}};
    ExpectHostsBits(toy, by_hand, [&](const HostLayer::Graph& g) {
      ggml_tensor* both = g.Project(kGateUp, g.x);
      return g.Project(kDown, ggml_mul(g.context, ggml_gelu(g.context, half(g, both, 0)), half(g, both, 1)));
    }, 3, 5);
  }
}

TEST(Recipes, OneRowsTwoHalves) {
  const ToyLayer toy(MergedShape(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 64), 5, 9);
  for (const bool swapped : {false, true}) {
    Step both = Glu(GluFn::kSwiglu, 1, 1);
    both.swapped = swapped;
    ExpectHostsBits(toy, Recipe{{Project(kGateUp, 0), both, Project(kDown, 2)}}, [swapped](const HostLayer::Graph& g) {
      ggml_tensor* row = g.Project(kGateUp, g.x);
      return g.Project(kDown, swapped ? ggml_swiglu_swapped(g.context, row) : ggml_swiglu(g.context, row));
    }, 2, 4);
  }
  // With parameters ggml offers the split form only; halves of the row are its operands.
  for (const bool swapped : {false, true}) {
    Step both = Glu(GluFn::kSwigluOai, 1, 1, 1.702f, 7.0f);
    both.swapped = swapped;
    ExpectHostsBits(toy, Recipe{{Project(kGateUp, 0), both, Project(kDown, 2)}}, [swapped](const HostLayer::Graph& g) {
      ggml_tensor* row = g.Project(kGateUp, g.x);
      ggml_tensor* first = ggml_view_3d(g.context, row, 64, row->ne[1], row->ne[2], row->nb[1], row->nb[2], 0);
      ggml_tensor* second = ggml_view_3d(g.context, row, 64, row->ne[1], row->ne[2], row->nb[1], row->nb[2], 256);
      return g.Project(kDown, swapped ? ggml_swiglu_oai(g.context, second, first, 1.702f, 7.0f)
                                      : ggml_swiglu_oai(g.context, first, second, 1.702f, 7.0f));
    }, 2, 4);
  }
}

TEST(Recipes, ScalesPerExpert) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 256, 256, false, true), 6, 10);
  const Recipe recipe{{Project(kUp, 0), Scale(kUp, 1), Project(kGate, 0), Scale(kGate, 3), Glu(GluFn::kSwiglu, 4, 2),
                       Project(kDown, 5), Scale(kDown, 6)}};
  ExpectHostsBits(toy, recipe, [](const HostLayer::Graph& g) {
    ggml_tensor* up = g.Scale(kUp, g.Project(kUp, g.x));
    ggml_tensor* gate = g.Scale(kGate, g.Project(kGate, g.x));
    return g.Scale(kDown, g.Project(kDown, ggml_swiglu_split(g.context, gate, up)));
  }, 3, 5);
}

TEST(Recipes, Clamps) {
  const ToyLayer toy(GatedShape(GGML_TYPE_F16, GGML_TYPE_F16, 64, 96), 6, 11);
  const Recipe before{{Project(kUp, 0), Clamp(1, -0.5f, 0.5f), Project(kGate, 0), Clamp(3, -INFINITY, 0.5f),
                       Glu(GluFn::kSwiglu, 4, 2), Project(kDown, 5)}};
  ExpectHostsBits(toy, before, [](const HostLayer::Graph& g) {
    ggml_tensor* up = ggml_clamp(g.context, g.Project(kUp, g.x), -0.5f, 0.5f);
    ggml_tensor* gate = ggml_clamp(g.context, g.Project(kGate, g.x), -INFINITY, 0.5f);
    return g.Project(kDown, ggml_swiglu_split(g.context, gate, up));
  }, 3, 4);
  const Recipe after{{Project(kUp, 0), Clamp(1, -0.5f, 0.5f), Project(kGate, 0), Unary(UnaryFn::kSilu, 3),
                      Clamp(4, -INFINITY, 0.4f), {.op = StepOp::kMul, .a = 5, .b = 2}, Project(kDown, 6)}};
  ExpectHostsBits(toy, after, [](const HostLayer::Graph& g) {
    ggml_tensor* up = ggml_clamp(g.context, g.Project(kUp, g.x), -0.5f, 0.5f);
    ggml_tensor* gate = ggml_clamp(g.context, ggml_silu(g.context, g.Project(kGate, g.x)), -INFINITY, 0.4f);
    return g.Project(kDown, ggml_mul(g.context, gate, up));
  }, 3, 4);
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
  ExpectHostsBits(ToyLayer(shape, 6, 13), Recipe{{Project(kDown, 0)}},
                  [](const HostLayer::Graph& g) { return g.Project(kDown, g.x); }, 4, 6);
}

TEST(Recipes, InputReadByMoreThanProjections) {  // rows can not be shared between pairs then
  const ToyLayer toy(GatedShape(GGML_TYPE_F16, GGML_TYPE_F16, 64, 64), 6, 14);
  const Recipe recipe{{Unary(UnaryFn::kTanh, 0), Project(kUp, 1), {.op = StepOp::kFactor, .a = 2, .p0 = 0.5f, .p1 = 1.5f},
                       {.op = StepOp::kAdd, .a = 3, .b = 0}, Project(kDown, 4)}};
  ExpectHostsBits(toy, recipe, [](const HostLayer::Graph& g) {
    ggml_tensor* up = g.Project(kUp, ggml_tanh(g.context, g.x));
    ggml_tensor* x = ggml_repeat_4d(g.context, g.x, 64, up->ne[1], up->ne[2], 1);
    return g.Project(kDown, ggml_add(g.context, ggml_scale_bias(g.context, up, 0.5f, 1.5f), x));
  }, 3, 4);
}

TEST(Recipes, EveryUnaryFunction) {
  const std::pair<UnaryFn, ggml_unary_op> functions[] = {
      {UnaryFn::kRelu, GGML_UNARY_OP_RELU},           {UnaryFn::kSilu, GGML_UNARY_OP_SILU},
      {UnaryFn::kGelu, GGML_UNARY_OP_GELU},           {UnaryFn::kGeluQuick, GGML_UNARY_OP_GELU_QUICK},
      {UnaryFn::kGeluErf, GGML_UNARY_OP_GELU_ERF},    {UnaryFn::kSigmoid, GGML_UNARY_OP_SIGMOID},
      {UnaryFn::kTanh, GGML_UNARY_OP_TANH},           {UnaryFn::kNeg, GGML_UNARY_OP_NEG},
      {UnaryFn::kExp, GGML_UNARY_OP_EXP},             {UnaryFn::kSoftplus, GGML_UNARY_OP_SOFTPLUS},
      {UnaryFn::kAbs, GGML_UNARY_OP_ABS},             {UnaryFn::kElu, GGML_UNARY_OP_ELU},
      {UnaryFn::kHardswish, GGML_UNARY_OP_HARDSWISH}, {UnaryFn::kHardsigmoid, GGML_UNARY_OP_HARDSIGMOID},
      {UnaryFn::kStep, GGML_UNARY_OP_STEP},           {UnaryFn::kSgn, GGML_UNARY_OP_SGN}};
  static_assert(std::size(functions) == kUnaryFns);
  ExpertShape shape;
  shape.projections[1] = testing::Matrix(GGML_TYPE_F32, 32, 40);
  const ToyLayer toy(shape, 3, 15);
  for (const auto& [fn, op] : functions) {
    ExpectHostsBits(toy, Recipe{{Project(kUp, 0), Unary(fn, 1)}},
                    [op](const HostLayer::Graph& g) { return ggml_unary(g.context, g.Project(kUp, g.x), op); }, 2, 3);
  }
}

// ---- purity

TEST(Purity, ThreadsDoNotChangeBits) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, 512, 256), 6, 16);
  const auto one = Filled(toy, Cpu(1));
  const auto three = Filled(toy, Cpu(3));
  Rng rng(2);
  const std::vector<float> x = RandomFloats(512 * 7, rng);
  const std::vector<SlotPair> pairs = PairsOf(RandomIds(6, 4, 7, rng), 4);
  EXPECT_TRUE(SameBits(RunPairs(*one, Recipe::Swiglu(), x, 7, pairs), RunPairs(*three, Recipe::Swiglu(), x, 7, pairs)));
}

TEST(Purity, SlotNumberAndStackSizeDoNotChangeBits) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, 256, 256), 6, 17);
  const auto all = Filled(toy, Cpu());
  Rng rng(3);
  const std::vector<float> x = RandomFloats(256, rng);
  for (std::uint32_t expert = 0; expert < 6; ++expert) {
    auto alone = ExpertStack::Create(toy.shape, 1, Cpu());
    ASSERT_TRUE(alone) << alone.error().text;
    ASSERT_TRUE((*alone)->Load(0, toy.Slabs(expert)));
    EXPECT_TRUE(SameBits(RunPairs(*all, Recipe::Swiglu(), x, 1, {{0, expert}}),
                         RunPairs(**alone, Recipe::Swiglu(), x, 1, {{0, 0}})));
  }
}

TEST(Purity, ReloadedSlotForgetsItsOldExpert) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, 256, 256, true, true), 4, 18);
  const Recipe recipe{{Project(kUp, 0), Bias(kUp, 1), Scale(kUp, 2), Project(kDown, 3)}};
  const auto stack = Filled(toy, Cpu());
  Rng rng(4);
  const std::vector<float> x = RandomFloats(256, rng);
  const std::vector<float> third = RunPairs(*stack, recipe, x, 1, {{0, 3}});
  ASSERT_TRUE(stack->Load(1, toy.Slabs(3)));
  EXPECT_TRUE(SameBits(third, RunPairs(*stack, recipe, x, 1, {{0, 1}})));
  EXPECT_FALSE(SameBits(third, RunPairs(*stack, recipe, x, 1, {{0, 2}})));
}

TEST(Purity, SamePairTwiceInOneDispatch) {  // one token's table must not hold a slot twice: it takes another arrangement
  const ToyLayer toy(GatedShape(GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 256, 256), 3, 19);
  const auto stack = Filled(toy, Cpu());
  Rng rng(5);
  const std::vector<float> x = RandomFloats(256, rng);
  const std::vector<float> once = RunPairs(*stack, Recipe::Swiglu(), x, 1, {{0, 2}});
  const std::vector<float> often = RunPairs(*stack, Recipe::Swiglu(), x, 1, std::vector<SlotPair>(9, {0, 2}));
  for (std::size_t i = 0; i < 9; ++i) EXPECT_TRUE(SameBits(once, std::span(often).subspan(i * 256, 256)));
}

TEST(Purity, ManySizesShareTheComputeMemory) {  // cached graphs must notice when it moves
  const ToyLayer toy(GatedShape(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 64), 4, 20);
  const auto first = Filled(toy, Cpu());
  const auto second = Filled(toy, Cpu());
  Rng rng(6);
  const std::vector<float> x = RandomFloats(64 * 300, rng);
  const std::vector<float> expected = RunPairs(*first, Recipe::Swiglu(), x, 300, {{17, 2}});
  for (const std::size_t tokens : {1u, 2u, 40u, 3u, 300u, 1u}) {
    const std::vector<SlotPair> pairs = PairsOf(RandomIds(4, 2, tokens, rng), 2);
    RunPairs(*second, Recipe::Swiglu(), x, 300, pairs);
    EXPECT_TRUE(SameBits(expected, RunPairs(*first, Recipe::Swiglu(), x, 300, {{17, 2}})));
  }
}

TEST(Purity, LargeDispatchRunsInParts) {
  ExpertShape shape;
  shape.projections[1] = testing::Matrix(GGML_TYPE_F16, 32, 4096);
  const ToyLayer toy(shape, 3, 21);
  const auto stack = Filled(toy, Cpu());
  Recipe recipe{{Project(kUp, 0)}};  // 31 intermediate rows of 4096: half a megabyte a pair
  while (recipe.steps.size() < kMaxRecipeSteps) {
    recipe.steps.push_back(Unary(UnaryFn::kAbs, static_cast<std::uint8_t>(recipe.steps.size())));
  }
  Rng rng(7);
  const std::vector<float> x = RandomFloats(32 * 2, rng);
  std::vector<SlotPair> pairs;
  for (std::uint32_t i = 0; i < 1300; ++i) pairs.push_back({static_cast<std::uint32_t>(rng.Below(2)), i % 7 == 0 ? 2 : i % 2});
  const std::vector<float> y = RunPairs(*stack, recipe, x, 2, pairs);
  for (std::size_t i = 0; i < pairs.size(); i += 13) {
    const std::vector<float> alone = RunPairs(*stack, recipe, x, 2, {pairs[i]});
    ASSERT_TRUE(SameBits(alone, std::span(y).subspan(i * 4096, 4096))) << "pair " << i;
  }
}

// ---- strange numbers

TEST(StrangeNumbers, ComeOutAsTheHostHasThem) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K,
                               GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_MXFP4}) {
    SCOPED_TRACE(ggml_type_name(type));
    const ToyLayer toy(GatedShape(type, type, 256, 256), 3, 22);
    const auto stack = Filled(toy, Cpu());
    HostLayer host(toy, CpuOfGgml(), 1);
    Rng rng(8);
    for (const float strange : {kNan, kInf, -kInf, 3e38f, -0.0f, 1e-45f}) {
      std::vector<float> x = RandomFloats(512, rng);
      x[300] = strange;
      const std::vector<float> expected = host.Run(HostSwiglu, x, {1, 2, 1, 2}, 2);
      const std::vector<float> y = RunPairs(*stack, Recipe::Swiglu(), x, 2, {{0, 1}, {0, 2}, {1, 1}, {1, 2}});
      EXPECT_TRUE(SameBits(expected, y)) << strange;
      EXPECT_TRUE(std::ranges::all_of(std::span(y).first(512), [](float v) { return std::isfinite(v); }))
          << "the row beside " << strange;
    }
  }
}

// ---- hostile or mistaken callers

class Refusals : public ::testing::Test {
 protected:
  void SetUp() override { stack_ = Filled(toy_, Cpu()); }
  Fault RunFault(std::span<const float> x, std::uint32_t n_rows, std::vector<SlotPair> pairs, std::size_t n_y) {
    std::vector<float> y(n_y);
    const auto ran = stack_->Run(Recipe::Swiglu(), x, n_rows, pairs, y);
    EXPECT_FALSE(ran);
    return ran ? Fault{FaultCode::kBusy, ""} : ran.error();
  }
  const ToyLayer toy_{GatedShape(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 32), 3, 23};
  std::unique_ptr<ExpertStack> stack_;
  std::vector<float> x_ = std::vector<float>(128);
};

TEST_F(Refusals, RunChecksRowsSlotsAndSizes) {
  EXPECT_EQ(RunFault(x_, 2, {{2, 0}}, 64).code, FaultCode::kRefused);
  EXPECT_EQ(RunFault(x_, 2, {{0, 3}}, 64).code, FaultCode::kRefused);
  EXPECT_EQ(RunFault(x_, 2, {{0, 0xffffffffu}}, 64).code, FaultCode::kRefused);
  EXPECT_EQ(RunFault(x_, 3, {{0, 0}}, 64).code, FaultCode::kRefused);
  EXPECT_EQ(RunFault(x_, 2, {{0, 0}}, 63).code, FaultCode::kRefused);
}

TEST_F(Refusals, NoPairsIsNoWork) {
  EXPECT_TRUE(stack_->Run(Recipe::Swiglu(), x_, 2, {}, {}));
  EXPECT_TRUE(stack_->Run(Recipe::Swiglu(), {}, 0, {}, {}));
}

TEST_F(Refusals, EmptySlotIsNotComputed) {
  auto fresh = ExpertStack::Create(toy_.shape, 2, Cpu());
  ASSERT_TRUE(fresh);
  ASSERT_TRUE((*fresh)->Load(0, toy_.Slabs(0)));
  std::vector<float> y(64);
  const std::vector<SlotPair> pairs{{0, 1}};
  const auto ran = (*fresh)->Run(Recipe::Swiglu(), x_, 2, pairs, y);
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().text, "slot 1 holds no expert");
}

TEST_F(Refusals, LoadChecksSizesAndEmptiesTheSlot) {
  ExpertSlabs slabs = toy_.Slabs(0);
  EXPECT_EQ(stack_->Load(3, slabs).error().code, FaultCode::kRefused);
  slabs.projections[1].weight = slabs.projections[1].weight.first(100);
  const auto loaded = stack_->Load(0, slabs);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().text, "the up weight slab has 100 bytes, not 2176");
  EXPECT_EQ(RunFault(x_, 2, {{0, 0}}, 64).text, "slot 0 holds no expert");
  slabs = toy_.Slabs(0);
  slabs.projections[0].bias = slabs.projections[0].weight.first(4);
  EXPECT_FALSE(stack_->Load(0, slabs));
}

TEST_F(Refusals, ShapesThatGgmlWouldAbortOn) {
  const auto refused = [](const ProjectionShape& shape) {
    ExpertShape expert;
    expert.projections[0] = shape;
    const auto stack = ExpertStack::Create(expert, 2, Cpu());
    EXPECT_FALSE(stack);
    return !stack && stack.error().code == FaultCode::kRefused;
  };
  EXPECT_TRUE(refused({.type = 8, .n_in = 33, .n_out = 8}));            // Q8_0 rows are blocks of 32
  EXPECT_TRUE(refused({.type = 12, .n_in = 128, .n_out = 8}));          // Q4_K blocks of 256
  EXPECT_TRUE(refused({.type = 4, .n_in = 64, .n_out = 8}));            // a removed type
  EXPECT_TRUE(refused({.type = 15, .n_in = 256, .n_out = 8}));          // Q8_K: for activations
  EXPECT_TRUE(refused({.type = 26, .n_in = 64, .n_out = 8}));           // I32
  EXPECT_TRUE(refused({.type = 0xffffffffu, .n_in = 64, .n_out = 8}));
  EXPECT_TRUE(refused({.type = 0, .n_in = 0, .n_out = 8}));
  EXPECT_TRUE(refused({.type = 0, .n_in = 0xffffffffu, .n_out = 0xffffffffu}));
  EXPECT_FALSE(ExpertStack::Create(ExpertShape{}, 2, Cpu()));
  EXPECT_FALSE(ExpertStack::Create(toy_.shape, 0, Cpu()));
  EXPECT_FALSE(ExpertStack::Create(toy_.shape, 1u << 20, Cpu()));
}

TEST_F(Refusals, TooLargeForTheMachineIsLocal) {
  ExpertShape huge;
  huge.projections[0] = testing::Matrix(GGML_TYPE_F32, 1u << 20, 1u << 20);
  const auto stack = ExpertStack::Create(huge, 8, Cpu());
  ASSERT_FALSE(stack);
  EXPECT_EQ(stack.error().code, FaultCode::kLocal) << stack.error().text;
}

TEST_F(Refusals, RandomRecipesNeverCrash) {
  const ToyLayer toy(GatedShape(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 64, true, true), 3, 24);
  const auto stack = Filled(toy, Cpu());
  Rng rng(9);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    Recipe recipe;
    const std::size_t n_steps = 1 + rng.Below(6);
    for (std::size_t step = 0; step < n_steps; ++step) {
      // Mostly values that exist, sometimes not.
      const auto value = [&] { return static_cast<std::uint8_t>(rng.Below(8) == 0 ? rng.Next() : rng.Below(step + 1)); };
      recipe.steps.push_back({.op = static_cast<StepOp>(rng.Below(13)), .projection = static_cast<Projection>(rng.Below(5)),
                              .fn = static_cast<std::uint8_t>(rng.Below(8)), .swapped = rng.Below(4) == 0, .a = value(),
                              .b = value(), .p0 = static_cast<float>(rng.Uniform() - 0.5),
                              .p1 = static_cast<float>(rng.Uniform())});
    }
    const auto lengths = stack->Check(recipe);
    if (!lengths) {
      EXPECT_EQ(lengths.error().code, FaultCode::kRefused);
      continue;
    }
    ++accepted;
    const std::vector<float> x(lengths->n_in * 2, 0.25f);
    std::vector<float> y(lengths->n_out * 3);
    const std::vector<SlotPair> pairs{{0, 1}, {1, 1}, {0, 2}};
    EXPECT_TRUE(stack->Run(recipe, x, 2, pairs, y)) << recipe.Describe();
  }
  EXPECT_GT(accepted, 200);
}


}  // namespace
}  // namespace linkcpp
