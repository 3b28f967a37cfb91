#include "plugin/expert_graph.h"

#include <ggml-backend.h>

#include <algorithm>
#include <cstring>
#include <functional>

namespace linkcpp {
namespace {

bool IsViewOp(const ggml_tensor* t) {
  return t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE || t->op == GGML_OP_TRANSPOSE;
}

float ParamF32(const ggml_tensor* t, int index) {
  float value;
  std::memcpy(&value, &t->op_params[index], sizeof value);
  return value;
}

std::optional<UnaryFn> UnaryOf(const ggml_tensor* t) {
  switch (ggml_get_unary_op(t)) {
    case GGML_UNARY_OP_RELU: return UnaryFn::kRelu;
    case GGML_UNARY_OP_SILU: return UnaryFn::kSilu;
    case GGML_UNARY_OP_GELU: return UnaryFn::kGelu;
    case GGML_UNARY_OP_GELU_QUICK: return UnaryFn::kGeluQuick;
    case GGML_UNARY_OP_GELU_ERF: return UnaryFn::kGeluErf;
    case GGML_UNARY_OP_SIGMOID: return UnaryFn::kSigmoid;
    case GGML_UNARY_OP_TANH: return UnaryFn::kTanh;
    case GGML_UNARY_OP_NEG: return UnaryFn::kNeg;
    case GGML_UNARY_OP_EXP: return UnaryFn::kExp;
    case GGML_UNARY_OP_SOFTPLUS: return UnaryFn::kSoftplus;
    case GGML_UNARY_OP_ABS: return UnaryFn::kAbs;
    case GGML_UNARY_OP_ELU: return UnaryFn::kElu;
    case GGML_UNARY_OP_HARDSWISH: return UnaryFn::kHardswish;
    case GGML_UNARY_OP_HARDSIGMOID: return UnaryFn::kHardsigmoid;
    case GGML_UNARY_OP_STEP: return UnaryFn::kStep;
    case GGML_UNARY_OP_SGN: return UnaryFn::kSgn;
    default: return std::nullopt;
  }
}

std::optional<GluFn> GluOf(const ggml_tensor* t) {
  switch (ggml_get_glu_op(t)) {
    case GGML_GLU_OP_REGLU: return GluFn::kReglu;
    case GGML_GLU_OP_GEGLU: return GluFn::kGeglu;
    case GGML_GLU_OP_SWIGLU: return GluFn::kSwiglu;
    case GGML_GLU_OP_SWIGLU_OAI: return GluFn::kSwigluOai;
    case GGML_GLU_OP_GEGLU_ERF: return GluFn::kGegluErf;
    case GGML_GLU_OP_GEGLU_QUICK: return GluFn::kGegluQuick;
    case GGML_GLU_OP_SWIGLU_CLAMP: return GluFn::kSwigluClamp;
    default: return std::nullopt;
  }
}

// The tensor a chain of views and copies stands for.
const ggml_tensor* RootOf(const ggml_tensor* t) {
  while (t != nullptr && (IsViewOp(t) || t->op == GGML_OP_REPEAT || t->op == GGML_OP_CONT)) t = t->src[0];
  return t;
}

// Expert scales spread over the selected experts: GET_ROWS(REPEAT(RESHAPE(scale)), ids).
std::optional<ExpertTensorName> ScaleRootOf(const ggml_tensor* t, ggml_backend_buffer_type_t ours) {
  const ggml_tensor* root = RootOf(t);
  if (root == nullptr) return std::nullopt;
  const auto name = ExpertWeightOf(root, ours);
  if (!name || name->kind != SlabKind::kScale) return std::nullopt;
  return name;
}

bool SameShape(const ggml_tensor* a, const ggml_tensor* b) {
  return std::equal(a->ne, a->ne + GGML_MAX_DIMS, b->ne);
}

// A pair value's identity: rows are comparable only when layer and selection are the same.
struct Pairing {
  const ggml_tensor* ids = nullptr;
  LayerId layer;
  friend bool operator==(const Pairing&, const Pairing&) = default;
};

// Follows values through one graph, or, with no node set, through whatever the sources lead to.
class Reader {
 public:
  Reader(ggml_backend_buffer_type_t ours, const std::unordered_map<const ggml_tensor*, int>* nodes)
      : ours_(ours), nodes_(nodes) {}

  // Values that must be read from memory although they are pair values: a call could not swallow them.
  std::unordered_set<const ggml_tensor*> cut;

  std::optional<Pairing> Classify(const ggml_tensor* t, int depth = 0) {
    if (t == nullptr || depth > kMaxDepth) return std::nullopt;
    if (const auto known = memo_.find(t); known != memo_.end()) return known->second;
    const auto result = ClassifyFresh(t, depth);
    memo_[t] = result;
    return result;
  }

  void Forget() { memo_.clear(); }

  // As an operand: a pair value that is computed in this graph and not cut.
  std::optional<Pairing> Operand(const ggml_tensor* t, int depth) {
    if (t == nullptr || !Inside(t) || cut.contains(t)) return std::nullopt;
    return Classify(t, depth + 1);
  }

  bool IsHalf(const ggml_tensor* t) const {
    const ggml_tensor* whole = t->src[0];
    return t->op == GGML_OP_VIEW && whole != nullptr && whole->op != GGML_OP_VIEW && t->type == GGML_TYPE_F32 &&
           t->ne[0] * 2 == whole->ne[0] && t->ne[1] == whole->ne[1] && t->ne[2] == whole->ne[2] &&
           t->ne[3] == whole->ne[3] && t->nb[1] == whole->nb[1] && t->nb[2] == whole->nb[2] &&
           (HalfOffset(t) == 0 || HalfOffset(t) == static_cast<std::size_t>(t->ne[0]) * sizeof(float));
  }
  static std::size_t HalfOffset(const ggml_tensor* t) {
    return t->view_offs - (t->src[0]->view_src != nullptr ? t->src[0]->view_offs : 0);
  }

 private:
  static constexpr int kMaxDepth = 24;

  bool Inside(const ggml_tensor* t) const {
    if (nodes_ == nullptr) return true;
    if (nodes_->contains(t)) return true;
    return IsViewOp(t) && t->src[0] != nullptr && nodes_->contains(t->src[0]);
  }

  std::optional<Pairing> ClassifyFresh(const ggml_tensor* t, int depth) {
    if (t->type != GGML_TYPE_F32 || t->ne[3] != 1) return std::nullopt;
    switch (t->op) {
      case GGML_OP_MUL_MAT_ID: {
        const auto name = ExpertWeightOf(t->src[0], ours_);
        if (!name || name->kind != SlabKind::kWeight) return std::nullopt;
        if (t->src[1]->type != GGML_TYPE_F32 || t->src[1]->nb[0] != sizeof(float) || t->src[2]->type != GGML_TYPE_I32 ||
            t->src[1]->ne[3] != 1 || t->src[2]->ne[2] != 1 || t->src[2]->nb[0] != sizeof(std::int32_t)) {
          return std::nullopt;
        }
        if (t->src[1]->ne[1] != 1 && t->src[1]->ne[1] != t->src[2]->ne[0]) return std::nullopt;
        return Pairing{t->src[2], name->layer};
      }
      case GGML_OP_ADD_ID: {
        const auto a = Operand(t->src[0], depth);
        const auto name = ExpertWeightOf(t->src[1], ours_);
        if (!a || !name || name->kind != SlabKind::kBias || name->layer != a->layer || t->src[2] != a->ids)
          return std::nullopt;
        return a;
      }
      case GGML_OP_GLU: {
        if (!GluOf(t)) return std::nullopt;
        const auto a = Operand(t->src[0], depth);
        if (!a) return std::nullopt;
        if (t->src[1] != nullptr && (Operand(t->src[1], depth) != a || !SameShape(t->src[0], t->src[1])))
          return std::nullopt;
        return a;
      }
      case GGML_OP_UNARY: return UnaryOf(t) ? Operand(t->src[0], depth) : std::nullopt;
      case GGML_OP_SQR:
      case GGML_OP_CLAMP:
      case GGML_OP_SCALE: return Operand(t->src[0], depth);
      case GGML_OP_CONT: return SameShape(t, t->src[0]) ? Operand(t->src[0], depth) : std::nullopt;
      case GGML_OP_ADD: {
        const auto a = Operand(t->src[0], depth);
        if (!a || !SameShape(t->src[0], t->src[1]) || Operand(t->src[1], depth) != a) return std::nullopt;
        return a;
      }
      case GGML_OP_MUL: {
        const auto a = Operand(t->src[0], depth);
        if (!a) return std::nullopt;
        if (SameShape(t->src[0], t->src[1]) && Operand(t->src[1], depth) == a) return a;
        const ggml_tensor* table = t->src[1];
        if (table->op != GGML_OP_GET_ROWS || table->src[1] != a->ids || table->ne[0] != 1) return std::nullopt;
        const auto scale = ScaleRootOf(table->src[0], ours_);
        return scale && scale->layer == a->layer ? a : std::nullopt;
      }
      case GGML_OP_VIEW: return IsHalf(t) ? Operand(t->src[0], depth) : std::nullopt;
      default: return std::nullopt;
    }
  }

  ggml_backend_buffer_type_t ours_;
  const std::unordered_map<const ggml_tensor*, int>* nodes_;
  std::unordered_map<const ggml_tensor*, std::optional<Pairing>> memo_;
};

// Writes down one value's recipe. Fails (false) when it would need two different inputs or too many steps.
class RecipeWriter {
 public:
  RecipeWriter(Reader& reader, ggml_backend_buffer_type_t ours,
               const std::unordered_map<const ggml_tensor*, int>& nodes, ExpertCall& call)
      : reader_(reader), ours_(ours), nodes_(nodes), call_(call) {}

  bool Write(const ggml_tensor* result, const Pairing& pairing) {
    pairing_ = pairing;
    call_.result = result;
    call_.ids = pairing.ids;
    call_.layer = pairing.layer;
    call_.first_node = nodes_.at(result);
    std::uint8_t value = 0;
    return Value(result, value) && call_.input != nullptr && call_.weight != nullptr;
  }

  const std::unordered_set<const ggml_tensor*>& swallowed() const { return swallowed_; }

 private:
  bool Push(const ggml_tensor* t, Step step, std::uint8_t& value) {
    if (call_.recipe.steps.size() >= kMaxRecipeSteps) return false;
    call_.recipe.steps.push_back(step);
    value = static_cast<std::uint8_t>(call_.recipe.steps.size());
    values_[t] = value;
    swallowed_.insert(t);
    return true;
  }

  bool Value(const ggml_tensor* t, std::uint8_t& value) {
    if (const auto known = values_.find(t); known != values_.end()) {
      value = known->second;
      return true;
    }
    Step step;
    switch (t->op) {
      case GGML_OP_MUL_MAT_ID: {
        const ggml_tensor* input = t->src[1];
        if (reader_.Operand(input, 0) == pairing_ && input->ne[1] == t->src[2]->ne[0]) {
          if (!Value(input, step.a)) return false;
        } else {
          if (call_.input != nullptr && call_.input != input) return false;
          call_.input = input;
          step.a = 0;
        }
        call_.weight = t->src[0];
        if (const auto at = nodes_.find(t); at != nodes_.end())
          call_.first_node = std::min(call_.first_node, at->second);
        step.op = StepOp::kProject;
        step.projection = ExpertWeightOf(t->src[0], ours_)->projection;
        return Push(t, step, value);
      }
      case GGML_OP_ADD_ID:
        step.op = StepOp::kBias;
        step.projection = ExpertWeightOf(t->src[1], ours_)->projection;
        return Value(t->src[0], step.a) && Push(t, step, value);
      case GGML_OP_GLU:
        step.op = StepOp::kGlu;
        step.fn = static_cast<std::uint8_t>(*GluOf(t));
        step.swapped = t->op_params[1] != 0;
        step.p0 = ParamF32(t, 2);
        step.p1 = ParamF32(t, 3);
        if (!Value(t->src[0], step.a)) return false;
        step.b = step.a;
        if (t->src[1] != nullptr && !Value(t->src[1], step.b)) return false;
        return Push(t, step, value);
      case GGML_OP_UNARY:
        step.op = StepOp::kUnary;
        step.fn = static_cast<std::uint8_t>(*UnaryOf(t));
        return Value(t->src[0], step.a) && Push(t, step, value);
      case GGML_OP_SQR: step.op = StepOp::kSquare; return Value(t->src[0], step.a) && Push(t, step, value);
      case GGML_OP_CLAMP:
      case GGML_OP_SCALE:
        step.op = t->op == GGML_OP_CLAMP ? StepOp::kClamp : StepOp::kFactor;
        step.p0 = ParamF32(t, 0);
        step.p1 = ParamF32(t, 1);
        return Value(t->src[0], step.a) && Push(t, step, value);
      case GGML_OP_CONT:
        if (!Value(t->src[0], value)) return false;
        values_[t] = value;
        swallowed_.insert(t);
        return true;
      case GGML_OP_ADD:
        step.op = StepOp::kAdd;
        return Value(t->src[0], step.a) && Value(t->src[1], step.b) && Push(t, step, value);
      case GGML_OP_MUL:
        if (!Value(t->src[0], step.a)) return false;
        if (reader_.Operand(t->src[1], 0) == pairing_) {
          step.op = StepOp::kMul;
          return Value(t->src[1], step.b) && Push(t, step, value);
        }
        step.op = StepOp::kScale;
        step.projection = ScaleRootOf(t->src[1]->src[0], ours_)->projection;
        return Push(t, step, value);
      case GGML_OP_VIEW:
        step.op = StepOp::kHalf;
        step.fn = Reader::HalfOffset(t) == 0 ? 0 : 1;
        return Value(t->src[0], step.a) && Push(t, step, value);
      default: return false;
    }
  }

  Reader& reader_;
  ggml_backend_buffer_type_t ours_;
  const std::unordered_map<const ggml_tensor*, int>& nodes_;
  ExpertCall& call_;
  Pairing pairing_;
  std::unordered_map<const ggml_tensor*, std::uint8_t> values_;
  std::unordered_set<const ggml_tensor*> swallowed_;
};

// RESHAPE, REPEAT, GET_ROWS of expert scales: nothing to compute as long as only recipes use them.
bool IsScaleTable(const ggml_tensor* t, ggml_backend_buffer_type_t ours) {
  if (t->op == GGML_OP_GET_ROWS || t->op == GGML_OP_REPEAT) return ScaleRootOf(t->src[0], ours).has_value();
  return IsViewOp(t) && ScaleRootOf(t, ours).has_value();
}

}  // namespace

std::optional<ExpertTensorName> ExpertWeightOf(const ggml_tensor* tensor, ggml_backend_buffer_type_t ours) {
  if (tensor == nullptr || tensor->buffer == nullptr || ggml_backend_buffer_get_type(tensor->buffer) != ours) {
    return std::nullopt;
  }
  return ParseExpertTensorName(tensor->name);
}

bool TakesOperation(const ggml_tensor* op, ggml_backend_buffer_type_t ours) {
  if (op->op == GGML_OP_MUL_MAT_ID || op->op == GGML_OP_MUL || op->op == GGML_OP_ADD_ID) {
    // The loader asks with a dummy around one weight: biases and scales come alone, without a matmul behind them.
    for (const int source : {0, 1}) {
      const auto name = ExpertWeightOf(op->src[source], ours);
      if (name && op->src[source]->op == GGML_OP_NONE && op->src[source]->data == nullptr) {
        return name->kind != SlabKind::kInputScale;
      }
    }
  }
  if (IsScaleTable(op, ours)) return true;
  Reader reader(ours, nullptr);
  return reader.Classify(op).has_value();
}

std::vector<SplitStep> PlanSplit(ggml_cgraph* graph, ggml_backend_buffer_type_t ours) {
  const int n_nodes = ggml_graph_n_nodes(graph);
  std::unordered_map<const ggml_tensor*, int> position;
  position.reserve(static_cast<std::size_t>(n_nodes));
  for (int i = 0; i < n_nodes; ++i) position[ggml_graph_node(graph, i)] = i;

  Reader reader(ours, &position);
  std::unordered_set<const ggml_tensor*> plain;  // pair values computed as ordinary operations: no recipe fits

  for (;;) {
    // What has to be in memory: pair values that somebody other than a recipe reads, or that nobody here reads.
    std::unordered_map<const ggml_tensor*, int> readers;
    std::unordered_set<const ggml_tensor*> wanted = reader.cut;
    const auto is_pair = [&](const ggml_tensor* t) { return !plain.contains(t) && reader.Classify(t).has_value(); };
    for (int i = n_nodes - 1; i >= 0; --i) {  // readers before what they read
      const ggml_tensor* node = ggml_graph_node(graph, i);
      if (IsScaleTable(node, ours) && !wanted.contains(node)) continue;
      if (IsViewOp(node) && is_pair(node)) {
        ++readers[node->src[0]];
        continue;
      }
      const bool pair_reader = is_pair(node);
      for (const ggml_tensor* source : node->src) {
        if (source == nullptr) continue;
        ++readers[source];
        if (!pair_reader) {
          wanted.insert(source);
          for (const ggml_tensor* under = source; IsViewOp(under) && under->src[0] != nullptr; under = under->src[0]) {
            wanted.insert(under->src[0]);
          }
        }
      }
    }

    std::vector<SplitStep> steps;
    std::unordered_set<const ggml_tensor*> interior;
    const ggml_tensor* failed = nullptr;
    for (int i = 0; i < n_nodes && failed == nullptr; ++i) {
      const ggml_tensor* node = ggml_graph_node(graph, i);
      if (IsViewOp(node) || !is_pair(node)) continue;
      if (readers[node] > 0 && !wanted.contains(node) && (node->flags & GGML_TENSOR_FLAG_OUTPUT) == 0) continue;
      SplitStep step;
      step.kind = SplitStep::Kind::kCall;
      step.node = i;
      RecipeWriter writer(reader, ours, position, step.call);
      if (!writer.Write(node, *reader.Classify(node))) {
        failed = node;
        break;
      }
      for (const ggml_tensor* t : writer.swallowed()) interior.insert(t);
      steps.push_back(std::move(step));
    }
    if (failed != nullptr) {
      // Read its operands from memory instead and look again; each round cuts at least one more value.
      const std::size_t before = reader.cut.size() + plain.size();
      for (const ggml_tensor* source : failed->src) {
        if (source != nullptr && reader.Operand(source, 0)) reader.cut.insert(source);
      }
      if (reader.cut.size() + plain.size() == before) plain.insert(failed);
      reader.Forget();
      continue;
    }

    // Interleave what is left, in node order.
    std::vector<SplitStep> all;
    std::size_t next_call = 0;
    std::vector<bool> call_begins(static_cast<std::size_t>(n_nodes),
                                  false);  // a call's rows are to be read here at the latest
    for (const SplitStep& step : steps) call_begins[static_cast<std::size_t>(step.call.first_node)] = true;
    bool begin_group = true;
    for (int i = 0; i < n_nodes; ++i) {
      ggml_tensor* node = ggml_graph_node(graph, i);
      begin_group = begin_group || call_begins[static_cast<std::size_t>(i)];
      if (next_call < steps.size() && steps[next_call].node == i) {
        all.push_back(std::move(steps[next_call++]));
        begin_group = true;
        continue;
      }
      if (IsViewOp(node) || node->op == GGML_OP_NONE || interior.contains(node)) continue;
      if (IsScaleTable(node, ours) && !wanted.contains(node)) continue;
      if (begin_group) all.emplace_back();
      begin_group = false;
      all.back().nodes.push_back(node);
      all.back().node = i;
    }
    return all;
  }
}

}  // namespace linkcpp
