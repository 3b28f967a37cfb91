#include "oracle/expert.h"

#include <algorithm>
#include <utility>

#include "oracle/activation.h"
#include "oracle/dequantise.h"

namespace linkcpp {
namespace {

// y = W x
std::vector<double> Project(const OracleMatrix& matrix, const std::vector<double>& x) {
  std::vector<double> y(matrix.n_out);
  for (std::uint32_t j = 0; j < matrix.n_out; ++j) {
    const std::span<const float> w = matrix.Row(j);
    double sum = 0;
    for (std::size_t i = 0; i < w.size(); ++i) sum += w[i] * x[i];
    y[j] = sum;
  }
  return y;
}

// Both inputs of a glu: two values, or the two halves of one.
struct GluInputs {
  std::span<const double> gate;
  std::span<const double> up;
};
GluInputs GluInputsOf(const Step& step, const std::vector<std::vector<double>>& values) {
  if (step.a != step.b) return {values[step.a], values[step.b]};
  const std::span<const double> row = values[step.a];
  const auto first = row.first(row.size() / 2), second = row.last(row.size() / 2);
  return step.swapped ? GluInputs{second, first} : GluInputs{first, second};
}

std::vector<double> RunStep(const Step& step, const OracleExpert& expert,
                            const std::vector<std::vector<double>>& values) {
  const std::vector<double>& a = values[step.a];
  std::vector<double> out;
  switch (step.op) {
    case StepOp::kProject: return Project(*expert.Find(step.projection), a);
    case StepOp::kBias: {
      const std::vector<float>& bias = expert.Find(step.projection)->bias;
      for (std::size_t i = 0; i < a.size(); ++i) out.push_back(a[i] + bias[i]);
      return out;
    }
    case StepOp::kScale:
      for (const double v : a) out.push_back(v * *expert.Find(step.projection)->scale);
      return out;
    case StepOp::kGlu: {
      const auto [gate, up] = GluInputsOf(step, values);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        out.push_back(Glu(static_cast<GluFn>(step.fn), gate[i], up[i], step.p0, step.p1));
      }
      return out;
    }
    case StepOp::kUnary:
      for (const double v : a) out.push_back(Unary(static_cast<UnaryFn>(step.fn), v));
      return out;
    case StepOp::kSquare:
      for (const double v : a) out.push_back(v * v);
      return out;
    case StepOp::kClamp:
      for (const double v : a) out.push_back(std::min(std::max(v, double{step.p0}), double{step.p1}));
      return out;
    case StepOp::kMul:
      for (std::size_t i = 0; i < a.size(); ++i) out.push_back(a[i] * values[step.b][i]);
      return out;
    case StepOp::kAdd:
      for (std::size_t i = 0; i < a.size(); ++i) out.push_back(a[i] + values[step.b][i]);
      return out;
    case StepOp::kFactor:
      for (const double v : a) out.push_back(v * step.p0 + step.p1);
      return out;
    case StepOp::kHalf: {
      const std::size_t half = a.size() / 2;
      out.assign(a.begin() + static_cast<std::ptrdiff_t>(step.fn * half),
                 a.begin() + static_cast<std::ptrdiff_t>((step.fn + 1) * half));
      return out;
    }
  }
  return out;
}

// Where a block of a type with offsets holds its quants: with those bytes zero, what is left is the offset.
struct OffsetLayout {
  std::uint32_t run;
  std::uint32_t quants_begin;
};
std::optional<OffsetLayout> OffsetsOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1: return OffsetLayout{32, 4};
    case WeightType::kQ5_1: return OffsetLayout{32, 4};
    case WeightType::kQ4_K: return OffsetLayout{32, 16};
    case WeightType::kQ5_K: return OffsetLayout{32, 16};
    case WeightType::kQ2_K: return OffsetLayout{16, 16};
    default: return std::nullopt;
  }
}

void FillOffsets(OracleMatrix& matrix, std::span<const std::byte> bytes) {
  const auto offset_layout = OffsetsOf(matrix.layout.type);
  if (!offset_layout.has_value()) return;
  const std::uint32_t block_bytes = matrix.layout.block_bytes, block_elements = matrix.layout.block_elements;
  matrix.offset_run = offset_layout->run;
  std::vector<std::byte> block(block_bytes);
  std::vector<float> values(block_elements);
  for (std::size_t at = 0; at < bytes.size(); at += block_bytes) {
    const auto source = bytes.subspan(at, block_bytes);
    std::ranges::copy(source, block.begin());
    // Q2_K keeps its scales, then quants, then d and dmin; the others end with their quants.
    const std::size_t end = matrix.layout.type == WeightType::kQ2_K ? 80 : block_bytes;
    std::fill(block.begin() + offset_layout->quants_begin, block.begin() + static_cast<std::ptrdiff_t>(end),
              std::byte{0});
    (void)Dequantise(matrix.layout, block, values);
    for (std::uint32_t i = 0; i < block_elements; i += offset_layout->run) matrix.offsets.push_back(values[i]);
  }
}

}  // namespace

Result<OracleMatrix> OracleMatrix::Make(std::string_view what, std::uint32_t ggml_type, std::uint32_t n_in,
                                        std::uint32_t n_out, std::span<const std::byte> bytes) {
  auto layout = LayoutOf(ggml_type);
  if (!layout.has_value()) return Wrap(layout.error(), what);
  const auto size = BytesOf(*layout, n_in, n_out);
  if (!size.has_value()) return Wrap(size.error(), what);
  if (n_in == 0 || n_out == 0 || bytes.size() != *size) {
    return Fail(FaultCode::kRefused, "{}: {} x {} of {} are {} bytes, not {}", what, n_in, n_out, layout->name, *size,
                bytes.size());
  }
  OracleMatrix matrix;
  matrix.layout = *layout;
  matrix.n_in = n_in;
  matrix.n_out = n_out;
  matrix.weights.resize(static_cast<std::size_t>(n_in) * n_out);
  if (auto done = Dequantise(*layout, bytes, matrix.weights); !done.has_value()) return Wrap(done.error(), what);
  FillOffsets(matrix, bytes);
  return matrix;
}

Result<std::vector<std::size_t>> ValueLengths(const Recipe& recipe, const OracleExpert& expert, std::size_t n_in) {
  std::vector<std::size_t> lengths{n_in};
  const auto refuse = [&](std::size_t i, std::string_view why) {
    return Fail(FaultCode::kRefused, "recipe \"{}\", step {}: {}", recipe.Describe(), i, why);
  };
  if (recipe.steps.empty()) return Fail(FaultCode::kRefused, "the recipe has no steps");
  for (std::size_t i = 0; i < recipe.steps.size(); ++i) {
    const Step& step = recipe.steps[i];
    const bool takes_two = step.op == StepOp::kGlu || step.op == StepOp::kMul || step.op == StepOp::kAdd;
    if (step.a > i || (takes_two && step.b > i)) return refuse(i, "refers to a value that does not exist yet");
    const std::size_t a = lengths[step.a];
    std::size_t length = a;
    if (step.op == StepOp::kProject || step.op == StepOp::kBias || step.op == StepOp::kScale) {
      const OracleMatrix* matrix = expert.Find(step.projection);
      const char* name = ProjectionName(step.projection);
      if (matrix == nullptr) return refuse(i, std::format("the expert has no {} weights", name));
      if (step.op == StepOp::kProject) {
        if (a != matrix->n_in) {
          return refuse(i, std::format("{} takes rows of {}, value {} has {}", name, matrix->n_in, step.a, a));
        }
        length = matrix->n_out;
      }
      if (step.op == StepOp::kBias && matrix->bias.size() != a) {
        return refuse(i,
                      std::format("{} has {} biases, value {} has {} elements", name, matrix->bias.size(), step.a, a));
      }
      if (step.op == StepOp::kScale && !matrix->scale.has_value()) {
        return refuse(i, std::format("{} has no scale", name));
      }
    } else if ((step.op == StepOp::kGlu && step.a == step.b) || step.op == StepOp::kHalf) {
      if (a % 2 != 0) return refuse(i, std::format("value {} has {} elements, which have no halves", step.a, a));
      length = a / 2;
    } else if (takes_two && lengths[step.b] != a) {
      return refuse(i, std::format("value {} has {} elements, value {} has {}", step.a, a, step.b, lengths[step.b]));
    }
    lengths.push_back(length);
  }
  return lengths;
}

Result<std::vector<double>> RunExpert(const Recipe& recipe, const OracleExpert& expert, std::span<const double> x) {
  RETURN_IF_FAULT(ValueLengths(recipe, expert, x.size()));
  std::vector<std::vector<double>> values{std::vector<double>(x.begin(), x.end())};
  for (const Step& step : recipe.steps) values.push_back(RunStep(step, expert, values));
  return std::move(values.back());
}

}  // namespace linkcpp
