// A backbone's report within the size that a coordinator takes. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "wire/control.h"

namespace linkcpp {

struct FittedReport {
  std::string json;     // at most max_bytes, if the counters alone are not more
  std::string dropped;  // what had to go, for people; "": nothing
};
// What is least missed goes first: long texts, heat, links of nodes that left, checks, all links.
FittedReport FitReport(BackboneReport report, std::size_t max_bytes = kMaxControlBytes);

}  // namespace linkcpp
