#include "matrix/compare.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <set>
#include <thread>

namespace linkcpp {
namespace {

constexpr std::size_t kTrialPairs = 3;

std::span<const float> RowOf(const std::vector<float>& y, std::size_t i, std::size_t n_out) {
  return std::span(y).subspan(i * n_out, n_out);
}

std::vector<double> AsDoubles(std::span<const float> values) {
  return {values.begin(), values.end()};
}

std::span<const KernelModel> ModelsFor(KernelKind kind, const ExpertShape& shape) {
  // numpy multiplies float32 rows with float32 weights: the first of what a GPU may do.
  if (kind == KernelKind::kNumpy) return KernelModels(true).first(1);
  const bool f16_weights = std::ranges::any_of(shape.projections, [](const auto& projection) {
    return projection.has_value() && projection->type == static_cast<std::uint32_t>(WeightType::kF16);
  });
  return KernelModels(kind == KernelKind::kGpu, f16_weights);
}

void AddFormats(const ExpertShape& shape, const KernelModel& model, std::set<std::string>& names) {
  for (const auto& projection : shape.projections) {
    if (!projection.has_value()) continue;
    const auto layout = LayoutOf(projection->type);
    if (model.rows.has_value()) {
      names.emplace(RowFormatName(*model.rows));
    } else if (layout.has_value()) {
      names.emplace(RowFormatName(layout->cpu_rows));
    }
  }
}

std::string Joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

}  // namespace

// Figures of one backend, dispatch after dispatch.
class Judge::Tally {
 public:
  void Add(const BoundedResult& reference, std::span<const float> y) {
    BoundCheck check;
    check.Add(reference, y);
    exact_.Add(check.exact());
    replayed_.Add(check.replayed());
    explained_.Add(check.explained());
    ++figures_.pairs;
    figures_.worst_pair_cosine = std::min(figures_.worst_pair_cosine, check.exact().Cosine());
    figures_.explained_worst_pair_cosine = std::min(figures_.explained_worst_pair_cosine, check.explained().Cosine());
    figures_.over_bound = std::max(figures_.over_bound, check.over_bound());
    figures_.over_worst = std::max(figures_.over_worst, check.over_worst());
    figures_.over_likely = std::max(figures_.over_likely, check.over_likely());
    figures_.inside = figures_.inside && check.Holds();
  }
  void Add(const Tally& other) {
    exact_.Add(other.exact_);
    replayed_.Add(other.replayed_);
    explained_.Add(other.explained_);
    const OracleFigures& f = other.figures_;
    figures_.pairs += f.pairs;
    figures_.worst_pair_cosine = std::min(figures_.worst_pair_cosine, f.worst_pair_cosine);
    figures_.explained_worst_pair_cosine =
        std::min(figures_.explained_worst_pair_cosine, f.explained_worst_pair_cosine);
    figures_.over_bound = std::max(figures_.over_bound, f.over_bound);
    figures_.over_worst = std::max(figures_.over_worst, f.over_worst);
    figures_.over_likely = std::max(figures_.over_likely, f.over_likely);
    figures_.inside = figures_.inside && f.inside;
    formats_.insert(other.formats_.begin(), other.formats_.end());
    models_.insert(other.models_.begin(), other.models_.end());
  }
  void Follows(const ExpertShape& shape, const KernelModel& model) {
    AddFormats(shape, model, formats_);
    models_.emplace(model.name);
  }
  bool inside() const { return figures_.inside; }
  std::pair<bool, double> Rank() const { return {!figures_.inside, replayed_.Nmse()}; }  // smaller is better
  OracleFigures Finish() {
    figures_.cosine = exact_.Cosine();
    figures_.nmse = exact_.Nmse();
    figures_.max_abs = exact_.MaxAbs();
    figures_.explained_cosine = explained_.Cosine();
    figures_.explained_nmse = explained_.Nmse();
    figures_.replayed_nmse = replayed_.Nmse();
    figures_.kernel_models = Joined(models_);
    figures_.row_format = Joined(formats_);
    return figures_;
  }

 private:
  OracleFigures figures_{.inside = true};
  Comparison exact_, replayed_, explained_;
  std::set<std::string> formats_, models_;
};

namespace {

class Pairwise {
 public:
  void Add(std::span<const float> a, std::span<const float> b) {
    const std::vector<double> reference = AsDoubles(a);
    Comparison pair;
    pair.Add(std::span<const double>(reference), b);
    all_.Add(pair);
    ++figures_.pairs;
    figures_.identical_pairs += BitIdentical(a, b) ? 1u : 0u;
    figures_.worst_pair_cosine = std::min(figures_.worst_pair_cosine, pair.Cosine());
  }
  PairFigures Finish() {
    figures_.cosine = all_.Cosine();
    figures_.nmse = all_.Nmse();
    figures_.max_abs = all_.MaxAbs();
    figures_.bit_identical = figures_.pairs > 0 && figures_.identical_pairs == figures_.pairs;
    return figures_;
  }

 private:
  Comparison all_;
  PairFigures figures_;
};

}  // namespace

Judge::Judge(const MatrixJob& job, std::span<const MatrixGroup> groups, int n_threads, std::function<bool()> keep_going)
    : job_(job), groups_(groups), n_threads_(n_threads), keep_going_(std::move(keep_going)) {}

Result<const Judge::References*> Judge::ReferencesOf(const JudgedTask& judged, const KernelModel& model,
                                                     std::span<const std::uint32_t> pairs) {
  const MatrixTask& task = job_.tasks[judged.task];
  References& known = references_[std::pair(judged.task, model.name)];
  known.resize(task.pairs.size());
  std::vector<std::uint32_t> missing;
  for (const std::uint32_t pair : pairs) {
    if (!known[pair].has_value()) missing.push_back(pair);
  }
  std::vector<Result<BoundedResult>> results(missing.size());
  std::atomic<std::size_t> next = 0;
  {
    const auto work = [&] {
      for (std::size_t i = next++; i < missing.size() && keep_going_(); i = next++) {
        const SlotPair& pair = task.pairs[missing[i]];
        const auto x = std::span(task.rows).subspan(std::size_t{pair.row} * task.n_in, task.n_in);
        results[i] = BoundExpert(task.recipe, judged.experts[pair.slot], x, model);
      }
    };
    std::vector<std::jthread> threads;
    for (std::size_t t = 1; t < std::min(static_cast<std::size_t>(n_threads_), missing.size()); ++t) {
      threads.emplace_back(work);
    }
    work();
  }
  if (!missing.empty() && !keep_going_()) return Fail(FaultCode::kGone, "interrupted");
  for (std::size_t i = 0; i < missing.size(); ++i) {
    ASSIGN_OR_RETURN(known[missing[i]], results[i]);
  }
  return &known;
}

Result<Judge::Tally> Judge::UnderModel(const JudgedTask& judged, const KernelModel& model,
                                       std::span<const std::uint32_t> pairs, const std::vector<float>& values) {
  const MatrixTask& task = job_.tasks[judged.task];
  ASSIGN_OR_RETURN(const References* references, ReferencesOf(judged, model, pairs));
  Tally tally;
  tally.Follows(task.shape, model);
  for (const std::uint32_t pair : pairs) tally.Add(*(*references)[pair], RowOf(values, pair, task.n_out));
  return tally;
}

// The first model is the narrowest; when it holds the others need not be worked out. Else the one that leaves least
// unexplained, of those that hold: tried on a few pairs first, because references cost more than kernels.
Result<Judge::Tally> Judge::BestModel(const JudgedTask& judged, KernelKind kind, std::span<const std::uint32_t> pairs,
                                      const std::vector<float>& values) {
  const std::span<const KernelModel> models = ModelsFor(kind, job_.tasks[judged.task].shape);
  const auto best_on = [&](std::span<const std::uint32_t> some) -> Result<const KernelModel*> {
    const KernelModel* best = nullptr;
    std::pair<bool, double> rank;
    for (const KernelModel& model : models) {
      ASSIGN_OR_RETURN(const Tally tally, UnderModel(judged, model, some, values));
      if (best == nullptr || tally.Rank() < rank) {
        best = &model;
        rank = tally.Rank();
      }
      if (best == &models[0] && tally.inside()) break;
    }
    return best;
  };
  ASSIGN_OR_RETURN(const KernelModel* likely, best_on(pairs.first(std::min(pairs.size(), kTrialPairs))));
  ASSIGN_OR_RETURN(Tally tally, UnderModel(judged, *likely, pairs, values));
  if (tally.inside()) return tally;
  ASSIGN_OR_RETURN(const KernelModel* best, best_on(pairs));
  return UnderModel(judged, *best, pairs, values);
}

Result<OracleFigures> Judge::AgainstOracle(std::size_t group, KernelKind kind, const MatrixAnswer& answer,
                                           std::size_t passage) {
  Tally all;
  for (const JudgedTask& judged : groups_[group].tasks) {
    const Passage& way = job_.tasks[judged.task].passages[passage];
    const TaskAnswer& own = answer.tasks[judged.task];
    const auto present = [&own](std::span<const std::uint32_t> pairs) {
      std::vector<std::uint32_t> some;
      std::ranges::copy_if(pairs, std::back_inserter(some), [&](std::uint32_t pair) { return own.Has(pair); });
      return some;
    };
    RETURN_IF_FAULT(ReferencesOf(judged, ModelsFor(kind, job_.tasks[judged.task].shape)[0],
                                 present(way.order)));  // all at once: on all threads
    std::size_t at = 0;
    for (const std::uint32_t size : way.sizes) {
      const std::vector<std::uint32_t> pairs = present(std::span(way.order).subspan(at, size));
      at += size;
      if (pairs.empty()) continue;
      ASSIGN_OR_RETURN(const Tally dispatch, BestModel(judged, kind, pairs, own.values[passage]));
      all.Add(dispatch);
    }
  }
  return all.Finish();
}

Result<double> Judge::Combined(const MatrixGroup& group, const MatrixAnswer& even, const MatrixAnswer& odd) {
  Comparison all;
  for (const JudgedTask& judged : group.tasks) {
    const MatrixTask& task = job_.tasks[judged.task];
    const TaskAnswer& evens = even.tasks[judged.task];
    const TaskAnswer& odds = odd.tasks[judged.task];
    for (std::size_t at = 0, end = 0; at < judged.sums.size(); at = end) {
      std::vector<std::uint32_t> parts;
      bool whole_row = true;
      for (; end < judged.sums.size() && judged.sums[end].row == judged.sums[at].row; ++end) {
        parts.push_back(judged.sums[end].pair);
        whole_row = whole_row && (evens.Has(parts.back()) || odds.Has(parts.back()));
      }
      if (!whole_row) continue;
      ASSIGN_OR_RETURN(const References* exact, ReferencesOf(judged, KernelModels(false)[0], parts));
      std::vector<double> whole(task.n_out), combined(task.n_out);
      for (const WeightedPair& part : std::span(judged.sums).subspan(at, end - at)) {
        const bool to_even = task.pairs[part.pair].slot % 2 == 0 ? evens.Has(part.pair) : !odds.Has(part.pair);
        const auto y = RowOf((to_even ? evens : odds).values[kByRow], part.pair, task.n_out);
        for (std::size_t i = 0; i < whole.size(); ++i) {
          whole[i] += part.weight * (*exact)[part.pair]->exact[i];
          combined[i] += part.weight * y[i];
        }
      }
      all.Add(std::span<const double>(whole), std::span<const double>(combined));
    }
  }
  return all.n_elements() == 0 ? -1 : all.Cosine();
}

Result<PairFigures> Judge::Between(std::size_t group, const MatrixAnswer& a, const MatrixAnswer& b) {
  Pairwise sums;
  for (const JudgedTask& judged : groups_[group].tasks) {
    const MatrixTask& task = job_.tasks[judged.task];
    const TaskAnswer& of_a = a.tasks[judged.task];
    const TaskAnswer& of_b = b.tasks[judged.task];
    for (std::uint32_t i = 0; i < task.pairs.size(); ++i) {
      if (!of_a.Has(i) || !of_b.Has(i)) continue;
      sums.Add(RowOf(of_a.values[kByRow], i, task.n_out), RowOf(of_b.values[kByRow], i, task.n_out));
    }
  }
  PairFigures figures = sums.Finish();
  ASSIGN_OR_RETURN(const double one_way, Combined(groups_[group], a, b));
  ASSIGN_OR_RETURN(const double other_way, Combined(groups_[group], b, a));
  figures.combined_cosine = std::min(one_way, other_way);
  return figures;
}

PairFigures Judge::WithItself(std::size_t group, const MatrixAnswer& answer, std::size_t passage) const {
  Pairwise sums;
  for (const JudgedTask& judged : groups_[group].tasks) {
    const MatrixTask& task = job_.tasks[judged.task];
    const TaskAnswer& own = answer.tasks[judged.task];
    for (std::uint32_t i = 0; i < task.pairs.size(); ++i) {
      if (own.Has(i)) sums.Add(RowOf(own.values[kByRow], i, task.n_out), RowOf(own.values[passage], i, task.n_out));
    }
  }
  return sums.Finish();
}

}  // namespace linkcpp
