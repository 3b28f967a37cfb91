#include "kernel/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "kernel/ggml_device.h"

namespace linkcpp {
namespace {

using CalibrationClock = std::chrono::steady_clock;

constexpr std::size_t kMostKinds = 5;
constexpr std::size_t kMostNodes = 2048;
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
    ggml_backend_buffer_type_t type = kind_.n_experts > 0
                                          ? device_.ChooseWeightBuffer(static_cast<ggml_type>(kind_.type), kind_.n_in,
                                                                       kind_.n_out, kind_.n_experts)
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

// A chain of `n` small steps on one row: seconds a pass.
Result<double> ChainSeconds(std::uint32_t n_embd, std::size_t n, GgmlDevice& device, double seconds) {
  const GgmlContext context = NewContext(n + 8, n + 8);
  ggml_tensor* x = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, n_embd);
  ggml_tensor* other = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, n_embd);
  ggml_set_input(x);
  ggml_set_input(other);
  ggml_tensor* y = x;
  for (std::size_t i = 0; i < n; ++i) {
    switch (i % 3) {
      case 0: y = ggml_rms_norm(context.get(), y, 1e-6f); break;
      case 1: y = ggml_mul(context.get(), y, other); break;
      default: y = ggml_add(context.get(), y, other); break;
    }
  }
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), n + 8, false);
  ggml_build_forward_expand(graph, y);
  RETURN_IF_FAULT(device.Allocate(graph));
  const std::vector<float> row(n_embd, 0.5f);
  ggml_backend_tensor_set(x, row.data(), 0, row.size() * sizeof(float));
  if (other->buffer != nullptr) ggml_backend_tensor_set(other, row.data(), 0, row.size() * sizeof(float));  // a chain of one has none
  return MedianPass(seconds, [&] { return device.Compute(graph); });
}

}  // namespace

Result<Calibration> Calibrate(std::span<const MatrixKind> kinds, std::uint32_t n_embd, Device& device, double seconds,
                              std::uint64_t most_bytes) {
  auto& ggml = static_cast<GgmlDevice&>(device);
  std::vector<const MatrixKind*> order;
  for (const MatrixKind& kind : kinds) order.push_back(&kind);
  std::ranges::stable_sort(order, std::greater(), [](const MatrixKind* kind) { return kind->token_bytes; });
  if (order.size() > kMostKinds) order.resize(kMostKinds);

  Calibration result;
  double dense_bytes = 0, dense_seconds = 0, expert_bytes = 0, expert_seconds = 0;
  const double share = 0.6 * seconds / static_cast<double>(std::max<std::size_t>(order.size(), 1));
  for (const MatrixKind* kind : order) {
    ASSIGN_OR_RETURN(const double a_byte, KindBench(*kind, ggml).SecondsAByte(share, most_bytes));
    const auto bytes = static_cast<double>(kind->token_bytes);
    (kind->n_experts > 0 ? expert_bytes : dense_bytes) += bytes;
    (kind->n_experts > 0 ? expert_seconds : dense_seconds) += bytes * a_byte;
  }
  if (dense_seconds > 0) result.dense_gbs = dense_bytes / dense_seconds / 1e9;
  if (expert_seconds > 0) result.expert_gbs = expert_bytes / expert_seconds / 1e9;
  constexpr std::size_t kChain = 241;
  ASSIGN_OR_RETURN(const double chain, ChainSeconds(std::max(n_embd, 1u), kChain, ggml, 0.05));
  ASSIGN_OR_RETURN(result.dispatch_seconds, ChainSeconds(std::max(n_embd, 1u), 1, ggml, 0.02));
  result.node_seconds = std::max(0.0, chain - result.dispatch_seconds) / (kChain - 1);
  return result;
}

}  // namespace linkcpp
