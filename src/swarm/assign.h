// Which worker computes which pairs of a layer: spread so that the slowest answer comes earliest, in few frames.
//
// Greedy over groups of pairs of one expert, the groups with the least choice first; each goes to the holder that would
// finish it earliest, given what it got already. Pure and deterministic: the same figures give the same answer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "swarm/routing_table.h"

namespace linkcpp {

// ggml's CPU kernels multiply in another order when an expert has at least this many rows in one graph (measured on
// ggml 0.27; kernel/expert_stack.h). To keep the bits of a host that computes the batch at once, an expert's pairs are
// cut only into pieces that lie on the same side of it as the whole.
inline constexpr std::size_t kManyPairs = 8;

// Pairs of one expert; who may be asked for them.
struct PairGroup {
  ExpertId expert;
  std::vector<std::uint32_t> pairs;      // the caller's numbers, in its order
  std::vector<WorkerNumber> candidates;  // ascending, not empty
};

struct Assignment {
  WorkerNumber worker = 0;
  std::vector<std::uint32_t> pairs;  // ascending
};

// `finish_us(worker, n)` is when `worker` would have answered n > 0 pairs, counted from now, work in its queue
// included. `frame_us` is what one more frame costs us. One entry for every worker that got pairs, ascending.
std::vector<Assignment> AssignPairs(std::vector<PairGroup> groups,
                                    const std::function<double(WorkerNumber worker, std::uint32_t n_pairs)>& finish_us,
                                    double frame_us);

// Cuts one worker's pairs into frames of at most about `most` pairs: whole experts as far as they fit, larger ones by
// kManyPairs' rule (so a frame may be up to kManyPairs - 1 larger). one_each: every expert gets frames of its own.
std::vector<std::vector<std::uint32_t>> CutIntoFrames(std::vector<std::uint32_t> pairs,
                                                      const std::function<ExpertId(std::uint32_t pair)>& expert_of,
                                                      std::size_t most, bool one_each);

}  // namespace linkcpp
