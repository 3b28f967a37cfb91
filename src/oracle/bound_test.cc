#include "oracle/bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/rng.h"
#include "oracle/half.h"
#include "oracle/layer.h"

namespace linkcpp {
namespace {

// ---- a float32 kernel in the style of ggml's CPU code, for tests only: rows in their format, float sums, float silu

std::vector<float> ToFormat(RowFormat format, std::vector<float> x) {
  const bool k = format == RowFormat::kQ8_K;
  if (format == RowFormat::kF16) {
    for (float& v : x) v = FromHalf(ToHalf(v));
  } else if (format == RowFormat::kBf16) {
    for (float& v : x) v = FromBfloat(ToBfloat(v));
  } else if (format != RowFormat::kF32) {
    const std::size_t block = k ? 256 : 32;
    for (std::size_t at = 0; at < x.size(); at += block) {
      float largest = 0;
      for (std::size_t i = at; i < at + block; ++i) largest = std::fabs(x[i]) > std::fabs(largest) ? x[i] : largest;
      if (largest == 0) continue;
      const float inverse = k ? -127 / largest : 127 / std::fabs(largest);
      const float step = k ? 1 / inverse : FromHalf(ToHalf(std::fabs(largest) / 127));
      for (std::size_t i = at; i < at + block; ++i) x[i] = std::nearbyintf(x[i] * inverse) * step;
    }
  }
  return x;
}

double RowSum(std::span<const float> row) {
  double sum = 0;
  for (const float v : row) sum += v;
  return sum;
}

// What Q8_1 carries as the sum of a block: quants times the step before it became a half; then a half.
float BlockSum(std::span<const float> x) {
  float largest = 0, quants = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  if (largest == 0) return 0;
  for (const float v : x) quants += std::nearbyintf(v * (127 / largest));
  return FromHalf(ToHalf(quants * (largest / 127)));
}

std::vector<float> FloatProject(const OracleMatrix& matrix, const std::vector<float>& x) {
  const RowFormat format = matrix.layout.cpu_rows;
  const std::vector<float> row = ToFormat(format, x);
  const bool floats = format == RowFormat::kF32 || format == RowFormat::kF16 || format == RowFormat::kBf16;
  const std::uint32_t run = floats ? 1 : 32;  // 8-bit rows are summed in integers first
  std::vector<float> y(matrix.n_out);
  for (std::uint32_t j = 0; j < matrix.n_out; ++j) {
    for (std::uint32_t at = 0; at < matrix.n_in; at += run) {
      double part = 0;
      for (std::uint32_t i = at; i < at + run; ++i) part += double{matrix.Row(j)[i]} * row[i];
      if (format == RowFormat::kQ8_1) {  // offsets are multiplied with the block's own sum
        const float offset = matrix.offsets[(std::size_t{j} * matrix.n_in + at) / 32];
        part += offset * (BlockSum(std::span(x).subspan(at, 32)) - RowSum(std::span(row).subspan(at, 32)));
      }
      y[j] += static_cast<float>(part);
    }
  }
  return y;
}

std::vector<float> FloatSwiglu(const OracleExpert& expert, const std::vector<float>& x) {
  const auto gate = FloatProject(*expert.Find(Projection::kGate), x);
  auto h = FloatProject(*expert.Find(Projection::kUp), x);
  for (std::size_t i = 0; i < h.size(); ++i) h[i] *= gate[i] / (1 + std::exp(-gate[i]));
  return FloatProject(*expert.Find(Projection::kDown), h);
}

// Random weights of a type: random bytes with plausible half-precision scales.
OracleMatrix RandomMatrix(const WeightLayout& layout, std::uint32_t n_in, std::uint32_t n_out, Rng& rng) {
  std::vector<std::byte> bytes(std::size_t{n_in} * n_out / layout.block_elements * layout.block_bytes);
  for (auto& b : bytes) b = static_cast<std::byte>(rng.Next());
  const auto put = [&](std::size_t at, std::uint16_t half) {
    bytes[at] = static_cast<std::byte>(half);
    bytes[at + 1] = static_cast<std::byte>(half >> 8);
  };
  for (std::size_t at = 0; at < bytes.size(); at += layout.block_bytes) {
    const auto d = ToHalf(static_cast<float>(1e-3 * (0.5 + rng.Uniform())));
    switch (layout.type) {
      case WeightType::kF32: {
        const auto w = std::bit_cast<std::array<std::byte, 4>>(static_cast<float>(0.02 * Gaussian(rng)));
        std::ranges::copy(w, bytes.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
      case WeightType::kF16: put(at, ToHalf(static_cast<float>(0.02 * Gaussian(rng)))); break;
      case WeightType::kBF16: put(at, ToBfloat(static_cast<float>(0.02 * Gaussian(rng)))); break;
      case WeightType::kMXFP4: bytes[at] = std::byte{118}; break;
      case WeightType::kQ2_K: put(at + 80, d), put(at + 82, d); break;
      case WeightType::kQ3_K: put(at + 108, d); break;
      case WeightType::kQ4_1:
      case WeightType::kQ5_1: put(at, d), put(at + 2, d | 0x8000); break;
      case WeightType::kQ4_K:
      case WeightType::kQ5_K: put(at, d), put(at + 2, d); break;
      case WeightType::kQ6_K: put(at + 208, d); break;
      default: put(at, d); break;
    }
  }
  return OracleMatrix::Make("random", std::to_underlying(layout.type), n_in, n_out, bytes).value();
}

OracleExpert RandomExpert(const WeightLayout& layout, Rng& rng) {
  OracleExpert expert;
  expert.projections[static_cast<std::size_t>(Projection::kGate)] = RandomMatrix(layout, 512, 256, rng);
  expert.projections[static_cast<std::size_t>(Projection::kUp)] = RandomMatrix(layout, 512, 256, rng);
  expert.projections[static_cast<std::size_t>(Projection::kDown)] = RandomMatrix(layout, 256, 512, rng);
  return expert;
}

std::vector<float> GaussianRow(std::size_t n, Rng& rng, double outliers = 0) {
  std::vector<float> x;
  for (std::size_t i = 0; i < n; ++i) {
    x.push_back(static_cast<float>(Gaussian(rng) * (rng.Uniform() < outliers ? 5 : 1)));
  }
  return x;
}

class EveryType : public testing::TestWithParam<WeightLayout> {};

const KernelModel& Cpu() {
  return KernelModels(false)[0];
}

TEST_P(EveryType, AFloatKernelStaysInsideAllBounds) {
  Rng rng(17);
  const OracleExpert expert = RandomExpert(GetParam(), rng);
  BoundCheck check;
  for (int r = 0; r < 6; ++r) {
    const auto x = GaussianRow(512, rng, r % 2 == 0 ? 0.01 : 0);
    check.Add(BoundExpert(Recipe::Swiglu(), expert, x, Cpu()).value(), FloatSwiglu(expert, x));
  }
  EXPECT_LE(check.over_likely(), 1);
  EXPECT_LE(check.over_worst(), 1);
  EXPECT_LE(check.over_bound(), 1);
  EXPECT_TRUE(check.Holds());
  // The bounds are not merely large: what the row format does is explained, all but a hundredth of its power.
  if (GetParam().cpu_rows != RowFormat::kF32) {
    EXPECT_GT(check.over_bound(), 0.5);
    EXPECT_LT(check.replayed().Nmse(), check.exact().Nmse() / 100);
    EXPECT_NEAR(check.explained().Nmse() / check.exact().Nmse(), 1, 0.1);
  }
}

// One output row of one matrix wrong by a sub-block's scale is far below row rounding, but not below the likely bound.
TEST_P(EveryType, OneWrongRunOfWeightsIsOutside) {
  Rng rng(18);
  const OracleExpert expert = RandomExpert(GetParam(), rng);
  OracleExpert wrong = expert;
  auto& down = *wrong.projections[static_cast<std::size_t>(Projection::kDown)];
  for (std::size_t i = 0; i < 16; ++i) down.weights[1000 * 16 + i] *= 1.5f;
  BoundCheck check;
  for (int r = 0; r < 3; ++r) {
    const auto x = GaussianRow(512, rng);
    check.Add(BoundExpert(Recipe::Swiglu(), expert, x, Cpu()).value(), FloatSwiglu(wrong, x));
  }
  EXPECT_GT(check.over_likely(), 1);
  EXPECT_FALSE(check.Holds());
}

INSTANTIATE_TEST_SUITE_P(Types, EveryType, testing::ValuesIn(AllWeightLayouts().begin(), AllWeightLayouts().end()),
                         [](const auto& type) { return std::string(type.param.name); });

TEST(Bound, ANanIsOutside) {
  Rng rng(5);
  const OracleExpert expert = RandomExpert(*LayoutNamed("Q8_0"), rng);
  const auto x = GaussianRow(512, rng);
  auto y = FloatSwiglu(expert, x);
  y[7] = std::nanf("");
  BoundCheck check;
  check.Add(BoundExpert(Recipe::Swiglu(), expert, x, Cpu()).value(), y);
  EXPECT_FALSE(check.Holds());
}

// All elements just under half a step off, all in the same direction, all weights one: errors add up, none cancels.
// A step in the middle between two halves may become either, and then all 32 elements move together. Weights and row
// are of one sign, so the moves add up as far as they can.
TEST(Bound, AStepBetweenTwoHalvesMovesItsBlockTogether) {
  OracleExpert expert;
  OracleMatrix ones{.layout = *LayoutOf(0), .n_in = 32, .n_out = 1, .weights = std::vector<float>(32, 1.0f)};
  expert.projections[static_cast<std::size_t>(Projection::kUp)] = ones;
  const Recipe up{.steps = {Step{.op = StepOp::kProject, .projection = Projection::kUp}}};
  const float low = 1.0f, high = FromHalf(0x3c01), middle = (low + high) / 2;
  std::vector<float> x(32, 100 * middle);
  x[0] = 127 * middle;
  const KernelModel model{.name = "q8_0", .rows = RowFormat::kQ8_0};
  const auto reference = BoundExpert(up, expert, x, model);
  ASSERT_TRUE(reference.has_value());
  for (const float step : {low, high}) {
    const std::array<float, 1> y{(127 + 31 * 100) * step};
    BoundCheck check;
    check.Add(*reference, y);
    EXPECT_TRUE(check.Holds()) << "step " << step << ": " << check.over_likely();
  }
}

TEST(Bound, TheWorstBoundHoldsForRowsMadeToHurt) {
  const std::vector<std::uint16_t> ones(512, 0x3c00);
  OracleExpert expert;
  auto& up = expert.projections[static_cast<std::size_t>(Projection::kUp)];
  up = OracleMatrix::Make("up", 1, 512, 1, std::as_bytes(std::span(ones))).value();
  up->layout.cpu_rows = RowFormat::kQ8_0;
  std::vector<float> x(512, 0.49f);
  for (std::size_t i = 0; i < x.size(); i += 32) x[i] = 127;
  const Recipe recipe{{{.op = StepOp::kProject, .projection = Projection::kUp}}};
  const auto bound = BoundExpert(recipe, expert, x, Cpu()).value();
  const std::vector<float> y = FloatProject(*up, x);
  const double error = std::fabs(double{y[0]} - bound.exact[0]);
  EXPECT_NEAR(error, 496 * 0.49, 1);
  EXPECT_LT(error, bound.worst[0]);
  EXPECT_GT(error, bound.worst[0] / 2);
  EXPECT_LE(std::fabs(double{y[0]} - bound.replayed[0]), bound.likely[0]);
}

TEST(Rows, AReplayedRowIsTheFormatsOwn) {
  Rng rng(9);
  for (const RowFormat format : {RowFormat::kF16, RowFormat::kBf16, RowFormat::kQ8_0, RowFormat::kQ8_K}) {
    const auto x = GaussianRow(512, rng, 0.01);
    const auto expected = ToFormat(format, x);
    const UncertainRow row{std::vector<double>(x.begin(), x.end()), std::vector<double>(512), std::vector<double>(512)};
    const UncertainRow replayed = ReplayRow(format, row);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Where the kernel could round the other way, `worst` says so.
      EXPECT_NEAR(replayed.value[i], expected[i], replayed.worst[i] + 1e-7 * std::fabs(expected[i]))
          << RowFormatName(format) << i;
    }
    EXPECT_LT(std::ranges::count_if(replayed.worst, [](double w) { return w > 1e-4; }), 5);
  }
}

TEST(Rows, ARowOfZerosStaysZero) {
  const UncertainRow zero{std::vector<double>(256), std::vector<double>(256), std::vector<double>(256)};
  for (const RowFormat format : {RowFormat::kQ8_0, RowFormat::kQ8_K, RowFormat::kF16}) {
    EXPECT_EQ(std::ranges::max(ReplayRow(format, zero).value), 0);
    EXPECT_LT(std::ranges::max(RoundRow(format, zero).worst), 1e-5);
  }
}

}  // namespace
}  // namespace linkcpp
