// The whole plan: a placement, what it should run at, how to start it; or what is missing and the cheapest ways to mend
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/asking.h"
#include "planner/machine.h"
#include "planner/memory.h"
#include "planner/model_sizes.h"
#include "planner/placement.h"
#include "planner/predict.h"
#include "planner/wiring.h"

namespace linkcpp {

inline constexpr double kNvmeGbs = 3, kSataGbs = 0.5;
inline constexpr std::uint64_t kSpareNodeBytes = 8'000'000'000;  // "one more node of 8 GB"

// One change to the wish or the machine, by itself.
struct Change {
  std::string what;
  bool enough = false;
  std::uint64_t missing_bytes = 0;      // when it is not enough
  double decode_tokens_per_second = 0;  // when it is
};

// The swarm against the best this machine does alone.
struct Comparison {
  std::string local;  // what the alternative is: "RAM", "disk at 3 GB/s (assumed NVMe)"
  double local_decode = 0, swarm_decode = 0;
  double local_prefill = 0, swarm_prefill = 0;
  double break_even_rtt_ms = 0;    // the swarm wins below it, all nodes alike; 0: never
  std::uint32_t nodes_to_win = 0;  // how many of the nodes, in order, it takes to win; 0: all do not
  bool swarm_wins = false;
};

struct PlanWish {
  RunOptions run;
  std::string model_path;
  bool force_nodes = false;  // use the swarm even where it loses, and before RAM
  SwarmStart swarm = {};
  AskLayout ask = nullptr;  // empty: compute buffers are estimated
};

struct Plan {
  Placement placement;
  Prediction prediction;  // feasible
  Wiring wiring;          // feasible
  bool uses_swarm = false;
  bool nodes_first = false;              // by force_nodes: layers went to nodes before RAM
  std::optional<Comparison> comparison;  // when nodes were given and are of any use
  std::vector<Change> changes;           // infeasible: those that are enough first, in the order of what they cost
  std::string refusal;  // why the installed llama.cpp would not run the model so; "": it would, or was not asked
  std::vector<std::string> assumptions;  // where the compute buffers' sizes are from, a line each
};

// kRefused: a wish the model can not fulfil (more layers than it has, a context of nothing).
Result<Plan> MakePlan(const ModelSizes& sizes, const Machine& machine, const PlanWish& wish);

}  // namespace linkcpp
