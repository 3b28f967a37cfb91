// Is this row what that expert makes of that row? The judgement behind admission and spot checks.
//
// The reference is the oracle's result and its derived bound (oracle/bound.h), computed here from the model file. A
// type without an oracle, or an expert too large to be dequantised in passing, is judged by a second kernel instead,
// and by a fixed cosine, because nothing is derived for that. Knows nothing of workers or links. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/recipe.h"
#include "base/result.h"
#include "gguf/model.h"
#include "oracle/bound.h"
#include "reference/model_oracle.h"
#include "swarm/swarm.h"

namespace linkcpp {

// How the experts of a layer are examined.
struct ExamPlan {
  LayerPlan plan;         // its recipe is the architecture's, or the usual one where the table does not know better
  std::string no_oracle;  // why a second kernel is the judge; "": the oracle is
};
// kRefused: a layer without experts, or without the tensors that make one.
Result<ExamPlan> PlanExam(const ModelFile& model, LayerId layer);

struct Finding {
  bool right = false;
  std::string model;      // the kernel model that it follows best, or "second kernel"
  Comparison exact;       // result against reference
  double explained = 0;   // NMSE that the row format of that model makes by itself
  double over_bound = 0;  // largest difference as a share of its bound
  std::string text;       // the figures, for people
};

class Examiner {
 public:
  // Larger experts (weights) are judged by the second kernel: dequantised they would take 4 bytes each for a moment.
  static constexpr std::uint64_t kMaxWeights = std::uint64_t{1} << 26;
  // Against a second kernel. Of 12,800 pairs of real decoding the worst kept 0.99940 when its rows were turned into
  // Q8_K (docs/matrix.md); this leaves some room for a second, finer row format on the other side.
  static constexpr double kLeastCosine = 0.999;

  // `model` and `kernel` must outlive this; kernel may be nullptr, then such experts can not be examined.
  Examiner(const ModelFile& model, LocalExperts* kernel) : model_(model), kernel_(kernel) {}

  // x: the row, y: the result to be judged. is_gpu: which kernel models may explain it; `expected`: the name of the one
  // to try first. keep: the reference will be wanted again (canaries). kRefused: can not be examined. kLocal: reading.
  Result<Finding> Examine(SliceId slice, const Recipe& recipe, std::span<const float> x, std::span<const float> y,
                          bool is_gpu, std::string_view expected, bool keep);

  const Result<ExamPlan>& PlanOf(LayerId layer);

 private:
  struct Key {
    SliceId slice;
    std::string recipe;
    std::uint64_t row = 0;  // hash of x
    std::string_view model;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  Result<std::shared_ptr<const BoundedResult>> Reference(const ExamPlan& exam, SliceId slice, const Recipe& recipe,
                                                         std::span<const float> x, const KernelModel& model, bool keep);
  Result<Finding> AskSecondKernel(const ExamPlan& exam, SliceId slice, const Recipe& recipe, std::span<const float> x,
                                  std::span<const float> y);

  const ModelFile& model_;
  LocalExperts* const kernel_;
  std::map<LayerId, Result<ExamPlan>> plans_;
  // References of canaries: every worker is asked the same. 96 KiB each at 3072 values.
  static constexpr std::size_t kKept = 64;
  std::map<Key, std::shared_ptr<const BoundedResult>> kept_;
  std::deque<Key> kept_order_;
};

}  // namespace linkcpp
