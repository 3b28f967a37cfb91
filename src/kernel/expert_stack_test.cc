// What a stack promises besides the host's bits: purity, strange numbers, refusals.
#include "kernel/expert_stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernel/host_layer_testing.h"
#include "kernel/stack_testing.h"

namespace linkcpp {
namespace {

using namespace testing;  // NOLINT: this file is made of it

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

TEST(Purity,
     SamePairTwiceInOneDispatch) {  // one token's table must not hold a slot twice: it takes another arrangement
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
  for (std::uint32_t i = 0; i < 1300; ++i)
    pairs.push_back({static_cast<std::uint32_t>(rng.Below(2)), i % 7 == 0 ? 2 : i % 2});
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
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
                               GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_MXFP4}) {
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
  EXPECT_TRUE(refused({.type = 8, .n_in = 33, .n_out = 8}));    // Q8_0 rows are blocks of 32
  EXPECT_TRUE(refused({.type = 12, .n_in = 128, .n_out = 8}));  // Q4_K blocks of 256
  EXPECT_TRUE(refused({.type = 4, .n_in = 64, .n_out = 8}));    // a removed type
  EXPECT_TRUE(refused({.type = 15, .n_in = 256, .n_out = 8}));  // Q8_K: for activations
  EXPECT_TRUE(refused({.type = 26, .n_in = 64, .n_out = 8}));   // I32
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
      const auto value = [&] {
        return static_cast<std::uint8_t>(rng.Below(8) == 0 ? rng.Next() : rng.Below(step + 1));
      };
      recipe.steps.push_back({.op = static_cast<StepOp>(rng.Below(13)),
                              .projection = static_cast<Projection>(rng.Below(5)),
                              .fn = static_cast<std::uint8_t>(rng.Below(8)),
                              .swapped = rng.Below(4) == 0,
                              .a = value(),
                              .b = value(),
                              .p0 = static_cast<float>(rng.Uniform() - 0.5),
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
