// One worker of a running swarm, asked directly: attaches to the coordinator as a backbone, lets the workers dial in,
// and sends dispatches to the one that was chosen. Nothing is mended here: what that worker says is what counts.
#pragma once

#include <chrono>
#include <cstdint>
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
#include "wire/control.h"

namespace linkcpp {

struct WorkerProbeOptions {
  HttpEndpoint coordinator;
  std::string node;         // its id, the beginning of it, or its name; "": any that says it holds the slices
  std::string data_listen;  // where workers dial us; "": loopback, or all interfaces when the coordinator is not on it
  LayerId layer;
  std::vector<std::uint16_t> experts;  // that will be asked for
  std::chrono::seconds wait{20};       // for the worker to dial in
  std::chrono::seconds deadline{120};  // for one answer; a GPU may compile shaders first
};

class WorkerProbe {
 public:
  // Returns once the worker is connected and has said that it holds the slices. `model` and `log` must outlive it.
  // kRefused: another model, no such node, not admitted, or it does not hold them (what it holds is said). kGone: no
  // coordinator there, or the worker does not dial in.
  static Result<std::unique_ptr<WorkerProbe>> Attach(const WorkerProbeOptions& options, const ModelFile& model,
                                                     LogSink& log);
  virtual ~WorkerProbe() = default;  // detaches

  virtual const NodeStatus& node() const = 0;  // as the coordinator saw it when we attached

  // x: [n_rows, n_in] f32 through one expert; y: [n_rows, n_out] f32. Blocks. kRefused, kBusy …: as the worker says.
  // kGone: link lost, or no answer in time. kMalformed: an answer that is none.
  virtual Result<void> Compute(const Recipe& recipe, std::uint16_t expert, std::span<const float> x, std::uint32_t n_in,
                               std::span<float> y, std::uint32_t n_out) = 0;
};

}  // namespace linkcpp
