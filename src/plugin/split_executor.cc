#include "plugin/split_executor.h"

#include <algorithm>
#include <cstring>

namespace linkcpp {
namespace {

bool Contiguous(const ggml_tensor* t) {
  return ggml_is_contiguous(t);
}

bool Overlap(std::span<const float> a, std::span<const float> b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

}  // namespace

SplitExecutor::SplitExecutor(ggml_backend_buffer_type_t ours, std::function<ModelRuntime*(const ggml_tensor*)> model_of)
    : ours_(ours), model_of_(std::move(model_of)) {}

SplitExecutor::~SplitExecutor() {
  if (cpu_ != nullptr) ggml_backend_free(cpu_);
}

Result<SplitExecutor::Gathered> SplitExecutor::Gather(const ExpertCall& call) const {
  const ggml_tensor* input = call.input;
  const ggml_tensor* ids = call.ids;
  const MoeLayer* layer = nullptr;
  if (ModelRuntime* runtime = model_of_(call.weight)) layer = runtime->model().FindMoeLayer(call.layer);
  if (layer == nullptr) return Fail(FaultCode::kLocal, "the weight {} belongs to no model we know", call.weight->name);

  Gathered gathered;
  gathered.n_in = static_cast<std::uint32_t>(input->ne[0]);
  const std::int64_t n_used = ids->ne[0];
  const std::int64_t n_tokens = ids->ne[1];
  const std::int64_t rows_per_token = input->ne[1];
  if (input->ne[2] != n_tokens || call.result->ne[1] != n_used || call.result->ne[2] != n_tokens) {
    return Fail(FaultCode::kLocal, "layer {}: {} has an unexpected shape", call.layer.value, call.result->name);
  }
  gathered.pairs.reserve(static_cast<std::size_t>(n_used * n_tokens));
  for (std::int64_t token = 0; token < n_tokens; ++token) {
    const auto* selected = reinterpret_cast<const std::int32_t*>(static_cast<const char*>(ids->data) +
                                                                 token * static_cast<std::int64_t>(ids->nb[1]));
    for (std::int64_t j = 0; j < n_used; ++j) {
      if (selected[j] < 0 || static_cast<std::uint32_t>(selected[j]) >= layer->n_experts) {
        return Fail(FaultCode::kLocal, "layer {}: the router chose expert {} of {}", call.layer.value, selected[j],
                    layer->n_experts);
      }
      const std::int64_t row = rows_per_token == 1 ? token : token * n_used + j;
      gathered.pairs.push_back(
          Pair{static_cast<std::uint32_t>(row), ExpertId(static_cast<std::uint16_t>(selected[j]))});
    }
  }
  const auto n_rows = static_cast<std::size_t>(rows_per_token * n_tokens);
  const bool reusable = input->buffer != nullptr && ggml_backend_buffer_get_type(input->buffer) == ours_;
  if (Contiguous(input) && !reusable) {
    gathered.x = {static_cast<const float*>(input->data), n_rows * gathered.n_in};
    return gathered;
  }
  gathered.copy.resize(n_rows * gathered.n_in);
  float* out = gathered.copy.data();
  for (std::int64_t token = 0; token < n_tokens; ++token) {
    for (std::int64_t row = 0; row < rows_per_token; ++row, out += gathered.n_in) {
      const char* from = static_cast<const char*>(input->data) + token * static_cast<std::int64_t>(input->nb[2]) +
                         row * static_cast<std::int64_t>(input->nb[1]);
      std::memcpy(out, from, gathered.n_in * sizeof(float));
    }
  }
  gathered.x = gathered.copy;
  return gathered;
}

Result<void> SplitExecutor::RunCall(const ExpertCall& call, const Gathered& gathered) {
  ModelRuntime* const runtime = model_of_(call.weight);
  const auto n_out = static_cast<std::uint32_t>(call.result->ne[0]);
  const std::span<float> y(static_cast<float*>(call.result->data), gathered.pairs.size() * n_out);
  if (Contiguous(call.result) && !Overlap(gathered.x, y)) {
    return runtime->Compute(call.layer, call.recipe, gathered.x, gathered.n_in, gathered.pairs, y, n_out);
  }
  std::vector<float> rows(y.size());
  RETURN_IF_FAULT(runtime->Compute(call.layer, call.recipe, gathered.x, gathered.n_in, gathered.pairs, rows, n_out));
  const auto n_used = static_cast<std::size_t>(call.result->ne[1]);
  for (std::size_t i = 0; i < gathered.pairs.size(); ++i) {
    char* to =
        static_cast<char*>(call.result->data) + i / n_used * call.result->nb[2] + i % n_used * call.result->nb[1];
    std::memcpy(to, rows.data() + i * n_out, n_out * sizeof(float));
  }
  return {};
}

Result<void> SplitExecutor::RunHostOps(const std::vector<ggml_tensor*>& nodes) {
  for (const ggml_tensor* node : nodes) {
    // Their bytes may not be in memory: an expert matmul that no recipe covers must fail, not read zeros.
    if (node->op == GGML_OP_MUL_MAT_ID && ExpertWeightOf(node->src[0], ours_)) {
      return Fail(FaultCode::kLocal, "{}: this use of expert weights is not understood; please report the model",
                  node->name);
    }
  }
  if (cpu_ == nullptr) {
    cpu_ = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    if (cpu_ == nullptr) return Fail(FaultCode::kLocal, "this host has no CPU backend");
    // One thread: these are small element-wise operations, and another team size would make OpenMP rebuild the host's.
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_));
    if (auto* set = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"))) {
      set(cpu_, 1);
    }
  }
  const ggml_init_params params{ggml_graph_overhead_custom(nodes.size() + 8, false) + ggml_tensor_overhead(), nullptr,
                                true};
  ggml_context* context = ggml_init(params);
  if (context == nullptr) return Fail(FaultCode::kLocal, "out of memory for a graph of {} nodes", nodes.size());
  ggml_cgraph* graph = ggml_new_graph_custom(context, nodes.size() + 8, false);
  for (ggml_tensor* node : nodes) ggml_graph_add_node(graph, node);
  const ggml_status status = ggml_backend_graph_compute(cpu_, graph);
  ggml_free(context);
  if (status != GGML_STATUS_SUCCESS)
    return Fail(FaultCode::kLocal, "the CPU backend failed at {}", nodes.front()->name);
  return {};
}

Result<void> SplitExecutor::Run(ggml_cgraph* graph) {
  const std::vector<SplitStep> steps = PlanSplit(graph, ours_);
  std::vector<Gathered> gathered(steps.size());
  std::vector<bool> ready(steps.size(), false);
  const auto gather = [&](std::size_t i) -> Result<void> {
    if (ready[i]) return {};
    ASSIGN_OR_RETURN(gathered[i], Gather(steps[i].call));
    ready[i] = true;
    return {};
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    // A later call may have begun before this step: take its rows now, for this step's result may lie over them.
    for (std::size_t later = i + 1; later < steps.size(); ++later) {
      if (steps[later].kind == SplitStep::Kind::kCall && steps[later].call.first_node <= steps[i].node) {
        RETURN_IF_FAULT(gather(later));
      }
    }
    if (steps[i].kind == SplitStep::Kind::kHostOps) {
      RETURN_IF_FAULT(RunHostOps(steps[i].nodes));
      continue;
    }
    if ((steps[i].call.result->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) continue;  // the host does not want it
    RETURN_IF_FAULT(gather(i));
    RETURN_IF_FAULT(RunCall(steps[i].call, gathered[i]));
    gathered[i] = {};
  }
  return {};
}

}  // namespace linkcpp
