// Workers of a running swarm, asked directly: attaches to the coordinator as a backbone, lets the workers dial in, and
// sends dispatches to the one that is meant. Nothing is mended here: what that worker says is what counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/log.h"
#include "base/recipe.h"
#include "base/result.h"
#include "gguf/model.h"
#include "net/http_client.h"
#include "swarm/swarm.h"
#include "wire/control.h"

namespace linkcpp {

struct WorkerProbeOptions {
  HttpEndpoint coordinator;
  std::string program = "linkcpp verify";  // what the coordinator shows
  std::string data_listen;             // where workers dial us; "": loopback, or all interfaces when the coordinator is
                                       // not on it
  std::chrono::seconds wait{20};       // for workers to dial in, from attaching on
  std::chrono::seconds deadline{120};  // for one answer; a GPU may compile shaders first
  std::function<bool()> keep_going = [] { return true; };  // asked while waiting; false ends it with kGone
};

// "experts 0:8", "none": what a node says it holds of a layer.
std::string HeldText(const NodeStatus& node, LayerId layer);

// The node that `name` means (its id, the beginning of it, or its name; "": any) for experts of a layer. kRefused: no
// such node, several, not admitted, or (for "") none that holds them all; the text lists those there are.
Result<NodeStatus> ChooseNode(const StatusReply& status, const std::string& name, LayerId layer,
                              const std::vector<std::uint16_t>& experts);

// A worker that has dialled in.
struct ProbedWorker {
  WorkerNumber number = 0;
  std::string name;
  std::string kernel_class;  // as it says
  bool is_gpu = false;       // by that
  SliceLists holds;

  bool Holds(LayerId layer, ExpertId expert) const;
};

class WorkerProbe {
 public:
  // `model` and `log` must outlive it. kRefused: the swarm serves another model. kGone: no coordinator there.
  static Result<std::unique_ptr<WorkerProbe>> Attach(const WorkerProbeOptions& options, const ModelFile& model,
                                                     LogSink& log);
  virtual ~WorkerProbe() = default;  // detaches

  // Returns once the node is connected and has said what it holds. kGone: it does not dial in.
  virtual Result<ProbedWorker> Await(const NodeStatus& node) = 0;

  // x: [n_rows, n_in] f32; y: [pairs.size(), n_out] f32, y[i] answers pairs[i]. One dispatch, or several where a frame
  // would be too long. Blocks. kRefused, kBusy …: as the worker says. kGone: link lost, or no answer in time.
  // kMalformed: an answer that is none.
  virtual Result<void> Compute(const ProbedWorker& worker, LayerId layer, const Recipe& recipe,
                               std::span<const float> x, std::uint32_t n_in, std::span<const Pair> pairs,
                               std::span<float> y, std::uint32_t n_out) = 0;
};

}  // namespace linkcpp
