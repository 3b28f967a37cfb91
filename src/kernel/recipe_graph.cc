#include "kernel/recipe_graph.h"

#include <array>

namespace linkcpp {
namespace {

constexpr std::array<ggml_glu_op, kGluFns> kGlus = {
    GGML_GLU_OP_REGLU,     GGML_GLU_OP_GEGLU,       GGML_GLU_OP_SWIGLU,      GGML_GLU_OP_SWIGLU_OAI,
    GGML_GLU_OP_GEGLU_ERF, GGML_GLU_OP_GEGLU_QUICK, GGML_GLU_OP_SWIGLU_CLAMP};

constexpr std::array<ggml_unary_op, kUnaryFns> kUnaries = {
    GGML_UNARY_OP_RELU,      GGML_UNARY_OP_SILU,        GGML_UNARY_OP_GELU, GGML_UNARY_OP_GELU_QUICK,
    GGML_UNARY_OP_GELU_ERF,  GGML_UNARY_OP_SIGMOID,     GGML_UNARY_OP_TANH, GGML_UNARY_OP_NEG,
    GGML_UNARY_OP_EXP,       GGML_UNARY_OP_SOFTPLUS,    GGML_UNARY_OP_ABS,  GGML_UNARY_OP_ELU,
    GGML_UNARY_OP_HARDSWISH, GGML_UNARY_OP_HARDSIGMOID, GGML_UNARY_OP_STEP, GGML_UNARY_OP_SGN};

// Tensor headers a step may need at most: itself, two halves, two copies, and the four of a scale.
constexpr std::size_t kTensorsPerStep = 6;

class Builder {
 public:
  Builder(ggml_context* context, const StackTensors& stack, ggml_tensor* ids)
      : context_(context), stack_(stack), ids_(ids) {}

  void Add(ggml_tensor* value) { values_.push_back(value); }

  void Add(const Step& step) {
    ggml_tensor* a = values_[step.a];
    const StackTensors::Tensors& tensors = stack_.projections[static_cast<std::size_t>(step.projection)];
    switch (step.op) {
      case StepOp::kProject: Add(Project(tensors.weight, Dense(a))); break;
      case StepOp::kBias: Add(ggml_add_id(context_, Dense(a), tensors.bias, ids_)); break;
      case StepOp::kScale: Add(ggml_mul(context_, Dense(a), PairScales(tensors.scale))); break;
      case StepOp::kGlu: Add(Glu(step, a, values_[step.b])); break;
      case StepOp::kUnary: Add(ggml_unary(context_, Dense(a), kUnaries[step.fn])); break;
      case StepOp::kSquare: Add(ggml_sqr(context_, Dense(a))); break;
      case StepOp::kClamp: Add(Clamp(Dense(a), step.p0, step.p1)); break;
      case StepOp::kMul: Add(ggml_mul(context_, Dense(a), Dense(values_[step.b]))); break;
      case StepOp::kAdd: Add(ggml_add(context_, Dense(a), Dense(values_[step.b]))); break;
      case StepOp::kFactor: Add(ggml_scale_bias(context_, Dense(a), step.p0, step.p1)); break;
      case StepOp::kHalf: Add(Half(a, step.fn)); break;
    }
  }

  ggml_tensor* Result() { return Dense(values_.back()); }

 private:
  // Sums in float32: GPUs add in half precision unless told, which alone costs 2e-5 of the result's power at rows of
  // 3072 (docs/matrix.md). CPUs always add in float32; their bits are those of a host that does not say it.
  ggml_tensor* Project(ggml_tensor* weight, ggml_tensor* a) {
    ggml_tensor* product = ggml_mul_mat_id(context_, weight, a, ids_);
    ggml_prec_set_acc(product, GGML_PREC_F32);
    return product;
  }

  // A half of a row is a view with gaps. The gated units read it as it is, like the host; others get a copy, which
  // changes no bits.
  ggml_tensor* Dense(ggml_tensor* a) { return ggml_is_contiguous(a) ? a : ggml_cont(context_, a); }

  ggml_tensor* Half(ggml_tensor* a, int which) {
    const std::int64_t length = a->ne[0] / 2;
    return ggml_view_3d(context_, a, length, a->ne[1], a->ne[2], a->nb[1], a->nb[2],
                        static_cast<std::size_t>(which * length) * sizeof(float));
  }

  ggml_tensor* Glu(const Step& step, ggml_tensor* a, ggml_tensor* b) {
    const auto fn = static_cast<GluFn>(step.fn);
    const bool has_parameters = fn == GluFn::kSwigluOai || fn == GluFn::kSwigluClamp;
    if (step.a == step.b) {
      if (!has_parameters) return ggml_glu(context_, a, kGlus[step.fn], step.swapped);
      b = Half(a, step.swapped ? 0 : 1);
      a = Half(a, step.swapped ? 1 : 0);
    }
    if (fn == GluFn::kSwigluOai) return ggml_swiglu_oai(context_, a, b, step.p0, step.p1);
    if (fn == GluFn::kSwigluClamp) return ggml_swiglu_clamp(context_, a, b, step.p1);
    return ggml_glu_split(context_, a, b, kGlus[step.fn]);
  }

  // Some versions of ggml clamp in place; another step may still want the value as it was.
  ggml_tensor* Clamp(ggml_tensor* a, float least, float most) {
    ggml_tensor* clamped = ggml_clamp(context_, a, least, most);
    return clamped->view_src == nullptr ? clamped : ggml_clamp(context_, ggml_cont(context_, a), least, most);
  }

  ggml_tensor* PairScales(ggml_tensor* scales) {
    ggml_tensor* rows = ggml_get_rows(context_, scales, ggml_reshape_1d(context_, ids_, ids_->ne[0] * ids_->ne[1]));
    return ggml_reshape_3d(context_, rows, 1, ids_->ne[0], ids_->ne[1]);
  }

  ggml_context* context_;
  const StackTensors& stack_;
  ggml_tensor* ids_;
  std::vector<ggml_tensor*> values_;
};

}  // namespace

RecipeGraph BuildRecipeGraph(const Recipe& recipe, const RecipePlan& plan, const StackTensors& stack,
                             const Arrangement& arrangement) {
  RecipeGraph built;
  const std::size_t most_nodes =
      recipe.steps.size() * kTensorsPerStep + 4;  // a graph takes leaves out of the same number
  built.context = NewContext(most_nodes, most_nodes);
  ggml_context* context = built.context.get();
  built.x = ggml_new_tensor_3d(context, GGML_TYPE_F32, plan.n_in(), arrangement.rows_per_token(), arrangement.tokens);
  built.ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, arrangement.used, arrangement.tokens);
  ggml_set_input(built.x);
  ggml_set_input(built.ids);
  Builder builder(context, stack, built.ids);
  builder.Add(built.x);
  for (const Step& step : recipe.steps) builder.Add(step);
  built.y = builder.Result();
  ggml_set_output(built.y);
  built.graph = ggml_new_graph_custom(context, most_nodes, false);
  ggml_build_forward_expand(built.graph, built.y);
  return built;
}

Result<void> CheckOperations(const RecipeGraph& graph, const GgmlDevice& device) {
  for (int i = 0; i < ggml_graph_n_nodes(graph.graph); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph.graph, i);
    if (ggml_backend_dev_supports_op(device.device(), node)) continue;
    return Fail(FaultCode::kRefused, "device {} can not run {} on rows of {}", device.info().name, ggml_op_desc(node),
                node->ne[0]);
  }
  return {};
}

}  // namespace linkcpp
