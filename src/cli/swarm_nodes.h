// The nodes of a running swarm as the planner takes them: memory as they offer it, speed and round trip as they were
// measured while the swarm computed.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "planner/machine.h"
#include "planner/model_sizes.h"
#include "wire/control.h"

namespace linkcpp {

// Nodes that are admitted. `assumptions`: one line each, with what was measured and what could not be.
std::vector<Node> NodesOf(const StatusReply& status, const ModelSizes& sizes, std::vector<std::string>& assumptions);

}  // namespace linkcpp
