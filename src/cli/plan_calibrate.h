// The second in which `linkcpp plan` measures this machine's CPU on a model's own matrix shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"
#include "planner/machine.h"
#include "planner/model_sizes.h"

namespace linkcpp {

// Fills in what of `machine` says how fast the CPU computes (dense_gbs, expert_gbs, step_, graph_, wake_seconds, and
// read_gbs of nodes here that have none), and says so in `assumptions`. kLocal: ggml has no CPU device, or it failed.
// `n_batch`: rows of a prompt computed at once, which are measured too; 0: prompts do not matter.
Result<void> CalibrateMachine(const ModelFile& model, const ModelSizes& sizes, std::uint32_t n_batch, Machine& machine,
                              std::vector<std::string>& assumptions);

}  // namespace linkcpp
