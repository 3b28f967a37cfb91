// Workers of a running swarm as rows of the matrix: who there is, and the job's pairs computed by one of them.
//
// A worker answers with the slices it has loaded itself; nothing of the job but rows and pairs goes there. It may hold
// some of the experts only: then its row is of the pairs that it can answer.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "cli/matrix_cases.h"
#include "cli/worker_probe.h"
#include "gguf/model.h"
#include "matrix/contenders.h"
#include "matrix/job.h"

namespace linkcpp {

struct WorkerContender {
  Contender contender;  // id: its name, or the node's id where that is taken; `missing`: why it will not be asked
  NodeStatus node;
  HeldExperts holds;  // as it tells the coordinator
};

// The workers that `names` mean (id, beginning of it, or name; none given: all), in the coordinator's order; then, with
// the reason, names that mean nobody. `taken`: ids of other rows. kRefused: the swarm serves another model, or the
// token is wrong. kGone: no coordinator there.
Result<std::vector<WorkerContender>> FindWorkers(const HttpEndpoint& coordinator, const ModelFile& model,
                                                 const std::vector<std::string>& names,
                                                 const std::vector<std::string>& taken);

// The whole job on one worker, within `timeout_s`. What it refuses is in the answer, task by task. kRefused: it holds
// none of the experts. kGone, kBusy, kMalformed, kLocal: it did not answer as it should; the text says how.
Result<MatrixAnswer> RunJobOnWorker(const MatrixInput& input, const WorkerContender& worker, WorkerProbe& probe,
                                    int timeout_s);

}  // namespace linkcpp
