// How fast this machine's CPU computes a model's shapes, for `linkcpp plan`: measured, and kept for an hour.
//
// What is measured are kernels on shapes, so what was measured for one plan serves every plan of the model, whatever
// its context or devices. Measuring takes some seconds (2 on a small model, more on a large one).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"
#include "kernel/calibrate.h"
#include "planner/machine.h"
#include "planner/model_sizes.h"

namespace linkcpp {

// What there is to measure. Two models of the same shapes ask the same.
struct SpeedQuestion {
  std::vector<MatrixKind> kinds;  // two-dimensional weights every token is multiplied with, and experts; the most first
  LayerShape layer;
  std::uint32_t n_batch = 0;           // rows of a prompt computed at once; 0: prompts do not matter
  std::vector<std::uint32_t> threads;  // of workers on this machine, distinct; empty: there are none
  ExpertShape expert;                  // the most common shape, of which workers are measured
  std::uint32_t n_experts = 1, n_used = 1;
  std::uint64_t expert_bytes = 0;
  std::uint64_t layer_bytes = 0;  // of weights that a token reads in one layer
};

struct CpuSpeed {
  double ram_gbs = 0;  // plain reading
  Calibration token;
  BatchCalibration batch;
  double wake_seconds = 0;
  double loopback_gbs = 0, loopback_row_gbs = 0;  // a prompt's rows; those of one token
  double worker_gbs = 0;  // of a worker here that has all cores, with a batch: slices times pairs
  struct Worker {
    std::uint32_t threads = 0;
    double read_gbs = 0, batch_gbs = 0;
  };
  std::vector<Worker> workers;  // in the order of SpeedQuestion::threads
};

// kRefused: experts whose tensors do not fit one another.
Result<SpeedQuestion> AskSpeed(const ModelFile& model, const ModelSizes& sizes, std::uint32_t n_batch,
                               const std::vector<Node>& nodes);

// kLocal: ggml has no CPU device, or it failed.
Result<CpuSpeed> MeasureSpeed(const SpeedQuestion& question);

struct KeptSpeed {
  CpuSpeed speed;
  std::int64_t age_s = 0;
};
// What was measured for the same question within the last hour, on this machine since it was started. Any failure is
// "nothing is known". `folder`: "": keeps nothing.
std::optional<KeptSpeed> FindKeptSpeed(const std::string& folder, const SpeedQuestion& question);
void KeepSpeed(const std::string& folder, const SpeedQuestion& question, const CpuSpeed& speed);

// Fills in what of `machine` says how fast the CPU computes, and read_gbs of nodes here that have none.
void UseSpeed(const SpeedQuestion& question, const CpuSpeed& speed, Machine& machine);

}  // namespace linkcpp
