// What a CPU takes for everything that is not reading weights, where it was not measured (`linkcpp plan --ram-rate`).
//
// Costs of one graph step, as measured by kernel/calibrate.h on one machine (2 cores of a Sapphire Rapids Xeon, ggml
// 0.27), times how many of them a layer has. They are said to be assumed wherever they are used.
#pragma once

#include <string>

#include "planner/machine.h"
#include "planner/model_sizes.h"

namespace linkcpp {

// llama.cpp's own work between two graphs of one token: 23 to 32 us on a Sapphire Rapids Xeon, three models (0.7.0).
inline constexpr double kTokenSeconds = 25e-6;

// Fills in what CalibrateMachine would (attention_, router_, step_, graph_, token_, wake_seconds, attention_gbs, a
// batch's steps); machine.n_cores must be known.
void AssumeStepCosts(const ModelSizes& sizes, Machine& machine);

// One line: "a layer's attention 250 us, its router 36 us, ...".
std::string StepCostsText(const Machine& machine);

}  // namespace linkcpp
