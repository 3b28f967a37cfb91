// How far a right kernel's result for one expert and one row may be from the oracle's, derived from the numbers at
// hand: block steps of the row, sizes of the weights, lengths of the sums. Nothing here is fitted; docs/numerics.md
// derives it.
//
// Two bounds travel through the recipe side by side:
//   worst   no kernel of this model can be further off, whatever the data; grows with the length of every sum
//   likely  kLikelySigmas standard deviations when rounding errors are independent and uniform over a step; grows with
//           the square root. This is the one that tells a wrong kernel from a right one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "base/result.h"
#include "oracle/expert.h"
#include "oracle/metrics.h"
#include "oracle/rows.h"

namespace linkcpp {

// What a class of kernels may do to numbers.
struct KernelModel {
  std::string_view name;
  std::optional<RowFormat> rows;  // nullopt: what ggml's CPU kernels use for the weight's type
  double weight_rounding = 0;     // relative, of each weight after dequantisation
  double sum_rounding = 0x1p-24;  // relative, of each addition
  static KernelModel Cpu();
  static KernelModel Gpu();
};

enum class Reference {
  kExact,     // the row as it is
  kReplayed,  // every row turned into the kernel's format first: what is left is float arithmetic
};

struct BoundedResult {
  UncertainRow row;  // value: the reference's result
  double Likely(std::size_t i) const;
};

// kRefused: as RunExpert.
Result<BoundedResult> BoundExpert(const Recipe& recipe, const OracleExpert& expert, std::span<const float> x,
                                  const KernelModel& model, Reference reference);

// A kernel's result against a bound, over any number of pairs.
class BoundCheck {
 public:
  void Add(const BoundedResult& reference, std::span<const float> result);

  const Comparison& comparison() const { return comparison_; }
  double likely_ratio() const { return likely_ratio_; }  // largest |Δ| / likely bound; infinite for NaN
  double worst_ratio() const { return worst_ratio_; }    // largest |Δ| / worst bound
  double PredictedNmse() const;                          // what the modelled variances add up to
  // Every element inside both bounds.
  bool Holds() const { return likely_ratio_ <= 1 && worst_ratio_ <= 1; }

 private:
  Comparison comparison_;
  double likely_ratio_ = 0, worst_ratio_ = 0;
  double variance_ = 0, reference_squares_ = 0;
};

}  // namespace linkcpp
