// How fast a device multiplies a model's matrices with one token's row, in about a second.
//
// Plain reading of memory says too little: kernels for some types are slower than memory, small matrices cost a
// start each, and a small model stays in the caches. So matrices of the model's own shapes and types are multiplied,
// over as much memory as the model would touch, with the buffer types llama.cpp would choose. Weights are made up.
// Measures only; what follows from it is the planner's.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernel/device.h"

namespace linkcpp {

// Matrices of one kind in the model.
struct MatrixKind {
  std::uint32_t type = 0;  // ggml type number
  std::uint32_t n_in = 0, n_out = 0;
  std::uint32_t n_experts = 0, n_used = 0;  // n_experts 0: a plain matrix
  std::uint64_t stored_bytes = 0;           // the memory to spread them over: what is read before one is read again
  std::uint64_t token_bytes = 0;            // of it read for one token
};

// What a layer does beside multiplying by weights.
struct LayerShape {
  std::uint32_t n_embd = 1, n_head = 1, n_head_kv = 1, head_length = 64, n_experts = 1, n_used = 1, n_ff = 1;
  bool qk_norms = false;
};

struct Calibration {
  double dense_gbs = 0;   // plain matrices, starting each included
  double expert_gbs = 0;  // chosen experts of a layer, likewise
  double attention_seconds =
      0;  // of a layer, without its matrices: norms, rope, the cache's rows, attention over 256 cells
  double attention_gbs = 0;   // reading K and V when there are many cells
  double router_seconds = 0;  // of a layer with experts, without matrices: norm, choosing, weighing, adding up
  double step_seconds = 0;    // any other step of a graph on one row
  double graph_seconds = 0;   // starting and ending a graph of one small step
};

// `kinds`: the most important first; when getting memory takes long, later ones are left out. Takes about `seconds`
// beside what it takes to get memory, of which it uses up to `most_bytes`. A rate without a kind is 0. kLocal: no
// memory, or the device failed. One thread at a time per Device.
Result<Calibration> Calibrate(std::span<const MatrixKind> kinds, const LayerShape& layer, Device& device,
                              double seconds, std::uint64_t most_bytes);
// The experts' rate alone, as far as there are kinds of them.
Result<double> CalibrateExperts(std::span<const MatrixKind> kinds, Device& device, double seconds,
                                std::uint64_t most_bytes);

}  // namespace linkcpp
