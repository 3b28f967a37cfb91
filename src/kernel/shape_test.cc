#include "kernel/shape.h"

#include <gtest/gtest.h>

#include "kernel/host_layer_testing.h"

namespace linkcpp {
namespace {

using testing::HostLayer;
using testing::ToyLayer;

ModelFile Austen() {
  return ModelFile::Open(LINKCPP_ASSETS "/austen-moe-q4km.gguf").value();
}

std::vector<std::byte> Read(const ModelFile& model, const SlabRef& ref) {
  std::vector<std::byte> bytes(ref.size_bytes);
  EXPECT_TRUE(model.ReadAt(ref.file, ref.offset, bytes));
  return bytes;
}

TEST(ShapeOf, RealModel) {
  const ModelFile model = Austen();
  for (const MoeLayer& layer : model.moe_layers()) {
    const auto shape = ShapeOf(layer);
    ASSERT_TRUE(shape) << shape.error().text;
    EXPECT_EQ(shape->bytes(), layer.slice_bytes);
    const auto& down = shape->projections[static_cast<std::size_t>(Projection::kDown)];
    ASSERT_TRUE(down);
    EXPECT_EQ(down->n_out, *model.ArchInteger("embedding_length"));
  }
}

// A layer of a real model, slice by slice from the file, against the whole layer in ggml.
TEST(ShapeOf, RealSlicesHaveTheHostsBits) {
  const ModelFile model = Austen();
  NullLog log;
  const auto device = Device::Open({.name = "cpu", .n_threads = 1, .backend_path = ""}, log).value();
  for (const MoeLayer& layer : model.moe_layers()) {
    ToyLayer whole(ShapeOf(layer).value(), 0, 1);
    whole.n_experts = layer.n_experts;
    auto stack = ExpertStack::Create(whole.shape, layer.n_experts, *device).value();
    for (std::uint16_t expert = 0; expert < layer.n_experts; ++expert) {
      ExpertSlabs slabs;
      std::vector<std::vector<std::byte>> bytes;
      for (const SlabRef& ref : model.Slabs({layer.layer, ExpertId(expert)}).value()) {
        ASSERT_EQ(ref.kind, SlabKind::kWeight);
        const auto i = static_cast<std::size_t>(ref.projection);
        bytes.push_back(Read(model, ref));
        slabs.projections[i].weight = bytes.back();
        whole.data[i].weight.insert(whole.data[i].weight.end(), bytes.back().begin(), bytes.back().end());
      }
      ASSERT_TRUE(stack->Load(expert, slabs));
    }
    HostLayer host(whole, ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), 1);
    const std::uint32_t n_embd = whole.shape.projections[1]->n_in;
    constexpr std::uint32_t kTokens = 30;
    Rng rng(layer.layer.value);
    const std::vector<float> x = testing::RandomFloats(std::size_t{n_embd} * kTokens, rng);
    std::vector<std::int32_t> ids;
    std::vector<SlotPair> pairs;
    for (std::uint32_t row = 0; row < kTokens; ++row) {
      const auto first = static_cast<std::uint32_t>(rng.Below(layer.n_experts));
      for (const std::uint32_t slot : {first, (first + 1) % layer.n_experts}) {
        ids.push_back(static_cast<std::int32_t>(slot));
        pairs.push_back({row, slot});
      }
    }
    const std::vector<float> expected = host.Run(
        [](const HostLayer::Graph& g) {
          ggml_tensor* up = g.Project(Projection::kUp, g.x);
          return g.Project(Projection::kDown, ggml_swiglu_split(g.context, g.Project(Projection::kGate, g.x), up));
        },
        x, ids, kTokens);
    std::vector<float> y(expected.size());
    ASSERT_TRUE(stack->Run(Recipe::Swiglu(), x, kTokens, pairs, y));
    EXPECT_EQ(expected, y) << "layer " << layer.layer.value;
  }
}

TEST(ShapeOf, TensorsThatDoNotFitAreRefused) {
  TensorInfo weight{.name = "blk.0.ffn_up_exps.weight", .ne = {64, 32, 4, 1}};
  TensorInfo bias{.name = "blk.0.ffn_up_exps.bias", .ne = {32, 4, 1, 1}};
  TensorInfo scale{.name = "blk.0.ffn_gate_exps.scale", .ne = {4, 1, 1, 1}};
  MoeLayer layer;
  layer.n_experts = 4;
  layer.tensors = {{Projection::kUp, SlabKind::kWeight, &weight, 64 * 32 * 4},
                   {Projection::kUp, SlabKind::kBias, &bias, 128}};
  const auto shape = ShapeOf(layer);
  ASSERT_TRUE(shape) << shape.error().text;
  EXPECT_EQ(shape->projections[1], (ProjectionShape{.type = 0, .n_in = 64, .n_out = 32, .has_bias = true}));
  EXPECT_EQ(shape->bytes(), 64u * 32 * 4 + 128);

  layer.tensors[1].slab_bytes = 64;
  EXPECT_FALSE(ShapeOf(layer));
  layer.tensors[1] = {Projection::kGate, SlabKind::kScale, &scale, 4};
  const auto orphan = ShapeOf(layer);
  ASSERT_FALSE(orphan);
  EXPECT_EQ(orphan.error().code, FaultCode::kRefused);
  EXPECT_NE(orphan.error().text.find("ffn_gate_exps.scale"), std::string::npos);
  layer.tensors.pop_back();
  layer.n_experts = 5;
  EXPECT_FALSE(ShapeOf(layer));
}

}  // namespace
}  // namespace linkcpp
