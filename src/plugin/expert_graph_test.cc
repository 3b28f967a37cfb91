// The host's graph in small: what becomes a call, what stays an operation of its own.
#include "plugin/expert_graph.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace linkcpp {
namespace {

using ::testing::SizeIs;

constexpr int kEmbd = 32, kFf = 64, kExperts = 4, kUsed = 2, kTokens = 3;

// CPU buffers stand in for ours: the reader only compares buffer types.
class ExpertGraph : public ::testing::Test {
 protected:
  ExpertGraph() {
    context_ = ggml_init({ggml_tensor_overhead() * 256 + ggml_graph_overhead(), nullptr, true});
    graph_ = ggml_new_graph(context_);
    x = Ours(ggml_new_tensor_3d(context_, GGML_TYPE_F32, kEmbd, 1, kTokens), "ffn_norm-0");
    ids = Ours(ggml_new_tensor_2d(context_, GGML_TYPE_I32, kUsed, kTokens), "ffn_moe_topk-0");
    up = Ours(ggml_new_tensor_3d(context_, GGML_TYPE_F32, kEmbd, kFf, kExperts), "blk.0.ffn_up_exps.weight");
    gate = Ours(ggml_new_tensor_3d(context_, GGML_TYPE_F32, kEmbd, kFf, kExperts), "blk.0.ffn_gate_exps.weight");
    down = Ours(ggml_new_tensor_3d(context_, GGML_TYPE_F32, kFf, kEmbd, kExperts), "blk.0.ffn_down_exps.weight");
  }
  ~ExpertGraph() override {
    ggml_free(context_);
    ggml_backend_buffer_free(buffer_);
  }

  ggml_tensor* Ours(ggml_tensor* tensor, const std::string& name) {
    ggml_set_name(tensor, name.c_str());
    tensor->buffer = buffer_;
    tensor->data = ggml_backend_buffer_get_base(buffer_);
    return tensor;
  }
  ggml_tensor* Matmul(ggml_tensor* weight, ggml_tensor* input) { return ggml_mul_mat_id(context_, weight, input, ids); }

  std::vector<SplitStep> Plan(std::initializer_list<ggml_tensor*> nodes) {
    for (ggml_tensor* node : nodes) ggml_graph_add_node(graph_, node);
    return PlanSplit(graph_, kOurs);
  }

  const ggml_backend_buffer_type_t kOurs = ggml_backend_cpu_buffer_type();
  ggml_backend_buffer_t buffer_ = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 1 << 16);
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor *x, *ids, *up, *gate, *down;
};

TEST_F(ExpertGraph, AWholeLayerIsOneCall) {
  ggml_tensor* u = Matmul(up, x);
  ggml_tensor* g = Matmul(gate, x);
  ggml_tensor* h = ggml_swiglu_split(context_, g, u);
  ggml_tensor* y = Matmul(down, h);
  const auto steps = Plan({u, g, h, y});
  ASSERT_THAT(steps, SizeIs(1));
  EXPECT_EQ(steps[0].call.recipe.Describe(), "gate.0 up.0 swiglu(1,2) down.3");
  EXPECT_EQ(steps[0].call.result, y);
  EXPECT_EQ(steps[0].call.input, x);
  EXPECT_EQ(steps[0].call.layer, LayerId(0));
  for (ggml_tensor* node : {u, g, h, y}) EXPECT_TRUE(TakesOperation(node, kOurs)) << node->name;
}

TEST_F(ExpertGraph, TheWeightedSumStaysWithTheHost) {
  ggml_tensor* u = Matmul(up, x);
  ggml_tensor* weights = Ours(ggml_new_tensor_3d(context_, GGML_TYPE_F32, 1, kUsed, kTokens), "ffn_moe_weights-0");
  ggml_tensor* y = Matmul(down, ggml_silu(context_, u));
  ggml_tensor* weighted = ggml_mul(context_, y, weights);
  EXPECT_TRUE(TakesOperation(y, kOurs));
  EXPECT_FALSE(TakesOperation(weighted, kOurs));
}

TEST_F(ExpertGraph, AValueThatSomebodyElseReadsIsMadeToo) {
  // The host observes the up projection (as llama-imatrix does) and still wants the layer.
  ggml_tensor* u = Matmul(up, x);
  ggml_tensor* g = Matmul(gate, x);
  ggml_tensor* h = ggml_swiglu_split(context_, g, u);
  ggml_tensor* y = Matmul(down, h);
  ggml_tensor* seen = ggml_sum_rows(context_, u);
  const auto steps = Plan({u, g, h, y, seen});
  ASSERT_THAT(steps, SizeIs(3));
  EXPECT_EQ(steps[0].call.result, u);
  EXPECT_EQ(steps[0].call.recipe.Describe(), "up.0");
  EXPECT_EQ(steps[1].call.result, y);
  EXPECT_EQ(steps[2].kind, SplitStep::Kind::kHostOps);
}

TEST_F(ExpertGraph, HalfALayerBeginsFromMemory) {
  // The split begins after the activation: its input is what an earlier split left behind.
  ggml_tensor* h = Ours(ggml_new_tensor_3d(context_, GGML_TYPE_F32, kFf, kUsed, kTokens), "ffn_moe_swiglu-0");
  ggml_tensor* y = Matmul(down, h);
  const auto steps = Plan({y});
  ASSERT_THAT(steps, SizeIs(1));
  EXPECT_EQ(steps[0].call.recipe.Describe(), "down.0");
  EXPECT_EQ(steps[0].call.input, h);
}

TEST_F(ExpertGraph, AnActivationOverAForeignValueIsComputedHere) {
  ggml_tensor* g = Matmul(gate, x);
  ggml_tensor* foreign = Ours(ggml_new_tensor_3d(context_, GGML_TYPE_F32, kFf, kUsed, kTokens), "foreign");
  ggml_tensor* h = ggml_swiglu_split(context_, g, foreign);
  ggml_tensor* y = Matmul(down, h);
  const auto steps = Plan({g, h, y});
  ASSERT_THAT(steps, SizeIs(3));
  EXPECT_EQ(steps[0].call.result, g);
  EXPECT_EQ(steps[1].nodes, std::vector<ggml_tensor*>{h});
  EXPECT_EQ(steps[2].call.input, h);
}

TEST_F(ExpertGraph, TwoInputsDoNotFitOneRecipe) {
  ggml_tensor* other = Ours(ggml_new_tensor_3d(context_, GGML_TYPE_F32, kEmbd, 1, kTokens), "other");
  ggml_tensor* u = Matmul(up, other);
  ggml_tensor* g = Matmul(gate, x);
  ggml_tensor* h = ggml_swiglu_split(context_, g, u);
  ggml_tensor* y = Matmul(down, h);
  const auto steps = Plan({u, g, h, y});
  // Both projections are made apart; nothing is computed from the wrong rows.
  int from_x = 0, from_other = 0;
  for (const SplitStep& step : steps) {
    if (step.kind != SplitStep::Kind::kCall) continue;
    from_x += step.call.input == x;
    from_other += step.call.input == other;
    if (step.call.input == x || step.call.input == other) {
      EXPECT_THAT(step.call.recipe.steps, SizeIs(1));
    }
  }
  EXPECT_EQ(from_x, 1);
  EXPECT_EQ(from_other, 1);
  EXPECT_EQ(steps.back().call.result, y);
}

TEST_F(ExpertGraph, BiasesAndScalesBelongToTheRecipe) {
  ggml_tensor* bias = Ours(ggml_new_tensor_2d(context_, GGML_TYPE_F32, kFf, kExperts), "blk.0.ffn_up_exps.bias");
  ggml_tensor* scale = Ours(ggml_new_tensor_1d(context_, GGML_TYPE_F32, kExperts), "blk.0.ffn_up_exps.scale");
  ggml_tensor* u = Matmul(up, x);
  ggml_tensor* biased = ggml_add_id(context_, u, bias, ids);
  ggml_tensor* shaped = ggml_reshape_3d(context_, scale, 1, kExperts, 1);
  ggml_tensor* spread = ggml_repeat_4d(context_, shaped, 1, kExperts, kTokens, 1);
  for (ggml_tensor* view : {shaped}) Ours(view, "scale-view");
  ggml_tensor* chosen = ggml_get_rows(context_, spread, ids);
  ggml_tensor* scaled = ggml_mul(context_, biased, chosen);
  const auto steps = Plan({u, biased, shaped, spread, chosen, scaled});
  ASSERT_THAT(steps, SizeIs(1));
  EXPECT_EQ(steps[0].call.recipe.Describe(), "up.0 bias[up](1) scale[up](2)");
  EXPECT_EQ(steps[0].call.result, scaled);
}

TEST_F(ExpertGraph, OtherPeoplesMatmulsAreNotOurs) {
  for (const char* name :
       {"blk.0.ffn_up_shexp.weight", "blk.0.ffn_up_chexps.weight", "blk.0.ffn_up_exps.weight.lora_a", "x"}) {
    ggml_tensor* weight = Ours(ggml_new_tensor_3d(context_, GGML_TYPE_F32, kEmbd, kFf, kExperts), name);
    EXPECT_FALSE(TakesOperation(Matmul(weight, x), kOurs)) << name;
  }
}

}  // namespace
}  // namespace linkcpp
