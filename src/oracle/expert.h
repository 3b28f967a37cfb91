// One routed expert in plain double loops: y = down(silu(gate x) * (up x)), or whatever its recipe says.
//
// Weights are dequantised to float32 exactly as their format defines; everything after that is double. This is what a
// kernel's result is compared with, so it shares no code with any kernel. Knows nothing of routing or of model files.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "base/recipe.h"
#include "base/result.h"
#include "oracle/weight_type.h"

namespace linkcpp {

// One projection of one expert.
struct OracleMatrix {
  WeightLayout layout{};
  std::uint32_t n_in = 0;
  std::uint32_t n_out = 0;
  std::vector<float> weights;  // [n_out, n_in]
  std::vector<float> bias;     // [n_out], or empty
  std::optional<float> scale;

  // Types that add an offset to every run of elements (w = step q + offset): the offset of each run along the rows,
  // [n_out, n_in / offset_run]. Kernels sum quants and offsets apart, so bounds need them. Empty for other types.
  std::uint32_t offset_run = 0;
  std::vector<float> offsets;

  std::span<const float> Row(std::uint32_t j) const {
    return std::span(weights).subspan(static_cast<std::size_t>(j) * n_in, n_in);
  }

  // kRefused: no oracle for the type, a row that is not whole blocks, sizes that do not fit. Each text names `what`.
  static Result<OracleMatrix> Make(std::string_view what, std::uint32_t ggml_type, std::uint32_t n_in,
                                   std::uint32_t n_out, std::span<const std::byte> bytes);
};

struct OracleExpert {
  std::array<std::optional<OracleMatrix>, kProjections> projections;  // indexed by Projection

  const OracleMatrix* Find(Projection projection) const {
    const auto& matrix = projections[static_cast<std::size_t>(projection)];
    return matrix.has_value() ? &*matrix : nullptr;
  }
};

// The length of every value of the recipe (value 0 is the row of n_in). kRefused: the recipe asks for a tensor the
// expert does not have, or two lengths do not fit.
Result<std::vector<std::size_t>> ValueLengths(const Recipe& recipe, const OracleExpert& expert, std::size_t n_in);

// The recipe's result for one row.
Result<std::vector<double>> RunExpert(const Recipe& recipe, const OracleExpert& expert, std::span<const double> x);

}  // namespace linkcpp
