#include "oracle/rows.h"

#include <algorithm>
#include <cmath>

#include "oracle/half.h"

namespace linkcpp {
namespace {

constexpr double kHalfUnit = 0x1p-11;   // relative rounding of a half, of an element or a block's scale
constexpr double kHalfLeast = 0x1p-25;  // absolute rounding below 2^-14
constexpr double kBfloatUnit = 0x1p-9;
constexpr double kFloatSlack = 0x1p-21;  // float32 arithmetic before an element is rounded to its step

double Square(double x) {
  return x * x;
}

// ---- blocks of 32 or 256 elements that share a step of largest / 127

struct BlockFormat {
  std::size_t elements;
  bool half_scale;  // the step is stored as a half
};
BlockFormat BlocksOf(RowFormat format) {
  return format == RowFormat::kQ8_K ? BlockFormat{256, false} : BlockFormat{32, true};
}
bool IsBlockFormat(RowFormat format) {
  return format == RowFormat::kQ8_0 || format == RowFormat::kQ8_1 || format == RowFormat::kQ8_K;
}

struct Largest {
  double value = 0;  // of |x|
  double with_error = 0;
  double worst = 0;     // the largest error in the block
  double variance = 0;  // of the largest element
};
Largest LargestOf(const UncertainRow& row, std::size_t begin, std::size_t end) {
  Largest largest;
  for (std::size_t i = begin; i < end; ++i) {
    if (std::fabs(row.value[i]) >= largest.value) {
      largest.value = std::fabs(row.value[i]);
      largest.variance = row.variance[i];
    }
    largest.with_error = std::max(largest.with_error, std::fabs(row.value[i]) + row.worst[i]);
    largest.worst = std::max(largest.worst, row.worst[i]);
  }
  return largest;
}

// x = q d + rounding, |rounding| <= d / 2. A half-precision d adds its own relative error.
void RoundBlock(BlockFormat format, UncertainRow& row, std::size_t begin, std::size_t end) {
  const double step = LargestOf(row, begin, end).with_error / 127;
  for (std::size_t i = begin; i < end; ++i) {
    const double size = std::fabs(row.value[i]) + row.worst[i];
    row.worst[i] += step / 2 + size * kFloatSlack;
    if (format.half_scale) row.worst[i] += (size + step / 2) * kHalfUnit + 127 * kHalfLeast;
  }
}

void PushZero(UncertainValues& values) {
  values.value.push_back(0);
  values.worst.push_back(0);
  values.variance.push_back(0);
}

// An element at `position` steps, known to within `worst` steps: how many steps off can its rounded value be?
double StepsOff(double position, double worst) {
  const double to_tie = std::fabs(std::fabs(position - std::nearbyint(position)) - 0.5);
  return worst < to_tie ? 0 : 1 + std::floor(worst - to_tie);
}

// The same as a standard deviation, for a position off by `sigma` steps: none when no tie is within reach, a whole step
// when one is, and what the position itself is off by on top.
double LikelyStepsOff(double position, double sigma, double slack) {
  return std::min(StepsOff(position, kLikelySigmas * sigma + slack), sigma + 1);
}

// How far half(x) may move when x moves by `error`.
double HalfMoves(double x, double error) {
  const double middle = FromHalf(ToHalf(static_cast<float>(x)));
  const double slack = std::fabs(x) * 0x1p-22;
  const double low = FromHalf(ToHalf(static_cast<float>(x - error - slack)));
  const double high = FromHalf(ToHalf(static_cast<float>(x + error + slack)));
  return std::max(high - middle, middle - low);
}

// Q8_1: the sum of the quants times the step, before the step was rounded to a half; then rounded to a half itself.
UncertainValues RoundSums(const UncertainRow& row) {
  UncertainValues sums;
  for (std::size_t at = 0; at < row.value.size(); at += 32) {
    const Largest largest = LargestOf(row, at, at + 32);
    double size = 0, sum = 0;
    for (std::size_t i = at; i < at + 32; ++i) {
      sum += row.value[i];
      size += std::fabs(row.value[i]) + row.worst[i];
    }
    sums.value.push_back(sum);
    // Beside what the elements themselves move (counted with them): 32 roundings of the step, one of the sum.
    sums.worst.push_back(2 * kHalfUnit * (size + 16 * largest.with_error / 127) + 32 * 127 * kHalfLeast);
    sums.variance.push_back(0);
  }
  return sums;
}

void ReplayBlock(BlockFormat format, UncertainRow& row, std::size_t begin, std::size_t end, bool with_sum) {
  const Largest largest = LargestOf(row, begin, end);
  if (largest.value == 0 && largest.with_error == 0) {
    if (with_sum) PushZero(row.sums);
    return;
  }
  const auto step = static_cast<float>(largest.value / 127);
  const float stored = format.half_scale ? FromHalf(ToHalf(step)) : step;
  // The kernel's own step may differ, relatively, by what the largest element may be off.
  const double off = largest.value > 0 ? largest.worst / largest.value : 1;
  const double off_sigma = largest.value > 0 ? std::sqrt(largest.variance) / largest.value : 1;
  const auto stored_off = [&](double relative) {
    if (!format.half_scale) return relative + 0x1p-23;
    return stored > 0 ? HalfMoves(step, step * relative) / stored : 1;
  };
  const double stored_worst = stored_off(off);
  // A step that crosses to the next half moves all elements of its block together, so a product moves by |sum w x| of
  // the block; by Cauchy and Schwarz that is at most sqrt(32) times what 32 independent moves would give.
  const double together = format.half_scale ? std::sqrt(static_cast<double>(format.elements)) : 1;
  const double stored_likely = stored_off(off_sigma * kLikelySigmas) * together / kLikelySigmas;
  double quants = 0, sum_worst = 0, sum_likely = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const double position = step > 0 ? row.value[i] / static_cast<double>(step) : 0;
    const double slack = std::fabs(position) * kFloatSlack;
    const double steps = step > 0 ? static_cast<double>(step) : largest.with_error / 127;
    const double worst_steps = StepsOff(position, row.worst[i] / steps + std::fabs(position) * off + slack);
    const double likely_steps =
        LikelyStepsOff(position, std::sqrt(row.variance[i]) / steps + std::fabs(position) * off_sigma, slack);
    row.value[i] = std::nearbyint(position) * stored;
    row.worst[i] = worst_steps * steps * (1 + off) + std::fabs(row.value[i]) * stored_worst;
    row.variance[i] = Square(likely_steps * steps) + Square(row.value[i] * stored_likely);
    quants += std::nearbyint(position);
    sum_worst += worst_steps * steps * (1 + off);
    sum_likely += likely_steps * steps;
  }
  if (!with_sum) return;
  const double sum = quants * static_cast<double>(step);
  row.sums.value.push_back(FromHalf(ToHalf(static_cast<float>(sum))));
  row.sums.worst.push_back(HalfMoves(sum, sum_worst + std::fabs(sum) * off));
  row.sums.variance.push_back(
      Square(HalfMoves(sum, sum_likely + kLikelySigmas * std::fabs(sum) * off_sigma) / kLikelySigmas));
}

// ---- element by element

double Ulp(RowFormat format, double value) {
  const double size = std::max(std::fabs(value), format == RowFormat::kF16 ? 0x1p-14 : 0x1p-126);
  return std::ldexp(1.0, std::ilogb(size) - (format == RowFormat::kF16 ? 10 : 7));
}

}  // namespace

UncertainRow RoundRow(RowFormat format, const UncertainRow& row) {
  UncertainRow out = row;
  const std::size_t n = row.value.size();
  if (IsBlockFormat(format)) {
    const BlockFormat block = BlocksOf(format);
    if (format == RowFormat::kQ8_1) out.sums = RoundSums(row);
    for (std::size_t at = 0; at < n; at += block.elements) RoundBlock(block, out, at, std::min(n, at + block.elements));
    return out;
  }
  if (format == RowFormat::kF32) return out;
  const double unit = format == RowFormat::kF16 ? kHalfUnit : kBfloatUnit;
  const double least = format == RowFormat::kF16 ? kHalfLeast : 0;
  for (std::size_t i = 0; i < n; ++i) {
    out.worst[i] += (std::fabs(row.value[i]) + row.worst[i]) * unit + least;
  }
  return out;
}

UncertainRow ReplayRow(RowFormat format, const UncertainRow& row) {
  UncertainRow out = row;
  const std::size_t n = row.value.size();
  if (IsBlockFormat(format)) {
    const BlockFormat block = BlocksOf(format);
    for (std::size_t at = 0; at < n; at += block.elements)
      ReplayBlock(block, out, at, std::min(n, at + block.elements), format == RowFormat::kQ8_1);
    return out;
  }
  if (format == RowFormat::kF32) return out;
  for (std::size_t i = 0; i < n; ++i) {
    const auto value = static_cast<float>(row.value[i]);
    const double ulp = Ulp(format, row.value[i]), position = row.value[i] / ulp;
    const double slack = std::fabs(position) * 0x1p-23;  // the double here is a float in the kernel
    out.value[i] = format == RowFormat::kF16 ? FromHalf(ToHalf(value)) : FromBfloat(ToBfloat(value));
    out.worst[i] = StepsOff(position, row.worst[i] / ulp + slack) * ulp;
    out.variance[i] = Square(LikelyStepsOff(position, std::sqrt(row.variance[i]) / ulp, slack) * ulp);
  }
  return out;
}

}  // namespace linkcpp
