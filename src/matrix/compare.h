// What the matrix says of answers: each against the oracle and its bound, each against every other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "matrix/contenders.h"
#include "matrix/job.h"
#include "oracle/bound.h"
#include "oracle/expert.h"

namespace linkcpp {

// One row of the router, for the sum over its experts. Pairs that are not in a sum (experts chosen by hand) have none.
struct WeightedPair {
  std::uint32_t row = 0;
  std::uint32_t pair = 0;
  double weight = 0;
};

// A task with what is needed to judge answers to it.
struct JudgedTask {
  std::uint32_t task = 0;             // index into the job
  LayerId layer;                      // of the model
  std::vector<ExpertId> names;        // by slot
  std::vector<OracleExpert> experts;  // by slot
  std::vector<WeightedPair> sums;     // ascending in row
};

// Tasks that share one line of figures: the layers of a model, or one mix of types.
struct MatrixGroup {
  std::string name;   // "austen-moe-q4km, layers 0-3"
  std::string types;  // "gate Q4_K, up Q4_K, down Q4_K or Q6_K"
  std::string rows;   // "80 rows of real decoding"
  std::vector<JudgedTask> tasks;
};

// One backend against the oracle. Ratios and likely bounds: oracle/bound.h.
struct OracleFigures {
  std::uint64_t pairs = 0;
  double cosine = 0;
  double worst_pair_cosine = 1;
  double nmse = 0;
  double max_abs = 0;
  double explained_cosine = 0;  // what turning rows into the kernel's format costs by itself
  double explained_worst_pair_cosine = 1;
  double explained_nmse = 0;
  double replayed_nmse = 0;
  double over_bound = 0;
  double over_worst = 0;
  double over_likely = 0;
  bool inside = false;
  std::string kernel_models;  // of those a right kernel may follow, the one that explains each dispatch best
  std::string row_format;     // "Q8_K", "F32": what it turns rows into; several with "+"
};

// One backend against another, or one passage of a backend against another of its own.
struct PairFigures {
  std::uint64_t pairs = 0;  // that both have computed; 0: the figures mean nothing, but for the sums below
  std::uint64_t identical_pairs = 0;
  double cosine = 0;
  double worst_pair_cosine = 1;
  double nmse = 0;
  double max_abs = 0;
  bool bit_identical = false;
  // The router's weighted sums with the even slots from one and the odd ones from the other (what only one has: from
  // that one), against the oracle's in one piece; the worse of both ways round. Negative: no router in this group, or
  // no row whose experts the two have between them.
  double combined_cosine = -1;
};

// References are made once a pair and kernel model, when they are needed, and kept.
class Judge {
 public:
  // Both must outlive the judge. n_threads >= 1. `keep_going`: asked before each reference, on any thread; false makes
  // whoever needed it fail with kGone.
  Judge(const MatrixJob& job, std::span<const MatrixGroup> groups, int n_threads, std::function<bool()> keep_going);

  // A dispatch follows one of the models of the kind: a GPU chooses among its kernels by size. kRefused: as
  // BoundExpert. The answer has all tasks of the group (no faults) and at least one of its pairs; those that are absent
  // are left out. Between compares what is computed by row; WithItself that with another passage.
  Result<OracleFigures> AgainstOracle(std::size_t group, KernelKind kind, const MatrixAnswer& answer,
                                      std::size_t passage);
  Result<PairFigures> Between(std::size_t group, const MatrixAnswer& a, const MatrixAnswer& b);
  PairFigures WithItself(std::size_t group, const MatrixAnswer& answer, std::size_t passage) const;

 private:
  using References = std::vector<std::optional<BoundedResult>>;  // by pair
  // Those of `pairs`, at least.
  Result<const References*> ReferencesOf(const JudgedTask& task, const KernelModel& model,
                                         std::span<const std::uint32_t> pairs);
  class Tally;
  Result<Tally> UnderModel(const JudgedTask& task, const KernelModel& model, std::span<const std::uint32_t> pairs,
                           const std::vector<float>& values);
  Result<Tally> BestModel(const JudgedTask& task, KernelKind kind, std::span<const std::uint32_t> pairs,
                          const std::vector<float>& values);
  Result<double> Combined(const MatrixGroup& group, const MatrixAnswer& even, const MatrixAnswer& odd);

  const MatrixJob& job_;
  std::span<const MatrixGroup> groups_;
  int n_threads_;
  std::function<bool()> keep_going_;
  std::map<std::pair<std::uint32_t, std::string_view>, References> references_;  // by task, model
};

}  // namespace linkcpp
