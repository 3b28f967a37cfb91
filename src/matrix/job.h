// What one backend is asked to compute for the matrix, and what it answers: two files between processes.
//
// A process holds one variant of a backend at most, so every backend of the matrix runs in a child of its own. The job
// has everything in it (slabs, rows, recipe, the order of dispatches), so a child knows nothing of models, and one
// written in another language or built for another CPU reads the same bytes. Format: docs/matrix.md, "The job file".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "base/result.h"
#include "kernel/expert_stack.h"

namespace linkcpp {

// The slabs of one expert, owned: [projection][weight, bias, scale].
using SlabBytes = std::array<std::array<std::vector<std::byte>, 3>, kProjections>;

// In which order and company pairs are computed: `order` has every pair of the task once, `sizes` cuts it into
// dispatches.
struct Passage {
  std::vector<std::uint32_t> order;
  std::vector<std::uint32_t> sizes;
};

// The ways in which every pair is computed, as indices of MatrixTask::passages.
inline constexpr std::size_t kByRow = 0;     // a dispatch a row, as when decoding
inline constexpr std::size_t kShuffled = 1;  // in random order and company, an expert fewer than kManyRows times
inline constexpr std::size_t kOneBatch = 2;  // all at once, as when a prompt is read
inline constexpr std::size_t kPassages = 3;

// Experts of one shape and the pairs to run through them.
struct MatrixTask {
  Recipe recipe;
  ExpertShape shape;
  std::uint32_t n_in = 0;
  std::uint32_t n_out = 0;
  std::vector<SlabBytes> slots;
  std::vector<float> rows;  // [n_rows, n_in]
  std::vector<SlotPair> pairs;
  std::array<Passage, kPassages> passages;

  std::size_t n_rows() const { return n_in == 0 ? 0 : rows.size() / n_in; }
};

struct MatrixJob {
  std::vector<MatrixTask> tasks;
};

struct TaskAnswer {
  std::string fault;                                 // not empty: this task could not be computed, and why
  std::array<std::vector<float>, kPassages> values;  // [pairs, n_out] each, in the order of the task's pairs
  double seconds = 0;                                // computing by row, without loading
  // By pair: not computed, because whoever answers does not hold the expert (a worker of a swarm); its values mean
  // nothing. Empty: everything was. Not in the file: a child is given all it needs.
  std::vector<bool> absent{};

  bool Has(std::uint32_t pair) const { return absent.empty() || !absent[pair]; }
};

struct MatrixAnswer {
  std::string kernel_class, device, features;
  std::vector<TaskAnswer> tasks;
};

// kLocal: the file can not be written or read. kMalformed: it is not such a file, or parts of it do not fit together.
Result<void> WriteJob(const MatrixJob& job, const std::string& path);
Result<MatrixJob> ReadJob(const std::string& path);
Result<void> WriteAnswer(const MatrixAnswer& answer, const std::string& path);
// As many tasks and numbers as `job` asks for, or kMalformed.
Result<MatrixAnswer> ReadAnswer(const MatrixJob& job, const std::string& path);

}  // namespace linkcpp
