#include "cli/decode_verdict.h"

#include <algorithm>
#include <cmath>
#include <format>

#include "cli/count_text.h"
#include "gguf/tensor_type.h"
#include "oracle/weight_type.h"

namespace linkcpp {
namespace {

constexpr std::uint64_t kShakes = 3;  // draws of noise; the worst counts

// Power of what turning a row into a format does to an expert's result, relative to the result's: from block sizes and
// steps, docs/numerics.md "Why 8-bit rows cost 3e-4" (F16, BF16: from their bits, table 1 there).
double RowFormatPower(RowFormat format) {
  switch (format) {
    case RowFormat::kF32: return 1e-12;
    case RowFormat::kF16: return 2.0e-7;
    case RowFormat::kBf16: return 9.4e-6;
    case RowFormat::kQ8_0: return 1.4e-4;
    case RowFormat::kQ8_1: return 1.5e-4;
    case RowFormat::kQ8_K: return 3.4e-4;
  }
  return 3.4e-4;
}
// The coarsest row of a kernel that does not follow the weights' type: BF16, on a GPU.
constexpr double kOtherRowPower = 9.4e-6;

// How far errors of two right kernels go until they are logits is the model's doing, so the model is asked: alone once
// more, with noise of just that power in every expert's result.
Result<VerifyDecodeBound> MeasureBound(const ModelFile& model, const ShakenRun& shaken) {
  VerifyDecodeBound bound;
  ASSIGN_OR_RETURN(bound.expert_noise, KernelDistance(model));
  for (std::uint64_t seed = 1; seed <= kShakes; ++seed) {
    ASSIGN_OR_RETURN(const LogitComparison comparison, shaken(bound.expert_noise, seed));
    bound.nmse = std::max(bound.nmse, comparison.Nmse());
    bound.kl_mean = std::max(bound.kl_mean, comparison.KlMean());
  }
  return bound;
}

Result<void> Says(VerifyDecodeReport& report, const char* verdict, std::string why) {
  report.verdict = verdict;
  report.why = std::move(why);
  return {};
}

}  // namespace

// Two right kernels differ most when their errors point opposite ways: (√a + √b)².
Result<double> KernelDistance(const ModelFile& model) {
  double power = 0;
  for (const MoeLayer& layer : model.moe_layers()) {
    for (const ExpertTensor& tensor : layer.tensors) {
      if (tensor.kind != SlabKind::kWeight) continue;
      ASSIGN_OR_RETURN(const WeightLayout layout, LayoutOf(tensor.tensor->type));
      power = std::max(power, RowFormatPower(layout.cpu_rows));
    }
  }
  const double other = std::max(power, kOtherRowPower);
  return std::pow(std::sqrt(power) + std::sqrt(other), 2);
}

Result<void> JudgeDecode(const ModelFile& model, const ShakenRun& shaken, VerifyDecodeReport& report) {
  if (report.pairs == 0) {
    return Says(report, "not-computed",
                "libllama asked for no experts of this model, so nothing of the workers was compared");
  }
  if (report.pairs_by_workers == 0) {
    return Says(report, "not-computed",
                std::format("workers computed none of the {}: all were computed on this machine. {}",
                            CountText(report.pairs, "pair"),
                            report.workers.empty() ? "No worker reached this machine's data port: --data-listen "
                                                     "names an address they can dial"
                                                   : "See `linkcpp status`"));
  }
  if (report.bit_identical) {
    return Says(report, "bit-identical", "every logit has the same bits as without workers");
  }
  if (report.not_finite > 0) {
    return Says(report, "outside-bound", CountText(report.not_finite, "logit") + " not finite");
  }
  if (std::ranges::none_of(report.workers, [](const auto& w) { return w.pairs > 0 && !w.same_class; })) {
    return Says(report, "outside-bound",
                "all workers are of this machine's own kernel class, so every bit should be the same: one of them "
                "computes something else");
  }
  ASSIGN_OR_RETURN(report.bound, MeasureBound(model, shaken));
  if (report.nmse <= report.bound->nmse && report.kl_mean && *report.kl_mean <= report.bound->kl_mean) {
    return Says(report, "inside-bound",
                "workers of another kernel class round differently; the logits are as near as right kernels are");
  }
  return Says(report, "outside-bound",
              "the logits are further off than kernels that round differently explain: a worker computes something "
              "else");
}

}  // namespace linkcpp
