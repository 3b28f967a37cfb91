#include "admission/examiner.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <format>
#include <utility>

namespace linkcpp {
namespace {

std::uint64_t HashRow(std::span<const float> x) {  // FNV-1a; rows are ours, nobody gains by a collision
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : std::as_bytes(x)) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}

// Experts that workers hold cost the backbone no memory: what was read for an examination leaves the page cache again,
// with what was read ahead.
void Forget(const ModelFile& model, SliceId slice) {
  constexpr std::uint64_t kReadAhead = std::uint64_t{1} << 20;
  const auto slabs = model.Slabs(slice);
  if (!slabs) return;
  for (const SlabRef& slab : *slabs) {
    const int fd = model.source(slab.file).fd();
    if (fd < 0) continue;
    const std::uint64_t begin = slab.offset - std::min(slab.offset, kReadAhead);
    ::posix_fadvise(fd, static_cast<off_t>(begin),
                    static_cast<off_t>(slab.offset + slab.size_bytes + kReadAhead - begin), POSIX_FADV_DONTNEED);
  }
}

std::uint64_t WeightsOf(const MoeLayer& layer) {
  std::uint64_t n = 0;
  for (const ExpertTensor& tensor : layer.tensors) {
    if (tensor.kind == SlabKind::kWeight) n += tensor.tensor->ne[0] * tensor.tensor->ne[1];
  }
  return n;
}

std::string SliceText(SliceId slice) {
  return std::format("layer {} expert {}", slice.layer.value, slice.expert.value);
}

}  // namespace

Result<ExamPlan> PlanExam(const ModelFile& model, LayerId layer) {
  ExamPlan exam;
  if (auto plan = PlanLayer(model, layer.value); plan.has_value()) {
    exam.plan = std::move(*plan);
    if (WeightsOf(*exam.plan.layer) > Examiner::kMaxWeights) {
      exam.no_oracle = std::format("an expert of {} weights is too large for it", WeightsOf(*exam.plan.layer));
    }
    return exam;
  } else {
    exam.no_oracle = plan.error().text;
  }
  const MoeLayer* found = model.FindMoeLayer(layer);
  if (found == nullptr) return Fail(FaultCode::kRefused, "layer {} has no experts", layer.value);
  ASSIGN_OR_RETURN(exam.plan, PlanByRules(*found, exam.plan.rules));
  return exam;
}

const Result<ExamPlan>& Examiner::PlanOf(LayerId layer) {
  const auto known = plans_.find(layer);
  return known != plans_.end() ? known->second : plans_.emplace(layer, PlanExam(model_, layer)).first->second;
}

Result<std::shared_ptr<const BoundedResult>> Examiner::Reference(const ExamPlan& exam, SliceId slice,
                                                                 const Recipe& recipe, std::span<const float> x,
                                                                 const KernelModel& model, bool keep) {
  Key key{slice, recipe.Describe(), HashRow(x), model.name};
  if (const auto known = kept_.find(key); known != kept_.end()) return known->second;
  auto expert = LoadOracleExpert(model_, exam.plan, slice.expert.value);
  Forget(model_, slice);
  if (!expert.has_value()) return std::unexpected(std::move(expert).error());
  ASSIGN_OR_RETURN(BoundedResult bounded, BoundExpert(recipe, *expert, x, model));
  auto shared = std::make_shared<const BoundedResult>(std::move(bounded));
  if (keep) {
    if (kept_order_.size() == kKept) {
      kept_.erase(kept_order_.front());
      kept_order_.pop_front();
    }
    kept_.emplace(key, shared);
    kept_order_.push_back(std::move(key));
  }
  return shared;
}

Result<Finding> Examiner::Examine(SliceId slice, const Recipe& recipe, std::span<const float> x,
                                  std::span<const float> y, bool is_gpu, std::string_view expected, bool keep) {
  const Result<ExamPlan>& exam = PlanOf(slice.layer);
  if (!exam.has_value()) return std::unexpected(exam.error());
  if (!exam->no_oracle.empty()) return AskSecondKernel(*exam, slice, recipe, x, y);

  std::vector<const KernelModel*> models;
  const bool f16_weights = std::ranges::any_of(exam->plan.layer->tensors, [](const ExpertTensor& tensor) {
    return tensor.tensor->type == std::to_underlying(WeightType::kF16);
  });
  for (const KernelModel& model : KernelModels(is_gpu, f16_weights)) models.push_back(&model);
  std::ranges::stable_partition(models, [&](const KernelModel* model) { return model->name == expected; });
  Finding best;
  for (const KernelModel* const model : models) {
    ASSIGN_OR_RETURN(const auto reference, Reference(*exam, slice, recipe, x, *model, keep));
    if (reference->exact.size() != y.size()) {
      return Fail(FaultCode::kRefused, "{}: the recipe gives rows of {} values, not {}", SliceText(slice),
                  reference->exact.size(), y.size());
    }
    if (!std::ranges::all_of(reference->exact, [](double value) { return std::isfinite(value); })) {
      return Fail(FaultCode::kRefused, "{}: the right result is not finite, so nothing can be said", SliceText(slice));
    }
    BoundCheck check;
    check.Add(*reference, y);
    Finding finding{.right = check.Holds(),
                    .model = std::string(model->name),
                    .exact = check.exact(),
                    .explained = check.explained().Nmse(),
                    .over_bound = std::max(check.over_likely(), check.over_worst()),
                    .text = {}};
    const bool better = best.model.empty() || finding.over_bound < best.over_bound;
    if (finding.right || better) best = std::move(finding);
    if (best.right) break;
  }
  best.text = std::format(
      "{}: NMSE {:.2e}, where its row format makes {:.2e} and nothing else does; cosine {:.7f}; largest difference "
      "{:.3g} of its derived bound (kernel model: {})",
      SliceText(slice), best.exact.Nmse(), best.explained, best.exact.Cosine(), best.over_bound, best.model);
  return best;
}

Result<Finding> Examiner::AskSecondKernel(const ExamPlan& exam, SliceId slice, const Recipe& recipe,
                                          std::span<const float> x, std::span<const float> y) {
  if (kernel_ == nullptr) {
    return Fail(FaultCode::kRefused, "{} can not be examined: {}", SliceText(slice), exam.no_oracle);
  }
  std::vector<float> own(y.size());
  const Pair pair{0, slice.expert};
  const auto done = kernel_->Compute(slice.layer, recipe, x, static_cast<std::uint32_t>(x.size()), std::span(&pair, 1),
                                     own, static_cast<std::uint32_t>(y.size()));
  Forget(model_, slice);
  if (!done.has_value()) return std::unexpected(done.error());
  const std::vector<double> reference(own.begin(), own.end());
  Finding finding{.model = "second kernel"};
  finding.exact.Add(std::span<const double>(reference), y);
  const bool finite = finding.exact.n_not_finite() == 0;
  finding.right = finite && finding.exact.Cosine() >= kLeastCosine;
  finding.over_bound = finite ? (1 - finding.exact.Cosine()) / (1 - kLeastCosine) : HUGE_VAL;
  finding.text =
      std::format("{}: cosine {:.7f} against this machine's own kernel, {} is the least; NMSE {:.2e} ({})",
                  SliceText(slice), finding.exact.Cosine(), kLeastCosine, finding.exact.Nmse(), exam.no_oracle);
  return finding;
}

}  // namespace linkcpp
