#include "oracle/bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "oracle/activation.h"

namespace linkcpp {
namespace {

constexpr double kFloatUnit = 0x1p-24;  // relative rounding of one float32 operation

enum class Rows { kExact, kReplayed };

double Square(double x) {
  return x * x;
}

struct Uncertain {
  double value = 0, worst = 0, variance = 0;
};
Uncertain At(const UncertainRow& row, std::size_t i) {
  return {row.value[i], row.worst[i], row.variance[i]};
}

// The result of one more float operation, whose rounding is relative `unit` and uniform.
void Push(UncertainRow& row, Uncertain v, double unit = kFloatUnit) {
  const double rounding = unit * (std::fabs(v.value) + v.worst);
  row.value.push_back(v.value);
  row.worst.push_back(v.worst + rounding);
  row.variance.push_back(v.variance + Square(unit * v.value) / 3);
}

// n additions (and a few products) in a row: each partial sum is off by at most `unit` of itself.
double Gamma(double n, double unit) {
  return n * unit < 1 ? n * unit / (1 - n * unit) : std::numeric_limits<double>::infinity();
}

// ---- y = W x

UncertainRow Project(const OracleMatrix& matrix, const UncertainRow& input, const KernelModel& model, Rows rows) {
  const RowFormat format = model.rows.value_or(matrix.layout.cpu_rows);
  const UncertainRow x = rows == Rows::kExact ? RoundRow(format, input) : ReplayRow(format, input);
  const std::size_t n = matrix.n_in;
  std::vector<double> size(n);  // the largest that |x| can be
  for (std::size_t i = 0; i < n; ++i) size[i] = std::fabs(x.value[i]) + x.worst[i];

  // Sums over the runs that share an offset: a kernel adds up quants and offsets apart.
  const std::size_t n_runs = matrix.offset_run == 0 ? 0 : n / matrix.offset_run;
  std::vector<double> run_sum(n_runs), run_size(n_runs), run_worst(n_runs), run_variance(n_runs);
  for (std::size_t i = 0; i < n_runs * matrix.offset_run; ++i) {
    run_sum[i / matrix.offset_run] += x.value[i];
    run_size[i / matrix.offset_run] += size[i];
    run_worst[i / matrix.offset_run] += x.worst[i];
    run_variance[i / matrix.offset_run] += x.variance[i];
  }
  const bool carries_sums = format == RowFormat::kQ8_1 && n_runs > 0;

  // What is added up in floats: products, or whole runs of them, and a few steps more for lanes and scales.
  const bool eight_bits = format == RowFormat::kQ8_0 || format == RowFormat::kQ8_1 || format == RowFormat::kQ8_K;
  const std::size_t run = model.integer_runs && eight_bits ? 32 : 1;
  const bool halves = model.half_sums && matrix.layout.type == WeightType::kF16;
  const std::size_t in_turn = halves ? 32 : run;  // half sums are kept in 32 lanes, each adds every 32nd product
  const double terms = static_cast<double>((n + in_turn - 1) / in_turn) + 16;
  const double sum_rounding = halves ? 0x1p-11 : model.sum_rounding;
  const double gamma = Gamma(terms, sum_rounding);
  UncertainRow y;
  for (std::uint32_t j = 0; j < matrix.n_out; ++j) {
    const std::span<const float> w = matrix.Row(j);
    double sum = 0, moved = 0, sizes = 0, variance = 0, squares = 0;
    for (std::size_t at = 0; at < n; at += run) {
      double part = 0;
      for (std::size_t i = at; i < std::min(n, at + run); ++i) {
        const double weight = w[i], weight_size = std::fabs(weight);
        part += weight * x.value[i];
        moved += weight_size * x.worst[i];
        sizes += weight_size * size[i];
        variance += weight * weight * x.variance[i];
      }
      sum += part;
      squares += part * part;
    }
    const double weight_off = model.weight_rounding;
    double worst = moved;
    for (std::size_t r = 0; r < n_runs; ++r) {
      const double offset = matrix.offsets[j * n_runs + r], part = offset * run_sum[r];
      sizes += 2 * std::fabs(offset) * run_size[r];
      squares += 3 * part * part;
      if (carries_sums) {
        sum += offset * (x.sums.value[r] - run_sum[r]);
        worst += std::fabs(offset) * (x.sums.worst[r] + run_worst[r]);
        variance += offset * offset * (x.sums.variance[r] + run_variance[r]);
      }
    }
    worst += (gamma + weight_off) * sizes;
    variance += Square(weight_off) / 3 * squares;
    // Partial sums as a random walk that ends at the sum: the mean square of the k-th of n is squares k/n + (sum
    // k/n)^2.
    variance += Square(sum_rounding) / 3 * (squares * terms / 2 + sum * sum * terms / 3);
    Push(y, {sum, worst, variance});
  }
  return y;
}

// ---- functions of one element

// The slope that matters for small errors: the steeper of two chords, three standard deviations long.
double Chord(const std::function<double(double)>& f, double x, double sigma) {
  const double t = std::max(3 * sigma, 1e-6 * (1 + std::fabs(x)));
  return std::max(std::fabs(f(x + t) - f(x)), std::fabs(f(x - t) - f(x))) / t;
}

// f(a), where a kernel may round a and the result. `spread(a, e)` bounds |f(a + t) - f(a)|, |t| <= e.
Uncertain Through(const std::function<double(double)>& f, const std::function<double(double, double)>& spread,
                  Uncertain a, FunctionRounding rounding) {
  const double value = f(a.value);
  const double moved = spread(a.value, a.worst + rounding.in * (std::fabs(a.value) + a.worst) + rounding.in_least);
  const double in = rounding.in * std::fabs(a.value) + rounding.in_least;
  const double sigma = std::sqrt(a.variance + Square(in) / 3);
  const double fixed = rounding.out_least + rounding.of_input * std::fabs(a.value);
  return {value, moved + rounding.out * (std::fabs(value) + moved) + fixed + rounding.of_input * a.worst,
          Square(Chord(f, a.value, sigma) * sigma) + Square(rounding.out * std::fabs(value) + fixed) / 3};
}

Uncertain Product(Uncertain a, Uncertain b) {
  return {a.value * b.value, std::fabs(a.value) * b.worst + std::fabs(b.value) * a.worst + a.worst * b.worst,
          Square(a.value) * b.variance + Square(b.value) * a.variance + a.variance * b.variance};
}

Uncertain Gated(const Step& step, Uncertain a, Uncertain b) {
  const auto fn = static_cast<GluFn>(step.fn);
  const auto gate = [&](double v) { return GluGate(fn, v, step.p0, step.p1); };
  const auto spread = [&](double v, double e) { return GluGateSpread(fn, v, e, step.p1); };
  const auto up = [&](double v) { return GluUp(fn, v, step.p1); };
  const auto up_spread = [](double, double e) { return e; };
  return Product(Through(gate, spread, a, RoundingOf(fn)), Through(up, up_spread, b, {}));
}

UncertainRow Part(const UncertainRow& row, std::size_t begin, std::size_t length) {
  const auto cut = [&](const std::vector<double>& v) {
    return std::vector<double>(v.begin() + static_cast<std::ptrdiff_t>(begin),
                               v.begin() + static_cast<std::ptrdiff_t>(begin + length));
  };
  return UncertainRow{{cut(row.value), cut(row.worst), cut(row.variance)}, {}};
}

UncertainRow RunStep(const Step& step, const OracleExpert& expert, const std::vector<UncertainRow>& values,
                     const KernelModel& model, Rows rows) {
  const UncertainRow& a = values[step.a];
  const std::size_t n = a.value.size();
  UncertainRow out;
  switch (step.op) {
    case StepOp::kProject: return Project(*expert.Find(step.projection), a, model, rows);
    case StepOp::kHalf: return Part(a, step.fn * (n / 2), n / 2);
    case StepOp::kGlu:
      if (step.a == step.b) {
        const std::size_t half = n / 2;
        for (std::size_t i = 0; i < half; ++i) {
          const Uncertain first = At(a, i), second = At(a, half + i);
          Push(out, step.swapped ? Gated(step, second, first) : Gated(step, first, second));
        }
        return out;
      }
      for (std::size_t i = 0; i < n; ++i) Push(out, Gated(step, At(a, i), At(values[step.b], i)));
      return out;
    default: break;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const Uncertain v = At(a, i);
    switch (step.op) {
      case StepOp::kBias: {
        const double bias = expert.Find(step.projection)->bias[i];
        Push(out, {v.value + bias, v.worst, v.variance});
        break;
      }
      case StepOp::kScale: {
        const double scale = *expert.Find(step.projection)->scale;
        Push(out, {v.value * scale, v.worst * std::fabs(scale), v.variance * scale * scale});
        break;
      }
      case StepOp::kUnary: {
        const auto fn = static_cast<UnaryFn>(step.fn);
        Push(out, Through([&](double t) { return Unary(fn, t); },
                          [&](double t, double e) { return UnarySpread(fn, t, e); }, v, RoundingOf(fn)));
        break;
      }
      case StepOp::kSquare:
        Push(out, {v.value * v.value, 2 * std::fabs(v.value) * v.worst + v.worst * v.worst,
                   4 * Square(v.value) * v.variance + 2 * Square(v.variance)});
        break;
      case StepOp::kClamp: {
        const auto clamp = [&](double t) { return std::min(std::max(t, double{step.p0}), double{step.p1}); };
        Push(out,
             Through(clamp,
                     [&](double t, double e) { return std::max(clamp(t + e) - clamp(t), clamp(t) - clamp(t - e)); }, v,
                     {}));
        break;
      }
      case StepOp::kMul: Push(out, Product(v, At(values[step.b], i))); break;
      case StepOp::kAdd: {
        const Uncertain b = At(values[step.b], i);  // may share errors with a: standard deviations add
        Push(out, {v.value + b.value, v.worst + b.worst, Square(std::sqrt(v.variance) + std::sqrt(b.variance))});
        break;
      }
      case StepOp::kFactor:
        Push(out, {v.value * step.p0 + step.p1, v.worst * std::fabs(step.p0), v.variance * Square(step.p0)},
             2 * kFloatUnit);
        break;
      default: break;
    }
  }
  return out;
}

}  // namespace

std::span<const KernelModel> KernelModels(bool is_gpu, bool f16_weights) {
  // arm64 with half-precision arithmetic (armv8.2, FP16_VA) adds products with F16 weights in halves.
  static constexpr KernelModel kCpu[] = {{.name = "cpu", .integer_runs = true},
                                         {.name = "cpu, f16 sums", .integer_runs = true, .half_sums = true}};
  // A shader multiplies with float32 rows, or with halves of rows and weights, or with 8-bit rows.
  static constexpr KernelModel kGpu[] = {
      {.name = "gpu, f32 rows", .rows = RowFormat::kF32},
      {.name = "gpu, f32 rows, f16 weights", .rows = RowFormat::kF32, .weight_rounding = 0x1p-10},
      {.name = "gpu, f16 rows and weights", .rows = RowFormat::kF16, .weight_rounding = 0x1p-10},
      {.name = "gpu, bf16 rows", .rows = RowFormat::kBf16},
      {.name = "gpu, q8_1 rows", .rows = RowFormat::kQ8_1},
      {.name = "gpu, f16 rows, weights, sums",
       .rows = RowFormat::kF16,
       .weight_rounding = 0x1p-10,
       .sum_rounding = 0x1p-11},
  };
  if (is_gpu) return kGpu;
  return std::span(kCpu).first(f16_weights ? 2 : 1);
}

namespace {

UncertainRow RunRecipe(const Recipe& recipe, const OracleExpert& expert, std::span<const float> x,
                       const KernelModel& model, Rows rows) {
  std::vector<UncertainRow> values(1);
  values[0].value.assign(x.begin(), x.end());
  values[0].worst.resize(x.size());
  values[0].variance.resize(x.size());
  for (const Step& step : recipe.steps) values.push_back(RunStep(step, expert, values, model, rows));
  return std::move(values.back());
}

}  // namespace

Result<BoundedResult> BoundExpert(const Recipe& recipe, const OracleExpert& expert, std::span<const float> x,
                                  const KernelModel& model) {
  RETURN_IF_FAULT(ValueLengths(recipe, expert, x.size()));
  UncertainRow exact = RunRecipe(recipe, expert, x, model, Rows::kExact);
  UncertainRow replayed = RunRecipe(recipe, expert, x, model, Rows::kReplayed);
  std::vector<double> likely;
  for (std::size_t i = 0; i < replayed.value.size(); ++i) {
    likely.push_back(std::min(replayed.worst[i], kLikelySigmas * std::sqrt(replayed.variance[i])));
  }
  return BoundedResult{.exact = std::move(exact.value),
                       .worst = std::move(exact.worst),
                       .replayed = std::move(replayed.value),
                       .likely = std::move(likely)};
}

void BoundCheck::Add(const BoundedResult& reference, std::span<const float> result) {
  exact_.Add(std::span<const double>(reference.exact), result);
  replayed_.Add(std::span<const double>(reference.replayed), result);
  explained_.Add(std::span<const double>(reference.exact), std::span<const double>(reference.replayed));
  const auto ratio = [](double reference_value, float value, double bound) {
    const double error = std::fabs(static_cast<double>(value) - reference_value);
    if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
    return error == 0 ? 0 : error / bound;  // an infinite bound gives 0, a bound of zero infinity
  };
  for (std::size_t i = 0; i < result.size(); ++i) {
    over_bound_ = std::max(over_bound_, ratio(reference.exact[i], result[i], reference.Bound(i)));
    over_worst_ = std::max(over_worst_, ratio(reference.exact[i], result[i], reference.worst[i]));
    over_likely_ = std::max(over_likely_, ratio(reference.replayed[i], result[i], reference.likely[i]));
  }
}

}  // namespace linkcpp
