#include "kernel/recipe_plan.h"

#include <gtest/gtest.h>

#include <limits>

namespace linkcpp {
namespace {

ExpertShape Shape() {  // 64 -> 32 -> 64, type 0: f32
  ExpertShape shape;
  shape.projections[0] = ProjectionShape{.n_in = 64, .n_out = 32, .has_bias = true};
  shape.projections[1] = ProjectionShape{.n_in = 64, .n_out = 32, .has_scale = true};
  shape.projections[2] = ProjectionShape{.n_in = 32, .n_out = 64};
  return shape;
}

Step Project(Projection projection, std::uint8_t a) {
  return {.op = StepOp::kProject, .projection = projection, .a = a};
}

std::string WhyNot(const Recipe& recipe) {
  const auto plan = PlanRecipe(recipe, Shape());
  if (plan) return "accepted";
  EXPECT_EQ(plan.error().code, FaultCode::kRefused);
  return plan.error().text;
}

constexpr Projection kGate = Projection::kGate;
constexpr Projection kUp = Projection::kUp;
constexpr Projection kDown = Projection::kDown;

TEST(RecipePlan, LengthsOfTheUsualRecipe) {
  const auto plan = PlanRecipe(Recipe::Swiglu(), Shape());
  ASSERT_TRUE(plan) << plan.error().text;
  EXPECT_EQ(plan->lengths, (std::vector<std::uint32_t>{64, 32, 32, 32, 64}));
  EXPECT_TRUE(plan->input_only_projected);
  EXPECT_EQ(plan->floats_per_pair(), 64u + 32 + 32 + 32 + 64);
}

TEST(RecipePlan, InputLengthIsFoundThroughOtherSteps) {
  const Step half{.op = StepOp::kHalf, .fn = 1, .a = 0};
  const Step square{.op = StepOp::kSquare, .a = 1};
  const auto plan = PlanRecipe(Recipe{{half, square, Project(kUp, 2)}}, Shape());
  ASSERT_TRUE(plan) << plan.error().text;
  EXPECT_EQ(plan->lengths, (std::vector<std::uint32_t>{128, 64, 64, 32}));
  EXPECT_FALSE(plan->input_only_projected);
}

TEST(RecipePlan, RefusalsSayWhichStepAndWhy) {
  const Step glu{.op = StepOp::kGlu, .fn = 2, .a = 2, .b = 1};
  EXPECT_EQ(WhyNot(Recipe{}), "a recipe of 0 steps; 1 to 32 are allowed");
  EXPECT_EQ(WhyNot(Recipe{std::vector<Step>(33, Project(kUp, 0))}), "a recipe of 33 steps; 1 to 32 are allowed");
  EXPECT_EQ(WhyNot(Recipe{{Project(Projection::kGateUp, 0)}}), "recipe step 0: these experts have no gate_up weight");
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), {.op = StepOp::kBias, .projection = kUp, .a = 1}}}),
            "recipe step 1: these experts have no up bias");
  EXPECT_EQ(WhyNot(Recipe{{Project(kGate, 0), {.op = StepOp::kScale, .projection = kGate, .a = 1}}}),
            "recipe step 1: these experts have no gate scale");
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), Project(kUp, 1)}}), "recipe step 1: value 1 has length 32, not 64");
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 1)}}), "recipe step 0: refers to a later value");
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), Project(kDown, 1), {.op = StepOp::kMul, .a = 1, .b = 2}}}),
            "recipe step 2: value 1 has length 32, not 64");
  EXPECT_EQ(WhyNot(Recipe{{{.op = StepOp::kSquare, .a = 0}}}), "the recipe's result uses no weight of the expert");
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), {.op = StepOp::kSquare, .a = 0}}}),
            "the recipe's result uses no weight of the expert");
  EXPECT_EQ(WhyNot(Recipe{{{.op = static_cast<StepOp>(0), .a = 0}}}), "recipe step 0: unknown operation");
  EXPECT_EQ(WhyNot(Recipe{{{.op = static_cast<StepOp>(12), .a = 0}}}), "recipe step 0: unknown operation");
  EXPECT_EQ(WhyNot(Recipe{{Project(static_cast<Projection>(4), 0)}}), "recipe step 0: unknown projection");
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), {.op = StepOp::kUnary, .fn = kUnaryFns, .a = 1}}}),
            "recipe step 1: unknown function");
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), Project(kGate, 0), {.op = StepOp::kGlu, .fn = kGluFns, .a = 1, .b = 2}}}),
            "recipe step 2: unknown gated unit");
  Step swapped = glu;
  swapped.swapped = true;
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), Project(kGate, 0), swapped}}),
            "recipe step 2: swapped makes sense for the halves of one row only");
  Step oai = glu;
  oai.fn = static_cast<std::uint8_t>(GluFn::kSwigluOai);
  oai.p1 = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), Project(kGate, 0), oai}}), "recipe step 2: the limit nan is not a limit");
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), {.op = StepOp::kClamp, .a = 1, .p0 = 2, .p1 = 1}}}),
            "recipe step 1: nothing lies between 2 and 1");
  EXPECT_EQ(WhyNot(Recipe{{Project(kUp, 0), {.op = StepOp::kHalf, .fn = 2, .a = 1}}}),
            "recipe step 1: a row has two halves");
}

TEST(RecipePlan, OddRowsHaveNoHalves) {
  ExpertShape shape;
  shape.projections[1] = ProjectionShape{.n_in = 4, .n_out = 7};
  const auto plan = PlanRecipe(Recipe{{Project(kUp, 0), {.op = StepOp::kHalf, .a = 1}}}, shape);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().text, "recipe step 1: value 1 has odd length 7, no halves");
}

TEST(RecipePlan, EndlessHalvingOfTheInputIsRefused) {
  Recipe recipe;
  for (std::uint8_t i = 0; i < 31; ++i) recipe.steps.push_back({.op = StepOp::kHalf, .a = i});
  recipe.steps.push_back(Project(kUp, 31));
  EXPECT_EQ(WhyNot(recipe), "the recipe's input row would be longer than 16777216");
}

}  // namespace
}  // namespace linkcpp
