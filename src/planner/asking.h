// A placement whose compute buffers are not estimated but asked for: of llama.cpp itself, by way of linkcpp-layout.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "planner/known_buffers.h"
#include "planner/layout.h"
#include "planner/machine.h"
#include "planner/memory.h"
#include "planner/model_sizes.h"
#include "planner/placement.h"

namespace linkcpp {

// What the installed llama.cpp would allocate. kRefused: it does not run this model so, in its words. Other faults:
// nobody to ask, or no answer.
using AskLayout = std::function<Result<std::vector<LaidOut>>(const LayoutRequest&)>;

// Places the model and asks what that layout needs, again and again until the best one is one that was asked about; at
// most 16 times. What was heard stays in `known`, for other placements of the same model. Where the sizes are from is
// said in `assumptions`. `ask` empty, or without an answer: everything is estimated. `refusal`: why llama.cpp would not
// run it, when it says so.
Placement PlaceAsking(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                      const std::string& model_path, const AskLayout& ask, KnownBuffers& known,
                      std::vector<std::string>& assumptions, std::string& refusal);

}  // namespace linkcpp
