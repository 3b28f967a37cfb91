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
#include "kernel/expert_stack.h"

namespace linkcpp {

// Matrices of one kind in the model.
struct MatrixKind {
  std::uint32_t type = 0;  // ggml type number
  std::uint32_t n_in = 0, n_out = 0;
  std::uint32_t n_experts = 0, n_used = 0;  // n_experts 0: a plain matrix
  std::uint64_t stored_bytes = 0;           // the memory to spread them over: what is read before one is read again
  std::uint64_t token_bytes = 0;            // of it read for one token
  bool row_each = false;  // experts: each chosen one has a row of its own (a down projection), not all the token's
};

// What a layer does beside multiplying by weights.
struct LayerShape {
  std::uint32_t n_embd = 1, n_head = 1, n_head_kv = 1, head_length = 64, n_experts = 1, n_used = 1, n_ff = 1;
  bool qk_norms = false;
  // Of gated delta nets; delta_length 0: there are none.
  std::uint32_t delta_length = 0, delta_key_heads = 0, delta_value_heads = 0, delta_taps = 0;
};

struct Calibration {
  double dense_gbs = 0;   // plain matrices, starting each included
  double expert_gbs = 0;  // chosen experts of a layer, likewise
  double attention_seconds =
      0;  // of a layer, without its matrices: norms, rope, the cache's rows, attention over 256 cells
  double attention_gbs = 0;      // reading K and V when there are many cells
  double router_seconds = 0;     // of a layer with experts, without matrices: norm, choosing, weighing, adding up
  double delta_net_seconds = 0;  // of a layer: its state out of the cache and back, convolution, norms, recurrence
  double step_seconds = 0;       // any other step of a graph on one row
  double graph_seconds = 0;      // starting and ending a graph of one small step
};

// A prompt's batch of rows, all at once. A batch of n rows takes n * bytes / rate with matrices of `bytes`, and
// pairs * bytes of a slice / rate with experts that are drawn evenly.
struct BatchCalibration {
  double dense_gbs = 0, expert_gbs = 0;  // 10^9 bytes of weights times rows a second
  double attention_seconds = 0;  // of a layer, all rows: norms, rope, the cache, attention over the batch itself
  double router_seconds = 0;     // of a layer with experts, with the router's matrix
  double step_seconds = 0;       // any other step, all rows
  double delta_net_seconds = 0;  // of a layer, as of one row; 0: the model has none
};

// `kinds`: the most important first; when getting memory takes long, later ones are left out. Takes about `seconds`
// beside what it takes to get memory, of which it uses up to `most_bytes`. A rate without a kind is 0. kLocal: no
// memory, or the device failed. One thread at a time per Device.
Result<Calibration> Calibrate(std::span<const MatrixKind> kinds, const LayerShape& layer, Device& device,
                              double seconds, std::uint64_t most_bytes);
// The experts' rate alone, as far as there are kinds of them.
Result<double> CalibrateExperts(std::span<const MatrixKind> kinds, Device& device, double seconds,
                                std::uint64_t most_bytes);

// The same for a batch of `n_rows` tokens: about `seconds`, or three passes of each where that takes longer.
Result<BatchCalibration> CalibrateBatch(std::span<const MatrixKind> kinds, const LayerShape& layer, Device& device,
                                        double seconds, std::uint32_t n_rows);

// What a worker takes for each (row, expert) pair of one token: an ExpertStack that slept while the host computed, with
// other experts each time, of as many as `most_bytes` hold. `pause_seconds`: of sleep before each. Seconds a pair.
// kRefused: a shape that no recipe fits.
Result<double> CalibrateWorkerToken(const ExpertShape& shape, std::uint32_t n_experts, std::uint32_t n_used,
                                    std::uint64_t most_bytes, Device& device, double seconds, double pause_seconds);

// What a worker takes for each (row, expert) pair of such a batch: an ExpertStack as it runs dispatches, on experts of
// a layer with `n_experts`, `n_used` of them a row; `stored_bytes` of all layers. Seconds a pair. kRefused: a shape
// that no recipe fits.
Result<double> CalibrateWorkerBatch(const ExpertShape& shape, std::uint32_t n_experts, std::uint32_t n_used,
                                    std::uint64_t stored_bytes, Device& device, double seconds, std::uint32_t n_rows);

}  // namespace linkcpp
