// Whoever computes the rows that are compared with the oracle: a device of this machine, or a worker of a swarm.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/worker_probe.h"
#include "kernel/device.h"
#include "reference/model_oracle.h"

namespace linkcpp {

class ExpertComputer {
 public:
  virtual ~ExpertComputer() = default;
  virtual std::string name() const = 0;  // "CPU (…)", "worker laptop (…), CPU"
  virtual std::string kernel_class() const = 0;
  virtual bool is_gpu() const = 0;
  // x: [n, plan.n_in], y: [n, plan.n_out]; one expert.
  virtual Result<void> Compute(std::uint16_t expert, std::span<const float> x, std::span<float> y) = 0;
};

// `model` and `plan` must outlive it; a device holds one expert at a time.
Result<std::unique_ptr<ExpertComputer>> ComputeOnDevice(const ModelFile& model, const LayerPlan& plan,
                                                        const DeviceOptions& options, LogSink& log);

// On the worker that `node` means (ChooseNode), which must hold all of `experts`. kRefused: as ChooseNode, or it does
// not hold one. kRefused, kGone: as WorkerProbe::Attach and Await.
Result<std::unique_ptr<ExpertComputer>> ComputeOnWorker(const ModelFile& model, const LayerPlan& plan,
                                                        const WorkerProbeOptions& options, const std::string& node,
                                                        const std::vector<std::uint16_t>& experts, LogSink& log);

}  // namespace linkcpp
