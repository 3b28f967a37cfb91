// How far a right kernel's result for one expert and one row may be from the oracle's, derived from the numbers at
// hand: block steps of the row, sizes of the weights, lengths of the sums. Nothing here is fitted; docs/numerics.md
// derives it.
//
// Most of a kernel's error is no mystery: it turns rows into another format before each product. So the recipe runs
// twice. Once exactly, where that step is an error of known size: this gives the worst case. Once replayed, with each
// row turned into the kernel's format here too: what is then left is float32 arithmetic, small enough that a kernel
// that reads one scale wrong stands out.
#pragma once

#include <algorithm>
#include <cmath>
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

// What a class of kernels does to numbers.
struct KernelModel {
  std::string_view name;
  std::optional<RowFormat> rows;  // nullopt: what ggml's CPU kernels use for the weight's type
  double weight_rounding = 0;     // relative, of each weight (and of its step and offset) after dequantisation
  double sum_rounding = 0x1p-24;  // relative, of each addition
  bool integer_runs = false;      // products of 8-bit rows are summed in integers over runs of 32
  bool half_sums = false;         // sums of products with F16 weights are kept in 32 halves, then added
};

// The models a kernel on such a device may follow, the narrowest first. A right kernel follows one of them, for all
// experts of one shape. `f16_weights`: a projection has F16 weights, for which CPUs have a model more.
std::span<const KernelModel> KernelModels(bool is_gpu, bool f16_weights = false);

struct BoundedResult {
  std::vector<double> exact;     // the oracle's result
  std::vector<double> worst;     // no kernel of this model is further from it, whatever the data; may be infinite
  std::vector<double> replayed;  // the result with rows in the kernel's format
  std::vector<double> likely;    // nor, but for one element in 10^13, further from that one

  // What an element of the kernel's result may differ from the exact one.
  double Bound(std::size_t i) const { return std::min(worst[i], std::fabs(exact[i] - replayed[i]) + likely[i]); }
};

// kRefused: as RunExpert.
Result<BoundedResult> BoundExpert(const Recipe& recipe, const OracleExpert& expert, std::span<const float> x,
                                  const KernelModel& model);

// A kernel's result against a bound, over any number of pairs. Ratios are |Δ| / bound of the element where it is
// largest; infinite for NaN.
class BoundCheck {
 public:
  void Add(const BoundedResult& reference, std::span<const float> result);

  const Comparison& exact() const { return exact_; }          // result against the oracle
  const Comparison& replayed() const { return replayed_; }    // result against the replayed oracle
  const Comparison& explained() const { return explained_; }  // the replayed oracle against the exact one
  double over_bound() const { return over_bound_; }           // BoundedResult::Bound, against the exact result
  double over_worst() const { return over_worst_; }           // against the exact result
  double over_likely() const { return over_likely_; }         // against the replayed result

  // Every element inside every bound. (Inside the likely bound implies inside Bound.)
  bool Holds() const { return over_likely_ <= 1 && over_worst_ <= 1; }

 private:
  Comparison exact_, replayed_, explained_;
  double over_bound_ = 0, over_worst_ = 0, over_likely_ = 0;
};

}  // namespace linkcpp
