// `linkcpp serve --auto`: the plan for this machine, as arguments and environment of the llama-server that serve
// starts.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace linkcpp {

struct AutoPlan {
  std::vector<std::string> arguments;  // to be put before the user's own
  std::vector<std::pair<std::string, std::string>> environment;
  std::string summary;  // one line for people: what was chosen and how fast it should be
  std::string missing;  // not "": it does not fit this machine, by how much and what would help; the rest is empty
};

// Plans as `linkcpp plan` does, with what `user_arguments` (llama-server's) say of context, sequences and cache types.
// An option they set is left out of the plan's. When the model's own context does not fit and the user asked for none,
// the largest half, quarter, … that fits is taken. `nodes`: path of nodes.json; "": none are expected.
//
// May restart the program (cli/cpu_speed.h): call it first. A fault: the model, the nodes or one of those
// arguments can not be used.
Result<AutoPlan> PlanForServe(const std::string& model, const std::string& nodes,
                              std::span<const std::string> user_arguments);

// The plan's arguments without those options that the user's own name, by whichever of their names.
std::vector<std::string> WithoutOverridden(std::span<const std::string> planned,
                                           std::span<const std::string> user_arguments);

}  // namespace linkcpp
