// Graphs of what a layer does beside multiplying by weights, for measuring: on one row, or on a prompt's batch of rows.
//
// Each is built as llama.cpp builds it (0.7), of the model's shapes and made-up values, and repeated so that starting
// the graph does not count. Private to kernel/calibrate.cc.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernel/calibrate.h"
#include "kernel/ggml_device.h"

namespace linkcpp {

using CalibrationClock = std::chrono::steady_clock;
double SecondsSince(CalibrationClock::time_point start);
// The median of as many passes as fit into `seconds`, after one that is not counted: five at least, unless they take
// twice that long, and two in any case.
// `pause_seconds`: of sleep before each pass.
Result<double> MedianPass(double seconds, const std::function<Result<void>()>& pass, double pause_seconds = 0);

// `used` different ones of `experts` for each row, all alike likely: some get many rows, some few, as in a prompt.
std::vector<std::int32_t> ChooseAtRandom(std::int64_t experts, std::int64_t used, std::int64_t rows);

// How many of `n_experts` a batch is measured on when all of them, with `operations` in all, would take too long.
std::int64_t FewerExperts(std::int64_t n_experts, std::int64_t used, double operations);
inline constexpr double kBatchOperations = 2e9;  // of one pass over a batch, at most
// How many alike to take turns with, so that small ones are not found in a cache where a whole model would not be.
std::size_t BatchTurns(std::uint64_t bytes, std::uint64_t stored_bytes, double operations);

// Seconds of one pass over a graph with `n` of its kind; each takes about `seconds` to measure.
class StepBench {
 public:
  StepBench(const LayerShape& shape, GgmlDevice& device, double seconds, std::uint32_t n_rows = 1)
      : shape_(shape), device_(device), seconds_(seconds), rows_(n_rows) {}

  Result<double> Steps(std::size_t n);
  // `n` layers' attention: norms, rope, the cache's rows, attention over `n_cells`; the latter alone when
  // `only_attention`. A batch of rows sees the cells that came before each.
  Result<double> Attention(std::size_t n, std::int64_t n_cells, bool only_attention);
  // Norm, choosing, weighing, adding up; for a batch also the router's matrix, which is f32 there.
  Result<double> Router(std::size_t n);
  // A gated delta net without its matrices: its state out of the cache and back, convolution, norms, the recurrence.
  // The shape must have one.
  Result<double> DeltaNet(std::size_t n);

 private:
  static constexpr float kEpsilon = 1e-6f;

  void Begin(std::size_t n_nodes);
  ggml_tensor* Input(ggml_tensor* tensor);
  ggml_tensor* Rows(std::int64_t n) { return Input(ggml_new_tensor_2d(c_, GGML_TYPE_F32, n, rows_)); }
  ggml_tensor* Row(std::int64_t n) { return Input(ggml_new_tensor_1d(c_, GGML_TYPE_F32, n)); }
  ggml_tensor* Heads(std::int64_t length, std::int64_t n) {
    return Input(ggml_new_tensor_3d(c_, GGML_TYPE_F32, length, n, rows_));
  }
  ggml_tensor* Norm(ggml_tensor* x, ggml_tensor* weight) {
    return ggml_mul(c_, ggml_rms_norm(c_, x, kEpsilon), weight);
  }
  ggml_tensor* Rope(ggml_tensor* heads, ggml_tensor* position);
  void Add(ggml_tensor* tensor) { ggml_build_forward_expand(graph_, tensor); }
  void Fill(ggml_tensor* input);
  Result<double> Run();

  const LayerShape& shape_;
  GgmlDevice& device_;
  const double seconds_;
  const std::int64_t rows_;
  GgmlContext context_;
  ggml_context* c_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* mask_ = nullptr;  // of attention: what is later than a row is hidden from it
  std::vector<ggml_tensor*> inputs_;
};

}  // namespace linkcpp
