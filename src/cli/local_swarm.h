// A swarm on this machine for as long as a command runs: the coordinator in this process, workers as children, all on
// loopback, everything they write in one folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "coordinator/served_model.h"
#include "net/http_client.h"

namespace linkcpp {

struct LocalSwarmOptions {
  std::string folder;         // writable, mode 0700; the caller's to delete
  std::string worker_binary;  // path of linkcpp-expert-worker
  int n_workers = 2;
  std::string device = "cpu";  // of the workers
  int n_threads = 1;           // of each
};

class LocalSwarm {
 public:
  // `served` must outlive it. Each worker gives memory for its share of the slices. kLocal: not enough memory or disk,
  // no port, no such program. Call from a thread that lives as long as the program (coordinator/host_process.h).
  static Result<std::unique_ptr<LocalSwarm>> Start(const LocalSwarmOptions& options, const ServedModel& served,
                                                   LogSink& log);
  virtual ~LocalSwarm() = default;  // ends the workers, in order if they listen

  virtual HttpEndpoint endpoint() const = 0;
  // kLocal: a worker has ended; its last words.
  virtual Result<void> Check() = 0;
};

}  // namespace linkcpp
