// How fast a device multiplies a model's matrices with one token's row, in about a second.
//
// Plain reading of memory says too little: kernels for some types are slower than memory, small matrices cost a
// start each, and a small model stays in the caches. So matrices of the model's own shapes and types are multiplied, over as
// much memory as the model would touch, with the buffer types llama.cpp would choose. Weights are made up. Measures
// only; what follows from it is the planner's.
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
  std::uint64_t stored_bytes = 0;           // of all of them: the memory they are spread over
  std::uint64_t token_bytes = 0;            // of it read for one token
};

struct Calibration {
  double dense_gbs = 0;        // plain matrices, starting each included
  double expert_gbs = 0;       // chosen experts of a layer, likewise
  double node_seconds = 0;     // any other step of a graph on one row
  double dispatch_seconds = 0; // starting and ending a graph of one small step
};

// Takes about `seconds`, and memory for a while: up to `most_bytes`. Kinds that read little are left out; a rate with no
// kind is 0. kLocal: no memory, or the device failed. One thread at a time per Device.
Result<Calibration> Calibrate(std::span<const MatrixKind> kinds, std::uint32_t n_embd, Device& device, double seconds,
                              std::uint64_t most_bytes);

}  // namespace linkcpp
