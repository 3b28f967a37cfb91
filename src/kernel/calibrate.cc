#include "kernel/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <vector>

#include "kernel/calibrate_layers.h"
#include "kernel/ggml_device.h"

namespace linkcpp {
namespace {

constexpr std::size_t kMostNodes = 2048;
constexpr double kPatience = 3;              // times the seconds that were asked for
constexpr std::int64_t kBatchColumns = 256;  // a matrix that is too large for that is cut to a multiple of it
// Every byte of the made-up weights: as a scale in F16 0.047, and no type reads it as NaN or a denormal.
constexpr int kWeightByte = 0x2a;

// Memory for made-up weights, one piece for each buffer type, which all kinds use in turn: getting and filling half a
// GiB takes longer than measuring on it.
class MadeUpWeights {
 public:
  explicit MadeUpWeights(const GgmlDevice& device) : device_(device) {}

  // `bytes` of it, each kWeightByte; good until more is asked for.
  Result<ggml_backend_buffer_t> Take(ggml_backend_buffer_type_t type, std::size_t bytes) {
    GgmlBuffer& buffer = pieces_[type];
    if (buffer != nullptr && ggml_backend_buffer_get_size(buffer.get()) >= bytes) return buffer.get();
    buffer.reset();
    buffer.reset(ggml_backend_buft_alloc_buffer(type, bytes));
    if (buffer == nullptr) return Fail(FaultCode::kLocal, "no memory to measure with: {} bytes", bytes);
    if (ggml_backend_buffer_is_host(buffer.get()) || !device_.info().is_gpu) {
      std::memset(ggml_backend_buffer_get_base(buffer.get()), kWeightByte,
                  bytes);  // not converted: only the layout counts
    } else {
      ggml_backend_buffer_clear(buffer.get(), kWeightByte);
    }
    return buffer.get();
  }

 private:
  const GgmlDevice& device_;
  std::map<ggml_backend_buffer_type_t, GgmlBuffer> pieces_;
};

// Matrices of one kind over up to `most_bytes`, each multiplied once a pass: seconds a byte.
class KindBench {
 public:
  KindBench(const MatrixKind& kind, GgmlDevice& device, MadeUpWeights& memory)
      : kind_(kind), device_(device), memory_(memory) {}

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

  // A matrix, or some experts of a layer, with as many rows as a batch of `n_rows` tokens has for each: seconds a byte
  // and row. Experts that would take too long are measured on fewer of them, and as many fewer tokens. Of a matrix two
  // cuts of columns are measured, since turning the rows into the format of the product takes its time whatever the
  // columns.
  Result<double> SecondsAByteAndRow(double seconds, std::uint32_t n_rows) {
    const double all = 2.0 * kind_.n_in * kind_.n_out * n_rows;
    if (kind_.n_experts > 0) {
      const std::int64_t used = std::clamp<std::int64_t>(kind_.n_used, 1, kind_.n_experts);
      const std::int64_t experts = FewerExperts(kind_.n_experts, used, all * static_cast<double>(used));
      const std::int64_t rows = std::max<std::int64_t>(1, std::int64_t{n_rows} * experts / kind_.n_experts);
      ASSIGN_OR_RETURN(const double median, BatchPass(seconds, kind_.n_out, rows, experts, used));
      return median / (MatrixBytes() * static_cast<double>(rows * used));
    }
    const double columns = kind_.n_out * std::min(1.0, kBatchOperations / all);
    const std::int64_t many = static_cast<std::int64_t>(columns) / kBatchColumns * kBatchColumns;
    const std::int64_t few = std::max(many / 4 / kBatchColumns, std::int64_t{1}) * kBatchColumns;
    if (many <= few || many >= kind_.n_out) {
      ASSIGN_OR_RETURN(const double median, BatchPass(seconds, kind_.n_out, n_rows, 0, 1));
      return median / (MatrixBytes() * n_rows);
    }
    ASSIGN_OR_RETURN(const double short_pass, BatchPass(seconds / 2, few, n_rows, 0, 1));
    ASSIGN_OR_RETURN(const double long_pass, BatchPass(seconds / 2, many, n_rows, 0, 1));
    const auto a_column = std::max(0.0, long_pass - short_pass) / static_cast<double>(many - few);
    const double whole = long_pass + a_column * static_cast<double>(kind_.n_out - many);
    return whole / (MatrixBytes() * n_rows);
  }

 private:
  double MatrixBytes() const {
    return static_cast<double>(ggml_row_size(static_cast<ggml_type>(kind_.type), kind_.n_in)) * kind_.n_out;
  }

  // Seconds of one product; `experts` 0: of a plain matrix.
  Result<double> BatchPass(double seconds, std::int64_t n_out, std::int64_t rows, std::int64_t experts,
                           std::int64_t used) {
    const auto type = static_cast<ggml_type>(kind_.type);
    const bool chosen = experts > 0;
    const double operations = 2.0 * kind_.n_in * static_cast<double>(n_out * rows * used);
    const std::uint64_t bytes =
        ggml_row_size(type, kind_.n_in) * static_cast<std::uint64_t>(n_out * std::max<std::int64_t>(experts, 1));
    const std::size_t turns = BatchTurns(bytes, kind_.stored_bytes, operations);
    context_ = NewContext(2 * turns + 8, 2 * turns + 8);
    std::vector<ggml_tensor*> weights;
    for (std::size_t i = 0; i < turns; ++i) {
      weights.push_back(chosen ? ggml_new_tensor_3d(context_.get(), type, kind_.n_in, n_out, experts)
                               : ggml_new_tensor_2d(context_.get(), type, kind_.n_in, n_out));
    }
    RETURN_IF_FAULT(Place(weights));
    const std::int64_t rows_each = kind_.row_each ? used : 1;
    ggml_tensor* x = chosen ? ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, kind_.n_in, rows_each, rows)
                            : ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, kind_.n_in, rows);
    ggml_tensor* ids = ggml_new_tensor_2d(context_.get(), GGML_TYPE_I32, used, rows);
    ggml_set_input(x);
    ggml_set_input(ids);
    ggml_cgraph* graph = ggml_new_graph_custom(context_.get(), 2 * turns + 8, false);
    for (ggml_tensor* weight : weights) {
      ggml_build_forward_expand(
          graph, chosen ? ggml_mul_mat_id(context_.get(), weight, x, ids) : ggml_mul_mat(context_.get(), weight, x));
    }
    RETURN_IF_FAULT(device_.Allocate(graph));
    const std::vector<float> halves(static_cast<std::size_t>(ggml_nelements(x)), 0.5f);
    ggml_backend_tensor_set(x, halves.data(), 0, halves.size() * sizeof(float));
    if (chosen) {
      const std::vector<std::int32_t> choice = ChooseAtRandom(experts, used, rows);
      ggml_backend_tensor_set(ids, choice.data(), 0, choice.size() * sizeof(std::int32_t));
    }
    ASSIGN_OR_RETURN(const double median, MedianPass(seconds, [&] { return device_.Compute(graph); }));
    return median / static_cast<double>(turns);
  }

  // Memory of the buffer type llama.cpp would choose.
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
    ASSIGN_OR_RETURN(const ggml_backend_buffer_t buffer, memory_.Take(type, end));
    auto* base = static_cast<char*>(ggml_backend_buffer_get_base(buffer));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (ggml_backend_tensor_alloc(buffer, weights[i], base + offsets[i]) != GGML_STATUS_SUCCESS) {
        return Fail(FaultCode::kLocal, "the device refuses a matrix of type {}", kind_.type);
      }
    }
    return {};
  }

  const MatrixKind& kind_;
  GgmlDevice& device_;
  MadeUpWeights& memory_;
  GgmlContext context_;
};

struct Rates {
  double dense_gbs = 0, expert_gbs = 0;
};

// Over all kinds, each weighed by the bytes a token takes of it. `seconds_a_byte`: (bench, seconds it may take).
template <class SecondsAByte>
Result<Rates> RatesOf(std::span<const MatrixKind> kinds, GgmlDevice& device, double seconds,
                      const SecondsAByte& seconds_a_byte) {
  double dense_bytes = 0, dense_seconds = 0, expert_bytes = 0, expert_seconds = 0;
  const double share = seconds / static_cast<double>(std::max<std::size_t>(kinds.size(), 1));
  // Getting and filling memory takes its time too, on a busy machine a multiple: then fewer kinds must do.
  const auto begin = CalibrationClock::now();
  MadeUpWeights memory(device);
  for (const MatrixKind& kind : kinds) {
    const bool has_alike = kind.n_experts > 0 ? expert_bytes > 0 : dense_bytes > 0;
    if (has_alike && SecondsSince(begin) > kPatience * seconds) continue;
    KindBench bench(kind, device, memory);
    ASSIGN_OR_RETURN(const double a_byte, seconds_a_byte(bench, share));
    const auto bytes = static_cast<double>(kind.token_bytes);
    (kind.n_experts > 0 ? expert_bytes : dense_bytes) += bytes;
    (kind.n_experts > 0 ? expert_seconds : dense_seconds) += bytes * a_byte;
  }
  return Rates{.dense_gbs = dense_seconds > 0 ? dense_bytes / dense_seconds / 1e9 : 0,
               .expert_gbs = expert_seconds > 0 ? expert_bytes / expert_seconds / 1e9 : 0};
}

Result<Rates> MatrixRates(std::span<const MatrixKind> kinds, GgmlDevice& device, double seconds,
                          std::uint64_t most_bytes) {
  return RatesOf(kinds, device, seconds,
                 [&](KindBench& bench, double share) { return bench.SecondsAByte(share, most_bytes); });
}

// The same of a batch's rows.
Result<Rates> BatchMatrixRates(std::span<const MatrixKind> kinds, GgmlDevice& device, double seconds,
                               std::uint32_t n_rows) {
  return RatesOf(kinds, device, seconds,
                 [&](KindBench& bench, double share) { return bench.SecondsAByteAndRow(share, n_rows); });
}

std::vector<MatrixKind> ExpertsOnly(std::span<const MatrixKind> kinds) {
  std::vector<MatrixKind> experts;
  std::ranges::copy_if(kinds, std::back_inserter(experts), [](const MatrixKind& kind) { return kind.n_experts > 0; });
  return experts;
}

}  // namespace

Result<BatchCalibration> CalibrateBatch(std::span<const MatrixKind> kinds, const LayerShape& layer, Device& device,
                                        double seconds, std::uint32_t n_rows) {
  auto& ggml = static_cast<GgmlDevice&>(device);
  BatchCalibration result;
  ASSIGN_OR_RETURN(const Rates rates, BatchMatrixRates(kinds, ggml, 0.6 * seconds, n_rows));
  result.dense_gbs = rates.dense_gbs;
  result.expert_gbs = rates.expert_gbs;
  StepBench steps(layer, ggml, 0.1 * seconds, n_rows);
  constexpr std::size_t kSteps = 12;
  ASSIGN_OR_RETURN(const double chain, steps.Steps(kSteps));
  result.step_seconds = chain / kSteps;
  const std::int64_t cells = (std::int64_t{n_rows} + 255) / 256 * 256;
  ASSIGN_OR_RETURN(result.attention_seconds, steps.Attention(1, cells, false));
  ASSIGN_OR_RETURN(result.router_seconds, steps.Router(1));
  if (layer.delta_length > 0) {
    ASSIGN_OR_RETURN(result.delta_net_seconds, steps.DeltaNet(1));
  }
  return result;
}

Result<double> CalibrateExperts(std::span<const MatrixKind> kinds, Device& device, double seconds,
                                std::uint64_t most_bytes) {
  ASSIGN_OR_RETURN(const Rates rates,
                   MatrixRates(ExpertsOnly(kinds), static_cast<GgmlDevice&>(device), seconds, most_bytes));
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
  if (layer.delta_length > 0) {
    ASSIGN_OR_RETURN(const double delta_net, steps.DeltaNet(kLayers));
    result.delta_net_seconds = less_start(delta_net) / kLayers;
  }
  ASSIGN_OR_RETURN(const double few, steps.Attention(kLayers, kFewCells, true));
  ASSIGN_OR_RETURN(const double many, steps.Attention(kLayers, kManyCells, true));
  const double cells_bytes = 4.0 * layer.head_length * layer.n_head_kv * kLayers * (kManyCells - kFewCells);
  if (many > few) result.attention_gbs = cells_bytes / (many - few) / 1e9;
  return result;
}

}  // namespace linkcpp
