#include "kernel/calibrate_layers.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

namespace linkcpp {

double SecondsSince(CalibrationClock::time_point start) {
  return std::chrono::duration<double>(CalibrationClock::now() - start).count();
}

Result<double> MedianPass(double seconds, const std::function<Result<void>()>& pass, double pause_seconds) {
  RETURN_IF_FAULT(pass());
  constexpr std::size_t kFewPasses = 5, kLeastPasses = 2;
  std::vector<double> times;
  const auto begin = CalibrationClock::now();
  const auto wants_more = [&] {
    const double taken = SecondsSince(begin);
    if (times.size() < kFewPasses) return times.size() < kLeastPasses || taken < 2 * seconds;
    return taken < seconds && times.size() < 10'000;
  };
  while (wants_more()) {
    if (pause_seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(pause_seconds));
    const auto start = CalibrationClock::now();
    RETURN_IF_FAULT(pass());
    times.push_back(SecondsSince(start));
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

std::vector<std::int32_t> ChooseAtRandom(std::int64_t experts, std::int64_t used, std::int64_t rows) {
  std::mt19937 random(1);
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts)), chosen;
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(used); ++i) {
      std::swap(order[i], order[i + random() % (order.size() - i)]);
      chosen.push_back(order[i]);
    }
  }
  return chosen;
}

std::int64_t FewerExperts(std::int64_t n_experts, std::int64_t used, double operations) {
  const double part = std::min(1.0, kBatchOperations / operations);
  const auto few = static_cast<std::int64_t>(static_cast<double>(n_experts) * part);
  return std::min(n_experts, std::max(few, 4 * used));
}

std::size_t BatchTurns(std::uint64_t bytes, std::uint64_t stored_bytes, double operations) {
  constexpr std::uint64_t kEnough = 32u << 20;
  const double most = std::max(1.0, kBatchOperations / operations);
  const std::uint64_t turns = std::min(stored_bytes, kEnough) / std::max<std::uint64_t>(bytes, 1);
  return static_cast<std::size_t>(std::clamp(static_cast<double>(turns), 1.0, std::min(most, 32.0)));
}

Result<double> StepBench::Steps(std::size_t n) {
  Begin(n);
  ggml_tensor *x = Rows(shape_.n_embd), *other = Rows(shape_.n_embd), *y = x;
  for (std::size_t i = 0; i < n; ++i) {
    y = i % 3 == 0 ? ggml_rms_norm(c_, y, kEpsilon) : i % 3 == 1 ? ggml_mul(c_, y, other) : ggml_add(c_, y, other);
  }
  Add(y);
  return Run();
}

Result<double> StepBench::Attention(std::size_t n, std::int64_t n_cells, bool only_attention) {
  Begin(16 * n);
  const std::int64_t length = shape_.head_length, heads = shape_.n_head, kv_heads = shape_.n_head_kv;
  ggml_tensor *x = Rows(shape_.n_embd), *weight = Row(shape_.n_embd), *norm = Row(length);
  ggml_tensor *q = Heads(length, heads), *k = Heads(length, kv_heads), *v = Rows(length * kv_heads);
  ggml_tensor* position = Input(ggml_new_tensor_1d(c_, GGML_TYPE_I32, rows_));
  ggml_tensor* slot = Input(ggml_new_tensor_1d(c_, GGML_TYPE_I64, rows_));
  mask_ = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F16, n_cells, rows_));
  for (std::size_t i = 0; i < n; ++i) {
    ggml_tensor* k_cache = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F16, length * kv_heads, n_cells));
    ggml_tensor* v_cache = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F16, length * kv_heads, n_cells));
    ggml_tensor* query = q;
    if (!only_attention) {
      Add(Norm(x, weight));
      ggml_tensor* key = k;
      if (shape_.qk_norms) {
        query = Norm(q, norm);
        key = Norm(k, norm);
      }
      query = Rope(query, position);
      key = Rope(key, position);
      Add(ggml_set_rows(c_, k_cache, ggml_reshape_2d(c_, key, length * kv_heads, rows_), slot));
      Add(ggml_set_rows(c_, v_cache, v, slot));
    }
    const std::size_t row = ggml_row_size(GGML_TYPE_F16, length * kv_heads),
                      head = ggml_row_size(GGML_TYPE_F16, length);
    ggml_tensor* keys = ggml_view_3d(c_, k_cache, length, n_cells, kv_heads, row, head, 0);
    ggml_tensor* values = ggml_view_3d(c_, v_cache, length, n_cells, kv_heads, row, head, 0);
    Add(ggml_flash_attn_ext(c_, ggml_permute(c_, query, 0, 2, 1, 3), keys, values, mask_, 0.1f, 0, 0));
    if (!only_attention) Add(x = ggml_add(c_, x, weight));
  }
  return Run();
}

Result<double> StepBench::Router(std::size_t n) {
  Begin((16 + 2 * shape_.n_used) * n);
  const std::int64_t experts = shape_.n_experts, used = std::min(shape_.n_used, shape_.n_experts);
  ggml_tensor *x = Rows(shape_.n_embd), *weight = Row(shape_.n_embd), *given = Rows(experts);
  ggml_tensor* matrix = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F32, shape_.n_embd, experts));
  ggml_tensor *gate = Heads(shape_.n_ff, used), *up = Heads(shape_.n_ff, used), *down = Heads(shape_.n_embd, used);
  for (std::size_t i = 0; i < n; ++i) {
    ggml_tensor* row = Norm(x, weight);
    Add(row);
    ggml_tensor* probabilities = ggml_soft_max(c_, rows_ > 1 ? ggml_mul_mat(c_, matrix, row) : given);
    ggml_tensor* order = ggml_argsort(c_, probabilities, GGML_SORT_ORDER_DESC);
    ggml_tensor* chosen = ggml_view_2d(c_, order, used, rows_, order->nb[1], 0);
    ggml_tensor* weights = ggml_get_rows(c_, ggml_reshape_3d(c_, probabilities, 1, experts, rows_), chosen);
    weights = ggml_reshape_2d(c_, weights, used, rows_);
    ggml_tensor* sum = ggml_clamp(c_, ggml_sum_rows(c_, weights), 1e-6f, 1e6f);
    weights = ggml_reshape_3d(c_, ggml_div(c_, weights, sum), 1, used, rows_);
    Add(ggml_swiglu_split(c_, gate, up));
    ggml_tensor* weighed = ggml_mul(c_, down, weights);
    ggml_tensor* total = ggml_view_2d(c_, weighed, shape_.n_embd, rows_, weighed->nb[2], 0);
    for (std::int64_t e = 1; e < used; ++e) {
      total = ggml_add(c_, total,
                       ggml_view_2d(c_, weighed, shape_.n_embd, rows_, weighed->nb[2],
                                    static_cast<std::size_t>(e) * weighed->nb[1]));
    }
    Add(x = ggml_add(c_, x, total));
  }
  return Run();
}

Result<double> StepBench::DeltaNet(std::size_t n) {
  Begin(32 * n);
  const std::int64_t length = shape_.delta_length, keys = shape_.delta_key_heads, values = shape_.delta_value_heads;
  const std::int64_t taps = shape_.delta_taps, channels = (2 * keys + values) * length;
  const std::int64_t kept = (taps - 1) * channels, memory = length * length * values;
  ggml_tensor *x = Rows(channels), *kernel = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F32, taps, channels));
  ggml_tensor* slot = Input(ggml_new_tensor_1d(c_, GGML_TYPE_I32, 1));
  ggml_tensor *decay = Input(ggml_new_tensor_4d(c_, GGML_TYPE_F32, 1, values, rows_, 1)), *norm = Row(length);
  ggml_tensor *beta = Input(ggml_new_tensor_4d(c_, GGML_TYPE_F32, 1, values, rows_, 1)), *gate = Heads(length, values);
  const std::size_t head = static_cast<std::size_t>(length) * sizeof(float);
  for (std::size_t i = 0; i < n; ++i) {
    // Each layer's own state is copied out of the cache, by one thread since it is one row, and the new one back.
    ggml_tensor* rows_cache = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F32, kept, 1));
    ggml_tensor* state_cache = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F32, memory, 1));
    ggml_tensor* before = ggml_reshape_2d(c_, ggml_get_rows(c_, rows_cache, slot), taps - 1, channels);
    ggml_tensor* state = ggml_reshape_4d(c_, ggml_get_rows(c_, state_cache, slot), length, length, values, 1);
    ggml_tensor* wide = ggml_concat(c_, before, ggml_transpose(c_, x), 0);
    ggml_tensor* last =
        ggml_view_2d(c_, wide, taps - 1, channels, wide->nb[1], static_cast<std::size_t>(rows_) * sizeof(float));
    Add(ggml_cpy(c_, last, ggml_view_1d(c_, rows_cache, kept, 0)));
    ggml_tensor* mixed = ggml_silu(c_, ggml_ssm_conv(c_, wide, kernel));
    const auto part = [&](std::int64_t heads, std::int64_t first) {
      return ggml_view_4d(c_, mixed, length, heads, rows_, 1, head, mixed->nb[1],
                          mixed->nb[1] * static_cast<std::size_t>(rows_), static_cast<std::size_t>(first) * head);
    };
    ggml_tensor *q = ggml_l2_norm(c_, part(keys, 0), kEpsilon), *k = ggml_l2_norm(c_, part(keys, keys), kEpsilon);
    ggml_tensor* both = ggml_gated_delta_net(c_, q, k, part(values, 2 * keys), decay, beta, state, 1);
    ggml_tensor* changed =
        ggml_view_1d(c_, both, memory, head * static_cast<std::size_t>(values) * static_cast<std::size_t>(rows_));
    Add(ggml_cpy(c_, changed, ggml_view_1d(c_, state_cache, memory, 0)));
    ggml_tensor* y = ggml_view_3d(c_, both, length, values, rows_, head, head * static_cast<std::size_t>(values), 0);
    Add(ggml_mul(c_, Norm(y, norm), ggml_silu(c_, gate)));
  }
  return Run();
}

void StepBench::Begin(std::size_t n_nodes) {
  context_ = NewContext(3 * n_nodes + 64, 3 * n_nodes + 64);
  c_ = context_.get();
  graph_ = ggml_new_graph_custom(c_, 3 * n_nodes + 64, false);
  inputs_.clear();
  mask_ = nullptr;
}

ggml_tensor* StepBench::Input(ggml_tensor* tensor) {
  ggml_set_input(tensor);
  ggml_set_output(tensor);  // or the allocator gives its memory away once it was read, and the next pass reads that
  inputs_.push_back(tensor);
  return tensor;
}

ggml_tensor* StepBench::Rope(ggml_tensor* heads, ggml_tensor* position) {
  const int dimensions = static_cast<int>(shape_.head_length / 2 * 2);
  return ggml_rope_ext(c_, heads, position, nullptr, dimensions, GGML_ROPE_TYPE_NEOX, 4096, 10000, 1, 0, 1, 32, 1);
}

void StepBench::Fill(ggml_tensor* input) {
  const std::size_t n = ggml_nelements(input) > 0 ? static_cast<std::size_t>(ggml_nelements(input)) : 0;
  if (input->type == GGML_TYPE_F32) {
    const std::vector<float> halves(n, 0.5f);
    ggml_backend_tensor_set(input, halves.data(), 0, n * sizeof(float));
    return;
  }
  if (input == mask_ && rows_ > 1) {
    std::vector<ggml_fp16_t> mask(n, ggml_fp32_to_fp16(0));
    const ggml_fp16_t hidden = ggml_fp32_to_fp16(-std::numeric_limits<float>::infinity());
    for (std::int64_t row = 0; row < input->ne[1]; ++row) {
      for (std::int64_t cell = row + 1; cell < input->ne[0]; ++cell)
        mask[static_cast<std::size_t>(row * input->ne[0] + cell)] = hidden;
    }
    ggml_backend_tensor_set(input, mask.data(), 0, n * sizeof(ggml_fp16_t));
    return;
  }
  const std::vector<std::byte> zeros(ggml_nbytes(input));
  ggml_backend_tensor_set(input, zeros.data(), 0, zeros.size());
}

Result<double> StepBench::Run() {
  RETURN_IF_FAULT(device_.Allocate(graph_));
  for (ggml_tensor* input : inputs_) {
    if (input->buffer != nullptr) Fill(input);  // an input that no step uses has no memory
  }
  return MedianPass(seconds_, [&] { return device_.Compute(graph_); });
}

}  // namespace linkcpp
