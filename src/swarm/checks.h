// What the swarm offers to whoever decides which workers may be asked (src/admission): who is connected and holds what,
// a question to one worker, and live results to look at again.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/recipe.h"
#include "base/result.h"
#include "swarm/routing_table.h"

namespace linkcpp {

// One connected worker.
struct WorkerOffer {
  WorkerNumber worker = 0;  // of this link: a node that dials again has another
  std::string node_id;
  std::string kernel_class;
  std::shared_ptr<const SliceLists> holds;  // what it says it has
  std::set<std::uint16_t> admitted;         // the layers it is asked for
};

// One pair of a live answer: exactly what was asked and what came back.
struct LiveSample {
  WorkerNumber worker = 0;
  SliceId slice;
  Recipe recipe;
  bool many = false;  // its frame had kManyPairs pairs or more of the expert (assign.h)
  std::vector<float> x;
  std::vector<float> y;
};

// The answer to a question: [pairs, n_out]. Called once, on any thread, perhaps under the swarm's lock: it may only put
// the answer down somewhere.
using OnAnswer = std::function<void(Result<std::vector<float>> answer)>;

}  // namespace linkcpp
