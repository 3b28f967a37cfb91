#include "oracle/expert.h"

#include <gtest/gtest.h>

#include <cmath>

#include "oracle/activation.h"
#include "oracle/metrics.h"

namespace linkcpp {
namespace {

OracleMatrix Matrix(std::uint32_t n_in, std::uint32_t n_out, std::vector<float> weights) {
  return OracleMatrix::Make("test", 0, n_in, n_out, std::as_bytes(std::span(weights))).value();
}

OracleExpert TwoByTwo() {
  OracleExpert expert;
  expert.projections[static_cast<std::size_t>(Projection::kGate)] = Matrix(2, 2, {1, 0, 0, 1});
  expert.projections[static_cast<std::size_t>(Projection::kUp)] = Matrix(2, 2, {2, 0, 0, 3});
  expert.projections[static_cast<std::size_t>(Projection::kDown)] = Matrix(2, 2, {1, 1, 1, -1});
  return expert;
}

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

TEST(Expert, SwigluIsTheFormula) {
  const double x[] = {0.5, -2};
  const auto y = RunExpert(Recipe::Swiglu(), TwoByTwo(), x).value();
  const double h0 = 0.5 * Sigmoid(0.5) * 1.0, h1 = -2 * Sigmoid(-2) * -6.0;
  EXPECT_NEAR(y[0], h0 + h1, 1e-15);
  EXPECT_NEAR(y[1], h0 - h1, 1e-15);
}

Recipe Steps(std::vector<Step> steps) {
  return Recipe{std::move(steps)};
}

TEST(Expert, EveryStep) {
  OracleExpert expert = TwoByTwo();
  auto& up = *expert.projections[static_cast<std::size_t>(Projection::kUp)];
  up.bias = {10, 20};
  up.scale = -2.0f;
  const double x[] = {0.5, -2};
  const auto run = [&](std::vector<Step> steps) { return RunExpert(Steps(std::move(steps)), expert, x).value(); };
  using V = std::vector<double>;
  EXPECT_EQ(run({{.op = StepOp::kProject, .projection = Projection::kUp}}), (V{1, -6}));
  EXPECT_EQ(run({{.op = StepOp::kBias, .projection = Projection::kUp}}), (V{10.5, 18}));
  EXPECT_EQ(run({{.op = StepOp::kScale, .projection = Projection::kUp}}), (V{-1, 4}));
  EXPECT_EQ(run({{.op = StepOp::kSquare}}), (V{0.25, 4}));
  EXPECT_EQ(run({{.op = StepOp::kClamp, .p0 = -1, .p1 = 0.25f}}), (V{0.25, -1}));
  EXPECT_EQ(run({{.op = StepOp::kMul}}), (V{0.25, 4}));
  EXPECT_EQ(run({{.op = StepOp::kAdd}}), (V{1, -4}));
  EXPECT_EQ(run({{.op = StepOp::kFactor, .p0 = 2, .p1 = 1}}), (V{2, -3}));
  EXPECT_EQ(run({{.op = StepOp::kHalf, .fn = 0}}), (V{0.5}));
  EXPECT_EQ(run({{.op = StepOp::kHalf, .fn = 1}}), (V{-2}));
  EXPECT_EQ(run({{.op = StepOp::kUnary, .fn = static_cast<std::uint8_t>(UnaryFn::kRelu)}}), (V{0.5, 0}));
  // Both halves of one row: the first is the gate, unless swapped.
  const auto reglu = static_cast<std::uint8_t>(GluFn::kReglu);
  EXPECT_EQ(run({{.op = StepOp::kGlu, .fn = reglu}}), (V{-1}));
  EXPECT_EQ(run({{.op = StepOp::kGlu, .fn = reglu, .swapped = true}}), (V{0}));
}

TEST(Expert, WhatDoesNotFitIsRefusedByName) {
  const double x[] = {1, 2, 3};
  auto refused = RunExpert(Recipe::Swiglu(), TwoByTwo(), x);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().text.find("up takes rows of 2"), std::string::npos) << refused.error().text;
  refused = RunExpert(Steps({{.op = StepOp::kProject, .projection = Projection::kGateUp}}), TwoByTwo(), x);
  EXPECT_NE(refused.error().text.find("no gate_up weights"), std::string::npos) << refused.error().text;
  refused = RunExpert(Steps({{.op = StepOp::kHalf}}), TwoByTwo(), x);
  EXPECT_NE(refused.error().text.find("no halves"), std::string::npos) << refused.error().text;
  EXPECT_FALSE(RunExpert(Recipe{}, TwoByTwo(), x).has_value());
  EXPECT_FALSE(RunExpert(Steps({{.op = StepOp::kMul, .a = 0, .b = 1}}), TwoByTwo(), x).has_value());
  const std::vector<std::byte> bytes(144);
  const auto matrix = OracleMatrix::Make("layer 3 expert 7 down", 12, 200, 1, bytes);
  ASSERT_FALSE(matrix.has_value());
  EXPECT_NE(matrix.error().text.find("layer 3 expert 7 down"), std::string::npos) << matrix.error().text;
  EXPECT_NE(matrix.error().text.find("200 elements is not a whole number of Q4_K blocks"), std::string::npos)
      << matrix.error().text;
}

TEST(Activation, KnownValues) {
  EXPECT_NEAR(Unary(UnaryFn::kSilu, 1), 0.7310585786300049, 1e-15);
  EXPECT_NEAR(Unary(UnaryFn::kGeluErf, 1), 0.8413447460685429, 1e-15);
  EXPECT_NEAR(Unary(UnaryFn::kGelu, 1), 0.8411919906082768, 1e-12);
  EXPECT_NEAR(Unary(UnaryFn::kGeluQuick, 1), Sigmoid(1.702), 1e-15);
  EXPECT_NEAR(Unary(UnaryFn::kSoftplus, 0), std::log(2), 1e-15);
  EXPECT_EQ(Unary(UnaryFn::kHardswish, 1), 4.0 / 6);
  EXPECT_EQ(Unary(UnaryFn::kHardsigmoid, -4), 0);
  EXPECT_NEAR(Unary(UnaryFn::kElu, -1), std::exp(-1) - 1, 1e-15);
  EXPECT_EQ(Unary(UnaryFn::kStep, 0), 0);
  EXPECT_EQ(Unary(UnaryFn::kSgn, -3), -1);
  EXPECT_NEAR(Glu(GluFn::kSwigluOai, 9, 9, 1.702f, 7), 7 * Sigmoid(1.702f * 7.0) * 8, 1e-12);
  EXPECT_NEAR(Glu(GluFn::kSwigluClamp, 9, -9, 0, 7), 7 * Sigmoid(7) * -7, 1e-12);
}

// UnarySpread must be above every difference it bounds: tried on a grid.
TEST(Activation, SpreadsAreNeverTooSmall) {
  for (int f = 0; f < kUnaryFns; ++f) {
    const auto fn = static_cast<UnaryFn>(f);
    for (double x = -6; x <= 6; x += 0.13) {
      for (const double e : {1e-6, 0.01, 0.3, 2.0}) {
        const double spread = UnarySpread(fn, x, e);
        for (double t = -e; t <= e; t += e / 7) {
          EXPECT_LE(std::fabs(Unary(fn, x + t) - Unary(fn, x)), spread * (1 + 1e-12) + 1e-15)
              << f << ' ' << x << ' ' << e;
        }
      }
    }
  }
  for (int f = 0; f < kGluFns; ++f) {
    const auto fn = static_cast<GluFn>(f);
    for (double a = -9; a <= 9; a += 0.17) {
      for (const double e : {1e-6, 0.01, 0.3, 2.0}) {
        const double spread = GluGateSpread(fn, a, e, 7);
        for (double t = -e; t <= e; t += e / 7) {
          EXPECT_LE(std::fabs(GluGate(fn, a + t, 1.702f, 7) - GluGate(fn, a, 1.702f, 7)), spread * (1 + 1e-12) + 1e-15);
        }
      }
    }
  }
}

TEST(Metrics, AreWhatTheyAreCalled) {
  const std::vector<double> a{3, 4}, b{3, 4.5};
  Comparison c;
  c.Add(std::span<const double>(a), std::span<const double>(b));
  EXPECT_DOUBLE_EQ(c.MaxAbs(), 0.5);
  EXPECT_DOUBLE_EQ(c.Nmse(), 0.25 / 25);
  EXPECT_DOUBLE_EQ(c.RelativeError(), 0.1);
  EXPECT_DOUBLE_EQ(c.Cosine(), 27 / (5 * std::sqrt(9 + 20.25)));
  EXPECT_TRUE(AllClose(std::span<const double>(a), std::span<const double>(b), 0.11));
  EXPECT_FALSE(AllClose(std::span<const double>(a), std::span<const double>(b), 0.09));
}

TEST(Metrics, ANanIsNeverClose) {
  const std::vector<double> a{1, 2};
  const std::vector<float> b{1, std::nanf("")};
  Comparison c;
  c.Add(std::span<const double>(a), std::span<const float>(b));
  EXPECT_EQ(c.n_not_finite(), 1u);
  EXPECT_EQ(c.Cosine(), 0);
  EXPECT_TRUE(std::isinf(c.Nmse()));
  EXPECT_FALSE(AllClose(std::span<const double>(a), std::span<const float>(b), 1e3));
  EXPECT_TRUE(BitIdentical(b, b));
  EXPECT_FALSE(BitIdentical(std::vector<float>{0.0f}, std::vector<float>{-0.0f}));
}

}  // namespace
}  // namespace linkcpp
