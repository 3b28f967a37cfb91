// For tests: a MoE layer as llama.cpp holds and runs it, built with ggml directly. Full expert tensors in the buffer
// type the host would choose, set whole; the graph written out by hand. Shares no code with the stack it is compared
// with.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernel/expert_stack.h"

namespace linkcpp::testing {

inline std::vector<float> RandomFloats(std::size_t count, Rng& rng, double scale = 1.0) {
  std::vector<float> values(count);
  for (float& value : values) {  // a sum of four uniforms: bell-shaped enough, with tails
    double sum = -2.0;
    for (int i = 0; i < 4; ++i) sum += rng.Uniform();
    value = static_cast<float>(sum * scale);
  }
  return values;
}

// n_rows rows of n_in random numbers in the given ggml type.
inline std::vector<std::byte> RandomWeights(ggml_type type, std::int64_t n_in, std::int64_t n_rows, Rng& rng) {
  const std::vector<float> values =
      RandomFloats(static_cast<std::size_t>(n_in * n_rows), rng, 2.0 / std::sqrt(double(n_in)));
  std::vector<std::byte> bytes(ggml_row_size(type, n_in) * static_cast<std::size_t>(n_rows));
  const std::vector<float> importance(static_cast<std::size_t>(n_in), 1.0f);
  ggml_quantize_chunk(type, values.data(), bytes.data(), 0, n_rows, n_in, importance.data());
  return bytes;
}

// All experts of a layer in host memory, as a model file has them.
struct ToyLayer {
  ExpertShape shape;
  std::uint32_t n_experts = 0;
  struct Data {
    std::vector<std::byte> weight;
    std::vector<float> bias;
    std::vector<float> scale;
  };
  std::array<Data, kProjections> data;

  ToyLayer(const ExpertShape& expert_shape, std::uint32_t experts, std::uint64_t seed)
      : shape(expert_shape), n_experts(experts) {
    Rng rng(seed);
    for (std::size_t i = 0; i < kProjections; ++i) {
      if (!shape.projections[i]) continue;
      const ProjectionShape& projection = *shape.projections[i];
      data[i].weight = RandomWeights(static_cast<ggml_type>(projection.type), projection.n_in,
                                     std::int64_t{projection.n_out} * n_experts, rng);
      if (projection.has_bias) data[i].bias = RandomFloats(projection.n_out * std::size_t{n_experts}, rng, 0.3);
      if (projection.has_scale) data[i].scale = RandomFloats(n_experts, rng, 1.0);
    }
  }

  ExpertSlabs Slabs(std::uint32_t expert) const {
    ExpertSlabs slabs;
    for (std::size_t i = 0; i < kProjections; ++i) {
      const auto part = [&](const auto& all) {
        const auto bytes = std::as_bytes(std::span(all));
        return bytes.subspan(bytes.size() / n_experts * expert, bytes.size() / n_experts);
      };
      slabs.projections[i] = {part(data[i].weight), part(data[i].bias), part(data[i].scale)};
    }
    return slabs;
  }
};

inline ProjectionShape Matrix(ggml_type type, std::uint32_t n_in, std::uint32_t n_out, bool bias = false,
                              bool scale = false) {
  return {.type = static_cast<std::uint32_t>(type), .n_in = n_in, .n_out = n_out, .has_bias = bias, .has_scale = scale};
}

// gate, up: [n_embd, n_ff]; down: [n_ff, n_embd].
inline ExpertShape GatedShape(ggml_type gate_up, ggml_type down, std::uint32_t n_embd, std::uint32_t n_ff,
                              bool bias = false, bool scale = false) {
  ExpertShape shape;
  shape.projections[0] = Matrix(gate_up, n_embd, n_ff, bias, scale);
  shape.projections[1] = Matrix(gate_up, n_embd, n_ff, bias, scale);
  shape.projections[2] = Matrix(down, n_ff, n_embd, bias, scale);
  return shape;
}
inline ExpertShape MergedShape(ggml_type gate_up, ggml_type down, std::uint32_t n_embd, std::uint32_t n_ff) {
  ExpertShape shape;
  shape.projections[3] = Matrix(gate_up, n_embd, 2 * n_ff);
  shape.projections[2] = Matrix(down, n_ff, n_embd);
  return shape;
}

class HostLayer {
 public:
  // What the graph's author has in hand.
  struct Graph {
    ggml_context* context;
    const HostLayer* layer;
    ggml_tensor* x;    // [n_embd, 1, tokens]
    ggml_tensor* ids;  // [used, tokens]
    ggml_tensor* Project(Projection projection, ggml_tensor* row) const {
      return ggml_mul_mat_id(context, layer->weight(projection), row, ids);
    }
    ggml_tensor* Bias(Projection projection, ggml_tensor* row) const {
      return ggml_add_id(context, row, layer->bias_[static_cast<std::size_t>(projection)], ids);
    }
    ggml_tensor* Scale(Projection projection, ggml_tensor* row) const {  // as llama.cpp writes it
      ggml_tensor* scale =
          ggml_reshape_3d(context, layer->scale_[static_cast<std::size_t>(projection)], 1, layer->n_experts_, 1);
      ggml_tensor* all = ggml_repeat_4d(context, scale, 1, layer->n_experts_, ids->ne[1], 1);
      return ggml_mul(context, row, ggml_get_rows(context, all, ids));
    }
  };
  using Author = std::function<ggml_tensor*(const Graph&)>;

  HostLayer(const ToyLayer& toy, ggml_backend_dev_t device, int n_threads)
      : n_experts_(toy.n_experts), device_(device) {
    backend_ = ggml_backend_dev_init(device, nullptr);
    ggml_backend_reg_t registration = ggml_backend_dev_backend_reg(device);
    if (auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(registration, "ggml_backend_set_n_threads"))) {
      set(backend_, n_threads);
    }
    context_ = ggml_init({.mem_size = 32 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true});
    for (std::size_t i = 0; i < kProjections; ++i) {
      if (!toy.shape.projections[i]) continue;
      const ProjectionShape& shape = *toy.shape.projections[i];
      weights_[i] =
          ggml_new_tensor_3d(context_, static_cast<ggml_type>(shape.type), shape.n_in, shape.n_out, n_experts_);
      Place(weights_[i], HostBufferType(weights_[i]), toy.data[i].weight.data());
      ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(device);
      if (shape.has_bias) {
        bias_[i] = ggml_new_tensor_2d(context_, GGML_TYPE_F32, shape.n_out, n_experts_);
        Place(bias_[i], plain, toy.data[i].bias.data());
      }
      if (shape.has_scale) {
        scale_[i] = ggml_new_tensor_1d(context_, GGML_TYPE_F32, n_experts_);
        Place(scale_[i], plain, toy.data[i].scale.data());
      }
    }
  }
  HostLayer(const HostLayer&) = delete;
  HostLayer& operator=(const HostLayer&) = delete;
  ~HostLayer() {
    for (ggml_backend_buffer_t buffer : buffers_) ggml_backend_buffer_free(buffer);
    ggml_free(context_);
    ggml_backend_free(backend_);
  }

  ggml_tensor* weight(Projection projection) const { return weights_[static_cast<std::size_t>(projection)]; }
  std::string buffer_type(Projection projection) const {
    return ggml_backend_buft_name(ggml_backend_buffer_get_type(weight(projection)->buffer));
  }

  // x: [tokens, n_embd]; ids: [tokens, used]. Returns [tokens, used, n_out].
  std::vector<float> Run(const Author& author, const std::vector<float>& x, const std::vector<std::int32_t>& ids,
                         std::int64_t tokens) {
    ggml_context* context = ggml_init({.mem_size = 64 * ggml_tensor_overhead() + ggml_graph_overhead_custom(256, false),
                                       .mem_buffer = nullptr,
                                       .no_alloc = true});
    const auto n_embd = static_cast<std::int64_t>(x.size()) / tokens;
    Graph graph{context, this, ggml_new_tensor_3d(context, GGML_TYPE_F32, n_embd, 1, tokens),
                ggml_new_tensor_2d(context, GGML_TYPE_I32, static_cast<std::int64_t>(ids.size()) / tokens, tokens)};
    ggml_set_input(graph.x);
    ggml_set_input(graph.ids);
    ggml_tensor* y = author(graph);
    ggml_set_output(y);
    ggml_cgraph* nodes = ggml_new_graph_custom(context, 256, false);
    ggml_build_forward_expand(nodes, y);
    ggml_gallocr_t allocator = ggml_gallocr_new(ggml_backend_dev_buffer_type(device_));
    std::vector<float> out;
    if (ggml_gallocr_alloc_graph(allocator, nodes)) {
      ggml_backend_tensor_set(graph.x, x.data(), 0, x.size() * sizeof(float));
      ggml_backend_tensor_set(graph.ids, ids.data(), 0, ids.size() * sizeof(std::int32_t));
      if (ggml_backend_graph_compute(backend_, nodes) == GGML_STATUS_SUCCESS) {
        out.resize(static_cast<std::size_t>(ggml_nelements(y)));
        ggml_backend_tensor_get(y, out.data(), 0, out.size() * sizeof(float));
      }
    }
    ggml_gallocr_free(allocator);
    ggml_free(context);
    return out;
  }

 private:
  // llama.cpp's loader: extra types first, each asked with a dummy of 512 tokens.
  ggml_backend_buffer_type_t HostBufferType(const ggml_tensor* wanted) {
    ggml_backend_reg_t registration = ggml_backend_dev_backend_reg(device_);
    auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(registration, "ggml_backend_dev_get_extra_bufts"));
    ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(device_);
    if (extra == nullptr) return plain;
    ggml_context* context =
        ggml_init({.mem_size = 8 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true});
    ggml_tensor* weight = ggml_new_tensor_3d(context, wanted->type, wanted->ne[0], wanted->ne[1], wanted->ne[2]);
    ggml_tensor* row = ggml_new_tensor_3d(context, GGML_TYPE_F32, wanted->ne[0], 2, 512);
    ggml_tensor* product = ggml_mul_mat_id(context, weight, row, ggml_new_tensor_2d(context, GGML_TYPE_I32, 2, 512));
    ggml_backend_buffer_type_t chosen = plain;
    for (ggml_backend_buffer_type_t* type = extra(device_); type != nullptr && *type != nullptr && chosen == plain;
         ++type) {
      weight->buffer = ggml_backend_buft_alloc_buffer(*type, 0);
      if (ggml_backend_dev_supports_op(device_, product)) chosen = *type;
      ggml_backend_buffer_free(weight->buffer);
    }
    ggml_free(context);
    return chosen;
  }

  void Place(ggml_tensor* tensor, ggml_backend_buffer_type_t type, const void* data) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alloc_size(type, tensor));
    ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer));
    ggml_backend_tensor_set(tensor, data, 0, ggml_nbytes(tensor));
    buffers_.push_back(buffer);
  }

  std::int64_t n_experts_;
  ggml_backend_dev_t device_;
  ggml_backend_t backend_ = nullptr;
  ggml_context* context_ = nullptr;
  std::array<ggml_tensor*, kProjections> weights_{};
  std::array<ggml_tensor*, kProjections> bias_{};
  std::array<ggml_tensor*, kProjections> scale_{};
  std::vector<ggml_backend_buffer_t> buffers_;
};

}  // namespace linkcpp::testing
