#include "kernel/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <vector>

#include "kernel/ggml_device.h"

namespace linkcpp {
namespace {

using CalibrationClock = std::chrono::steady_clock;

constexpr std::size_t kMostNodes = 2048;
constexpr double kPatience = 3;  // times the seconds that were asked for
// Every byte of the made-up weights: as a scale in F16 0.047, and no type reads it as NaN or a denormal.
constexpr int kWeightByte = 0x2a;

double SecondsSince(CalibrationClock::time_point start) {
  return std::chrono::duration<double>(CalibrationClock::now() - start).count();
}

// The median of as many passes as fit into `seconds`, three at least, after one that is not counted.
Result<double> MedianPass(double seconds, const std::function<Result<void>()>& pass) {
  RETURN_IF_FAULT(pass());
  std::vector<double> times;
  const auto begin = CalibrationClock::now();
  while (times.size() < 3 || (SecondsSince(begin) < seconds && times.size() < 10'000)) {
    const auto start = CalibrationClock::now();
    RETURN_IF_FAULT(pass());
    times.push_back(SecondsSince(start));
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

// Matrices of one kind over up to `most_bytes`, each multiplied once a pass: seconds a byte.
class KindBench {
 public:
  KindBench(const MatrixKind& kind, GgmlDevice& device) : kind_(kind), device_(device) {}

  Result<double> SecondsAByte(double seconds, std::uint64_t most_bytes) {
    const auto type = static_cast<ggml_type>(kind_.type);
    const std::int64_t n_experts = std::max<std::int64_t>(kind_.n_experts, 1);
    const std::uint64_t matrix = ggml_row_size(type, kind_.n_in) * kind_.n_out;
    const std::uint64_t bytes = std::clamp(kind_.stored_bytes, matrix, std::max(most_bytes, matrix));
    // A layer of experts that is too large for the limit gets fewer of them.
    const std::int64_t experts = std::clamp<std::int64_t>(static_cast<std::int64_t>(bytes / matrix), 1, n_experts);
    const std::uint64_t tensor = matrix * static_cast<std::uint64_t>(experts);
    const std::size_t n_tensors = std::clamp<std::size_t>(bytes / tensor, 1, kMostNodes / 2);
    const std::int64_t used = std::clamp<std::int64_t>(kind_.n_used, 1, experts);

    context_ = NewContext(2 * n_tensors + 8, 2 * n_tensors + 8);
    std::vector<ggml_tensor*> weights;
    for (std::size_t i = 0; i < n_tensors; ++i) {
      weights.push_back(kind_.n_experts > 0 ? ggml_new_tensor_3d(context_.get(), type, kind_.n_in, kind_.n_out, experts)
                                            : ggml_new_tensor_2d(context_.get(), type, kind_.n_in, kind_.n_out));
    }
    RETURN_IF_FAULT(Place(weights));
    ggml_tensor* x = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, kind_.n_in, 1, 1);
    ggml_tensor* ids = ggml_new_tensor_2d(context_.get(), GGML_TYPE_I32, used, 1);
    ggml_set_input(x);
    ggml_set_input(ids);
    ggml_cgraph* graph = ggml_new_graph_custom(context_.get(), 2 * n_tensors + 8, false);
    for (ggml_tensor* weight : weights) {
      ggml_tensor* y = kind_.n_experts > 0 ? ggml_mul_mat_id(context_.get(), weight, x, ids)
                                           : ggml_mul_mat(context_.get(), weight, x);
      ggml_build_forward_expand(graph, y);
    }
    RETURN_IF_FAULT(device_.Allocate(graph));
    const std::vector<float> row(kind_.n_in, 0.5f);
    ggml_backend_tensor_set(x, row.data(), 0, row.size() * sizeof(float));
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(used));
    std::int32_t turn = 0;
    const auto pass = [&]() -> Result<void> {
      if (kind_.n_experts > 0) {  // other experts each time, spread over the layer
        for (std::int64_t i = 0; i < used; ++i) {
          chosen[static_cast<std::size_t>(i)] = static_cast<std::int32_t>((turn + i * experts / used) % experts);
        }
        turn = static_cast<std::int32_t>((turn + 7) % experts);
        ggml_backend_tensor_set(ids, chosen.data(), 0, chosen.size() * sizeof(std::int32_t));
      }
      return device_.Compute(graph);
    };
    ASSIGN_OR_RETURN(const double median, MedianPass(seconds, pass));
    const std::uint64_t read = kind_.n_experts > 0 ? matrix * static_cast<std::uint64_t>(used) : matrix;
    return median / static_cast<double>(read * n_tensors);
  }

 private:
  // Memory of the buffer type llama.cpp would choose, filled without being converted: only its layout is made up.
  Result<void> Place(const std::vector<ggml_tensor*>& weights) {
    ggml_backend_buffer_type_t type =
        kind_.n_experts > 0
            ? device_.ChooseWeightBuffer(static_cast<ggml_type>(kind_.type), kind_.n_in, kind_.n_out, kind_.n_experts)
            : device_.ChooseMatrixBuffer(static_cast<ggml_type>(kind_.type), kind_.n_in, kind_.n_out);
    if (type == nullptr) return Fail(FaultCode::kLocal, "the device can not multiply matrices of type {}", kind_.type);
    const std::size_t align = ggml_backend_buft_get_alignment(type);
    std::vector<std::size_t> offsets;
    std::size_t end = 0;
    for (ggml_tensor* weight : weights) {
      offsets.push_back(end);
      end += (ggml_backend_buft_get_alloc_size(type, weight) + align - 1) / align * align;
    }
    buffer_.reset(ggml_backend_buft_alloc_buffer(type, end));
    if (buffer_ == nullptr) return Fail(FaultCode::kLocal, "no memory to measure with: {} bytes", end);
    auto* base = static_cast<char*>(ggml_backend_buffer_get_base(buffer_.get()));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (ggml_backend_tensor_alloc(buffer_.get(), weights[i], base + offsets[i]) != GGML_STATUS_SUCCESS) {
        return Fail(FaultCode::kLocal, "the device refuses a matrix of type {}", kind_.type);
      }
    }
    if (ggml_backend_buffer_is_host(buffer_.get()) || !device_.info().is_gpu) {
      std::memset(base, kWeightByte, end);
    } else {
      ggml_backend_buffer_clear(buffer_.get(), kWeightByte);
    }
    return {};
  }

  const MatrixKind& kind_;
  GgmlDevice& device_;
  GgmlBuffer buffer_;
  GgmlContext context_;
};

// Graphs of small steps on one row, each repeated so that starting the graph does not count: seconds a repetition.
class StepBench {
 public:
  StepBench(const LayerShape& shape, GgmlDevice& device, double seconds)
      : shape_(shape), device_(device), seconds_(seconds) {}

  Result<double> Steps(std::size_t n) {
    Begin(n);
    ggml_tensor *x = Row(shape_.n_embd), *other = Row(shape_.n_embd), *y = x;
    for (std::size_t i = 0; i < n; ++i) {
      y = i % 3 == 0 ? ggml_rms_norm(c_, y, kEpsilon) : i % 3 == 1 ? ggml_mul(c_, y, other) : ggml_add(c_, y, other);
    }
    Add(y);
    return Run();
  }

  // `n` layers; attention alone when `only_attention`.
  Result<double> Attention(std::size_t n, std::int64_t n_cells, bool only_attention) {
    Begin(16 * n);
    const std::int64_t length = shape_.head_length, heads = shape_.n_head, kv_heads = shape_.n_head_kv;
    ggml_tensor *x = Row(shape_.n_embd), *weight = Row(shape_.n_embd), *norm = Row(length);
    ggml_tensor* q = Input(ggml_new_tensor_3d(c_, GGML_TYPE_F32, length, heads, 1));
    ggml_tensor* k = Input(ggml_new_tensor_3d(c_, GGML_TYPE_F32, length, kv_heads, 1));
    ggml_tensor* v = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F32, length * kv_heads, 1));
    ggml_tensor* position = Input(ggml_new_tensor_1d(c_, GGML_TYPE_I32, 1));
    ggml_tensor* slot = Input(ggml_new_tensor_1d(c_, GGML_TYPE_I64, 1));
    ggml_tensor* mask = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F16, n_cells, 1));
    for (std::size_t i = 0; i < n; ++i) {
      ggml_tensor* k_cache = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F16, length * kv_heads, n_cells));
      ggml_tensor* v_cache = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F16, length * kv_heads, n_cells));
      ggml_tensor* query = q;
      if (!only_attention) {
        Add(ggml_mul(c_, ggml_rms_norm(c_, x, kEpsilon), weight));
        ggml_tensor* key = k;
        if (shape_.qk_norms) {
          query = ggml_mul(c_, ggml_rms_norm(c_, q, kEpsilon), norm);
          key = ggml_mul(c_, ggml_rms_norm(c_, k, kEpsilon), norm);
        }
        query = Rope(query, position);
        key = Rope(key, position);
        Add(ggml_set_rows(c_, k_cache, ggml_reshape_2d(c_, key, length * kv_heads, 1), slot));
        Add(ggml_set_rows(c_, v_cache, v, slot));
      }
      const std::size_t row = ggml_row_size(GGML_TYPE_F16, length * kv_heads),
                        head = ggml_row_size(GGML_TYPE_F16, length);
      ggml_tensor* keys = ggml_view_3d(c_, k_cache, length, n_cells, kv_heads, row, head, 0);
      ggml_tensor* values = ggml_view_3d(c_, v_cache, length, n_cells, kv_heads, row, head, 0);
      Add(ggml_flash_attn_ext(c_, ggml_permute(c_, query, 0, 2, 1, 3), keys, values, mask, 0.1f, 0, 0));
      if (!only_attention) Add(x = ggml_add(c_, x, weight));
    }
    return Run();
  }

  Result<double> Router(std::size_t n) {
    Begin((16 + 2 * shape_.n_used) * n);
    const std::int64_t experts = shape_.n_experts, used = std::min(shape_.n_used, shape_.n_experts);
    ggml_tensor *x = Row(shape_.n_embd), *weight = Row(shape_.n_embd), *logits = Row(experts);
    ggml_tensor* gate = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F32, shape_.n_ff, used));
    ggml_tensor* up = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F32, shape_.n_ff, used));
    ggml_tensor* down = Input(ggml_new_tensor_2d(c_, GGML_TYPE_F32, shape_.n_embd, used));
    for (std::size_t i = 0; i < n; ++i) {
      Add(ggml_mul(c_, ggml_rms_norm(c_, x, kEpsilon), weight));
      ggml_tensor* probabilities = ggml_soft_max(c_, logits);
      ggml_tensor* order = ggml_argsort(c_, probabilities, GGML_SORT_ORDER_DESC);
      ggml_tensor* chosen = ggml_view_1d(c_, order, used, 0);
      ggml_tensor* weights = ggml_get_rows(c_, ggml_reshape_2d(c_, probabilities, 1, experts), chosen);
      weights = ggml_reshape_1d(c_, weights, used);
      ggml_tensor* sum = ggml_clamp(c_, ggml_sum_rows(c_, weights), 1e-6f, 1e6f);
      weights = ggml_reshape_2d(c_, ggml_div(c_, weights, sum), 1, used);
      Add(ggml_swiglu_split(c_, gate, up));
      ggml_tensor* weighed = ggml_mul(c_, down, weights);
      ggml_tensor* total = ggml_view_1d(c_, weighed, shape_.n_embd, 0);
      for (std::int64_t e = 1; e < used; ++e) {
        total =
            ggml_add(c_, total, ggml_view_1d(c_, weighed, shape_.n_embd, static_cast<std::size_t>(e) * weighed->nb[1]));
      }
      Add(x = ggml_add(c_, x, total));
    }
    return Run();
  }

 private:
  static constexpr float kEpsilon = 1e-6f;

  void Begin(std::size_t n_nodes) {
    context_ = NewContext(3 * n_nodes + 64, 3 * n_nodes + 64);
    c_ = context_.get();
    graph_ = ggml_new_graph_custom(c_, 3 * n_nodes + 64, false);
    inputs_.clear();
  }
  ggml_tensor* Input(ggml_tensor* tensor) {
    ggml_set_input(tensor);
    inputs_.push_back(tensor);
    return tensor;
  }
  ggml_tensor* Row(std::int64_t n) { return Input(ggml_new_tensor_1d(c_, GGML_TYPE_F32, n)); }
  ggml_tensor* Rope(ggml_tensor* heads, ggml_tensor* position) {
    const int dimensions = static_cast<int>(shape_.head_length / 2 * 2);
    return ggml_rope_ext(c_, heads, position, nullptr, dimensions, GGML_ROPE_TYPE_NEOX, 4096, 10000, 1, 0, 1, 32, 1);
  }
  void Add(ggml_tensor* tensor) { ggml_build_forward_expand(graph_, tensor); }
  Result<double> Run() {
    RETURN_IF_FAULT(device_.Allocate(graph_));
    std::vector<float> halves;
    for (ggml_tensor* input : inputs_) {  // an input that no step uses has no memory
      if (input->buffer == nullptr) continue;
      halves.assign(ggml_nbytes(input) / sizeof(float) + 1, input->type == GGML_TYPE_F32 ? 0.5f : 0.0f);
      ggml_backend_tensor_set(input, halves.data(), 0, ggml_nbytes(input));
    }
    return MedianPass(seconds_, [&] { return device_.Compute(graph_); });
  }

  const LayerShape& shape_;
  GgmlDevice& device_;
  const double seconds_;
  GgmlContext context_;
  ggml_context* c_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  std::vector<ggml_tensor*> inputs_;
};

struct Rates {
  double dense_gbs = 0, expert_gbs = 0;
};

Result<Rates> MatrixRates(std::span<const MatrixKind> kinds, GgmlDevice& device, double seconds,
                          std::uint64_t most_bytes) {
  double dense_bytes = 0, dense_seconds = 0, expert_bytes = 0, expert_seconds = 0;
  const double share = seconds / static_cast<double>(std::max<std::size_t>(kinds.size(), 1));
  // Getting and filling memory takes its time too, on a busy machine a multiple: then fewer kinds must do.
  const auto begin = CalibrationClock::now();
  for (const MatrixKind& kind : kinds) {
    const bool has_alike = kind.n_experts > 0 ? expert_bytes > 0 : dense_bytes > 0;
    if (has_alike && SecondsSince(begin) > kPatience * seconds) continue;
    ASSIGN_OR_RETURN(const double a_byte, KindBench(kind, device).SecondsAByte(share, most_bytes));
    const auto bytes = static_cast<double>(kind.token_bytes);
    (kind.n_experts > 0 ? expert_bytes : dense_bytes) += bytes;
    (kind.n_experts > 0 ? expert_seconds : dense_seconds) += bytes * a_byte;
  }
  return Rates{.dense_gbs = dense_seconds > 0 ? dense_bytes / dense_seconds / 1e9 : 0,
               .expert_gbs = expert_seconds > 0 ? expert_bytes / expert_seconds / 1e9 : 0};
}

}  // namespace

Result<double> CalibrateExperts(std::span<const MatrixKind> kinds, Device& device, double seconds,
                                std::uint64_t most_bytes) {
  std::vector<MatrixKind> experts;
  std::ranges::copy_if(kinds, std::back_inserter(experts), [](const MatrixKind& kind) { return kind.n_experts > 0; });
  ASSIGN_OR_RETURN(const Rates rates, MatrixRates(experts, static_cast<GgmlDevice&>(device), seconds, most_bytes));
  return rates.expert_gbs;
}

Result<Calibration> Calibrate(std::span<const MatrixKind> kinds, const LayerShape& layer, Device& device,
                              double seconds, std::uint64_t most_bytes) {
  auto& ggml = static_cast<GgmlDevice&>(device);
  Calibration result;
  ASSIGN_OR_RETURN(const Rates rates, MatrixRates(kinds, ggml, 0.6 * seconds, most_bytes));
  result.dense_gbs = rates.dense_gbs;
  result.expert_gbs = rates.expert_gbs;
  constexpr std::size_t kSteps = 240, kLayers = 12;
  constexpr std::int64_t kFewCells = 256, kManyCells = 4096;
  StepBench steps(layer, ggml, 0.08 * seconds);
  ASSIGN_OR_RETURN(result.graph_seconds, steps.Steps(1));
  const auto less_start = [&](double total) { return std::max(0.0, total - result.graph_seconds); };
  ASSIGN_OR_RETURN(const double chain, steps.Steps(kSteps + 1));
  result.step_seconds = less_start(chain) / kSteps;
  ASSIGN_OR_RETURN(const double attention, steps.Attention(kLayers, kFewCells, false));
  result.attention_seconds = less_start(attention) / kLayers;
  ASSIGN_OR_RETURN(const double router, steps.Router(kLayers));
  result.router_seconds = less_start(router) / kLayers;
  ASSIGN_OR_RETURN(const double few, steps.Attention(kLayers, kFewCells, true));
  ASSIGN_OR_RETURN(const double many, steps.Attention(kLayers, kManyCells, true));
  const double cells_bytes = 4.0 * layer.head_length * layer.n_head_kv * kLayers * (kManyCells - kFewCells);
  if (many > few) result.attention_gbs = cells_bytes / (many - few) / 1e9;
  return result;
}

}  // namespace linkcpp
