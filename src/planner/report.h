// A plan as people read it, and as programs do.
#pragma once

#include <span>
#include <string>

#include "planner/plan.h"

namespace linkcpp {

// `assumptions`: where the machine's figures come from, one line each. Ends with a newline.
std::string PlanText(const ModelSizes& sizes, const Machine& machine, const PlanWish& wish, const Plan& plan,
                     std::span<const std::string> assumptions);
// One JSON object; the fields are listed in docs/planner.md.
std::string PlanJson(const ModelSizes& sizes, const Machine& machine, const PlanWish& wish, const Plan& plan,
                     std::span<const std::string> assumptions);

}  // namespace linkcpp
