// The job on a device of this process: what `linkcpp-matrix-row` does. And how a passage is cut into dispatches, for
// whoever else computes one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernel/device.h"
#include "matrix/job.h"

namespace linkcpp {

// Every task is tried; one that the device refuses has its reason in the answer.
MatrixAnswer RunJob(const MatrixJob& job, Device& device);

// One dispatch. x: [n_rows, n_in]; y: [pairs.size(), n_out], y[i] answers pairs[i], whose rows are indices into x.
using ComputeDispatch = std::function<Result<void>(std::span<const float> x, std::uint32_t n_rows,
                                                   std::span<const SlotPair> pairs, std::span<float> y)>;

// A passage over the task's pairs, dispatch after dispatch: [pairs, n_out] in the order of the task's pairs. A dispatch
// carries each of its rows once, as a host's does. Pairs that are `absent` (empty: none) are left out and zero.
Result<std::vector<float>> RunPassage(const MatrixTask& task, const Passage& passage, const std::vector<bool>& absent,
                                      const ComputeDispatch& compute);

}  // namespace linkcpp
