#include "matrix/compare.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <thread>

namespace linkcpp {
namespace {

std::span<const float> RowOf(const std::vector<float>& y, std::size_t i, std::size_t n_out) {
  return std::span(y).subspan(i * n_out, n_out);
}

std::vector<double> AsDoubles(std::span<const float> values) {
  return {values.begin(), values.end()};
}

std::span<const KernelModel> ModelsFor(KernelKind kind) {
  // numpy multiplies float32 rows with float32 weights: the first of what a GPU may do.
  if (kind == KernelKind::kNumpy) return KernelModels(true).first(1);
  return KernelModels(kind == KernelKind::kGpu);
}

std::string FormatsOf(const ExpertShape& shape, const KernelModel& model, std::string_view before) {
  std::set<std::string_view> names;
  for (std::size_t from = 0; from < before.size();) {
    const std::size_t to = std::min(before.find('+', from), before.size());
    names.insert(before.substr(from, to - from));
    from = to + 1;
  }
  for (const auto& projection : shape.projections) {
    if (!projection.has_value()) continue;
    const auto layout = LayoutOf(projection->type);
    if (model.rows.has_value()) {
      names.insert(RowFormatName(*model.rows));
    } else if (layout.has_value()) {
      names.insert(RowFormatName(layout->cpu_rows));
    }
  }
  std::string text;
  for (const std::string_view name : names) text += std::format("{}{}", text.empty() ? "" : "+", name);
  return text;
}

// Sums over pairs of one answer against references under one model.
struct Measured {
  BoundCheck check;
  OracleFigures figures;

  void Add(const BoundedResult& reference, std::span<const float> y) {
    check.Add(reference, y);
    Comparison pair, explained;
    pair.Add(std::span<const double>(reference.exact), y);
    explained.Add(std::span<const double>(reference.exact), std::span<const double>(reference.replayed));
    ++figures.pairs;
    figures.worst_pair_cosine = std::min(figures.worst_pair_cosine, pair.Cosine());
    figures.explained_worst_pair_cosine = std::min(figures.explained_worst_pair_cosine, explained.Cosine());
  }
  OracleFigures Finish(const KernelModel& model) {
    figures.cosine = check.exact().Cosine();
    figures.nmse = check.exact().Nmse();
    figures.max_abs = check.exact().MaxAbs();
    figures.explained_cosine = check.explained().Cosine();
    figures.explained_nmse = check.explained().Nmse();
    figures.replayed_nmse = check.replayed().Nmse();
    figures.over_bound = check.over_bound();
    figures.over_worst = check.over_worst();
    figures.over_likely = check.over_likely();
    figures.inside = check.Holds();
    figures.kernel_model = model.name;
    return figures;
  }
};

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
    figures_.bit_identical = figures_.identical_pairs == figures_.pairs;
    return figures_;
  }

 private:
  Comparison all_;
  PairFigures figures_;
};

}  // namespace

Judge::Judge(const MatrixJob& job, std::span<const MatrixGroup> groups, int n_threads)
    : job_(job), groups_(groups), n_threads_(n_threads) {}

Result<const Judge::References*> Judge::ReferencesOf(const JudgedTask& judged, const KernelModel& model) {
  const auto key = std::pair(judged.task, model.name);
  if (const auto known = references_.find(key); known != references_.end()) return &known->second;
  const MatrixTask& task = job_.tasks[judged.task];
  std::vector<Result<BoundedResult>> results(task.pairs.size());
  std::atomic<std::size_t> next = 0;
  {
    const auto work = [&] {
      for (std::size_t i = next++; i < results.size(); i = next++) {
        const SlotPair& pair = task.pairs[i];
        const auto x = std::span(task.rows).subspan(std::size_t{pair.row} * task.n_in, task.n_in);
        results[i] = BoundExpert(task.recipe, judged.experts[pair.slot], x, model);
      }
    };
    std::vector<std::jthread> threads;
    for (int t = 1; t < n_threads_; ++t) threads.emplace_back(work);
    work();
  }
  References made;
  for (auto& result : results) {
    ASSIGN_OR_RETURN(made.emplace_back(), result);
  }
  return &(references_[key] = std::move(made));
}

Result<OracleFigures> Judge::AgainstOracle(std::size_t group, KernelKind kind, const MatrixAnswer& answer) {
  std::optional<OracleFigures> best;
  for (const KernelModel& model : ModelsFor(kind)) {
    Measured measured;
    std::string formats;
    for (const JudgedTask& judged : groups_[group].tasks) {
      const MatrixTask& task = job_.tasks[judged.task];
      ASSIGN_OR_RETURN(const References* references, ReferencesOf(judged, model));
      for (std::size_t i = 0; i < task.pairs.size(); ++i) {
        measured.Add((*references)[i], RowOf(answer.tasks[judged.task].first, i, task.n_out));
      }
      formats = FormatsOf(task.shape, model, formats);
    }
    OracleFigures figures = measured.Finish(model);
    figures.row_format = formats;
    const auto rank = [](const OracleFigures& f) { return std::pair(!f.inside, f.replayed_nmse); };
    if (!best.has_value() || rank(figures) < rank(*best)) best = figures;
    if (best->inside) break;  // models come narrowest first; the wider ones need not be worked out
  }
  return *best;
}

Result<double> Judge::Combined(const MatrixGroup& group, const MatrixAnswer& even, const MatrixAnswer& odd) {
  Comparison all;
  for (const JudgedTask& judged : group.tasks) {
    const MatrixTask& task = job_.tasks[judged.task];
    if (judged.sums.empty()) continue;
    ASSIGN_OR_RETURN(const References* exact, ReferencesOf(judged, KernelModels(false)[0]));
    for (std::size_t at = 0; at < judged.sums.size();) {
      std::vector<double> whole(task.n_out), combined(task.n_out);
      const std::uint32_t row = judged.sums[at].row;
      for (; at < judged.sums.size() && judged.sums[at].row == row; ++at) {
        const WeightedPair& part = judged.sums[at];
        const MatrixAnswer& holder = task.pairs[part.pair].slot % 2 == 0 ? even : odd;
        const auto y = RowOf(holder.tasks[judged.task].first, part.pair, task.n_out);
        for (std::size_t i = 0; i < whole.size(); ++i) {
          whole[i] += part.weight * (*exact)[part.pair].exact[i];
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
    for (std::size_t i = 0; i < task.pairs.size(); ++i) {
      sums.Add(RowOf(a.tasks[judged.task].first, i, task.n_out), RowOf(b.tasks[judged.task].first, i, task.n_out));
    }
  }
  PairFigures figures = sums.Finish();
  ASSIGN_OR_RETURN(const double one_way, Combined(groups_[group], a, b));
  ASSIGN_OR_RETURN(const double other_way, Combined(groups_[group], b, a));
  figures.combined_cosine = std::min(one_way, other_way);
  return figures;
}

PairFigures Judge::WithItself(std::size_t group, const MatrixAnswer& answer) const {
  Pairwise sums;
  for (const JudgedTask& judged : groups_[group].tasks) {
    const MatrixTask& task = job_.tasks[judged.task];
    const TaskAnswer& own = answer.tasks[judged.task];
    for (std::size_t i = 0; i < task.again.order.size(); ++i) {
      sums.Add(RowOf(own.first, task.again.order[i], task.n_out), RowOf(own.again, i, task.n_out));
    }
  }
  return sums.Finish();
}

}  // namespace linkcpp
