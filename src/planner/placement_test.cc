#include "planner/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "planner/predict.h"
#include "planner/test_models.h"

namespace linkcpp {
namespace {

constexpr std::uint64_t kGib = 1ull << 30;

double Gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kGib);
}

Machine OneDevice(std::uint64_t vram, std::uint64_t ram) {
  return {.devices = {{.name = "GPU", .memory_bytes = vram, .read_gbs = 1000, .tflops = 50}},
          .ram_bytes = ram,
          .ram_gbs = 60,
          .cpu_tflops = 1,
          .link_gbs = 25,
          .disk_gbs = 0,
          .nodes = {}};
}

class Reference : public testing::Test {
 protected:
  static void SetUpTestSuite() { sizes_ = new ModelSizes(test::SizesOf("qwen3.5-122b")); }
  static void TearDownTestSuite() { delete sizes_; }
  static const ModelSizes& sizes() { return *sizes_; }

 private:
  static inline const ModelSizes* sizes_ = nullptr;
};

TEST_F(Reference, IsMeasuredFromItsTensors) {
  EXPECT_EQ(sizes().n_tensors, 879u);
  EXPECT_EQ(sizes().n_weights, 122'111'526'912u);
  EXPECT_EQ(sizes().ExpertBytes(), 70'212'648'960u);
  EXPECT_EQ(sizes().BackboneBytes(), 3'989'090'304u);
  EXPECT_EQ(sizes().layers.back().slice_bytes, 6'119'424u);
  EXPECT_EQ(KvBytesPerToken(sizes(), KvType::kF16), 24'576u);
  EXPECT_EQ(TotalKvBytes(sizes(), {.context = 262'144}), 6 * kGib);
  EXPECT_EQ(TotalStateBytes(sizes(), {.context = 262'144}), 156'303'360u);  // 149.06 MiB
  EXPECT_EQ(TotalStateBytes(sizes(), {.context = 262'144, .n_parallel = 4}), 4 * 156'303'360u);
}

TEST_F(Reference, OneDeviceOf64GibHoldsAllButTheLastTenLayersExperts) {
  const RunOptions options{.context = 262'144};
  const Placement place = PlaceModel(sizes(), OneDevice(64 * kGib, 32 * kGib), options, true);
  EXPECT_TRUE(place.feasible);
  EXPECT_EQ(place.n_gpu_layers, 49u);
  for (std::uint32_t il = 0; il < 48; ++il) {
    EXPECT_EQ(place.layers[il].experts, il < 38 ? Tier::kVram : Tier::kRam) << il;
    EXPECT_EQ(place.layers[il].device, 0);
  }
  EXPECT_NEAR(Gib(place.ram.experts), 14.203, 0.001);
  EXPECT_LE(place.devices[0].Total(), 64 * kGib);
  EXPECT_GT(place.devices[0].Total() + sizes().layers[38].expert_bytes, 64 * kGib);  // nine would not fit
  EXPECT_NEAR(Gib(place.devices[0].Total()), 62.6, 0.05);
}

TEST_F(Reference, MissingMemoryIsExactlyWhatWouldDo) {
  const RunOptions options{.context = 32'768};
  Machine machine = OneDevice(24 * kGib, 32 * kGib);
  const Placement short_of = PlaceModel(sizes(), machine, options, true);
  ASSERT_FALSE(short_of.feasible);
  machine.ram_bytes += short_of.missing_bytes;
  EXPECT_TRUE(PlaceModel(sizes(), machine, options, true).feasible);
  machine.ram_bytes -= 1;
  EXPECT_FALSE(PlaceModel(sizes(), machine, options, true).feasible);
}

TEST_F(Reference, TheSwarmTakesWhatNothingElseHoldsAndTheDiskTheRest) {
  const RunOptions options{.context = 32'768};
  Machine machine = OneDevice(24 * kGib, 32 * kGib);
  machine.nodes.assign(
      2, {.name = "pc", .memory_bytes = 4 * kGib, .read_gbs = 20, .rtt_ms = 1, .up_mbits = 1e3, .down_mbits = 1e3});
  machine.disk_gbs = 3;
  const Placement place = PlaceModel(sizes(), machine, options, true);
  EXPECT_TRUE(place.feasible);
  EXPECT_LE(place.swarm_bytes, 8 * kGib);
  EXPECT_GT(place.swarm_bytes + sizes().layers[47].expert_bytes + 2 * sizes().layers[47].slice_bytes, 8 * kGib);
  Tier before = Tier::kVram;
  for (const LayerPlace& layer : place.layers) {
    EXPECT_GE(layer.experts, before);
    before = layer.experts;
  }
  EXPECT_EQ(before, Tier::kDisk);
  EXPECT_EQ(place.devices[0].experts + place.ram.experts + place.swarm_bytes + place.disk_bytes, sizes().ExpertBytes());
  EXPECT_EQ(PlaceModel(sizes(), machine, options, false).swarm_bytes, 0u);
}

TEST_F(Reference, TwoDevicesShareTheLayersInOrder) {
  Machine machine = OneDevice(48 * kGib, 32 * kGib);
  machine.devices.push_back({.name = "GPU1", .memory_bytes = 24 * kGib, .read_gbs = 900, .tflops = 40});
  const Placement place = PlaceModel(sizes(), machine, {.context = 32'768}, true);
  EXPECT_TRUE(place.feasible);
  EXPECT_EQ(place.device_layers[0] + place.device_layers[1], place.n_gpu_layers);
  for (std::size_t d = 0; d < 2; ++d) EXPECT_LE(place.devices[d].Total(), machine.devices[d].memory_bytes);
  for (std::size_t il = 1; il < 48; ++il) EXPECT_GE(place.layers[il].device, place.layers[il - 1].device);
}

TEST_F(Reference, ADeviceTooSmallForTheBackboneTakesTheLastLayers) {
  const Placement place = PlaceModel(sizes(), OneDevice(4 * kGib, 128 * kGib), {.context = 262'144}, true);
  EXPECT_TRUE(place.feasible);
  EXPECT_LT(place.n_gpu_layers, 49u);
  EXPECT_GT(place.n_gpu_layers, 0u);
  EXPECT_EQ(place.layers[0].device, -1);
  EXPECT_EQ(place.layers[47].device, 0);
  EXPECT_LE(place.devices[0].Total(), 4 * kGib);
}

TEST(Placement, SplittingLayersFillsTheDevice) {
  const ModelSizes sizes = test::SizesOf("qwen3.5-122b");
  Machine machine;
  machine.devices = {{.name = "GPU", .memory_bytes = 64ull << 30, .read_gbs = 500, .tflops = 30}};
  machine.ram_bytes = 64ull << 30;
  RunOptions options{.context = 262'144, .split_layers = SplitLayers::kNever};
  const Placement whole = PlaceModel(sizes, machine, options, false);
  options.split_layers = SplitLayers::kAlways;
  const Placement split = PlaceModel(sizes, machine, options, false);
  ASSERT_TRUE(whole.feasible && split.feasible);
  std::uint64_t smallest = UINT64_MAX;
  for (const LayerSizes& layer : sizes.layers) {
    for (const LayerSizes::ExpertPart& part : layer.expert_parts) smallest = std::min(smallest, part.bytes);
  }
  EXPECT_GT(64 * kGib - whole.devices[0].Total(), 2 * smallest);
  EXPECT_LT(64 * kGib - split.devices[0].Total(), smallest / 8);  // sums of tensors of several sizes
  EXPECT_LE(split.devices[0].Total(), 64 * kGib);
  EXPECT_EQ(split.devices[0].experts - whole.devices[0].experts, whole.ram.experts - split.ram.experts);
  EXPECT_EQ(split.ExpertBytes(sizes, Tier::kRam) + split.ExpertBytes(sizes, Tier::kVram), sizes.ExpertBytes());
  for (std::size_t i = 0; i < 48; ++i) EXPECT_LT(split.layers[i].vram_bytes, sizes.layers[i].expert_bytes);
}

TEST(Placement, ADeviceThatIsHereIsFilledOneThatIsPlannedKeepsItsLayersWhole) {
  const ModelSizes sizes = test::SizesOf("qwen3.5-122b");
  Machine machine;
  machine.devices = {{.name = "GPU", .memory_bytes = 64ull << 30, .read_gbs = 500, .tflops = 30}};
  machine.ram_bytes = 64ull << 30;
  const auto experts = [&](SplitLayers split) {
    return PlaceModel(sizes, machine, {.context = 262'144, .split_layers = split}, false).devices[0].experts;
  };
  EXPECT_EQ(experts(SplitLayers::kByDevice), experts(SplitLayers::kNever));
  machine.devices[0].here = true;
  EXPECT_EQ(experts(SplitLayers::kByDevice), experts(SplitLayers::kAlways));
  EXPECT_LT(experts(SplitLayers::kNever), experts(SplitLayers::kAlways));
}

// llama.cpp gives every device a compute buffer, and the last one the output: a device that is too small for that would
// keep the others from being used.
TEST(Placement, ADeviceThatIsTooSmallIsLeftOutWhereverItStands) {
  const ModelSizes sizes = test::SizesOf("qwen3-30b");
  const FastDevice large{.name = "large", .memory_bytes = 12 * kGib, .read_gbs = 500, .tflops = 30};
  const FastDevice small{.name = "small", .memory_bytes = 1 << 20, .read_gbs = 500, .tflops = 30};
  Machine alone;
  alone.ram_bytes = 128 * kGib;
  alone.devices = {large};
  const RunOptions options{.context = 8192};
  const Placement best = PlaceModel(sizes, alone, options, false);
  for (const auto& devices : {std::vector{large, small}, std::vector{small, large}, std::vector{small, large, small}}) {
    Machine machine = alone;
    machine.devices = devices;
    const Machine used = WithoutUselessDevices(sizes, machine, options);
    for (const FastDevice& device : used.devices) EXPECT_EQ(device.left_out, device.name == "small");
    const Placement place = PlaceModel(sizes, used, options, false);
    EXPECT_EQ(place.DeviceBytes(), best.DeviceBytes());
    EXPECT_EQ(place.n_gpu_layers, best.n_gpu_layers);
    EXPECT_TRUE(TensorSplitArgument(sizes, used, place).empty());
  }
  Machine both = alone;
  both.devices = {large, large};
  const Machine used = WithoutUselessDevices(sizes, both, options);
  EXPECT_TRUE(std::ranges::none_of(used.devices, &FastDevice::left_out));
  EXPECT_EQ(TensorSplitArgument(sizes, used, PlaceModel(sizes, used, options, false)).size(), 2u);
  EXPECT_FALSE(WithoutUselessDevices(sizes, alone, options).devices[0].left_out);
}

// As a Vulkan device with a largest tensor: llama.cpp would quietly leave that one on the CPU.
TEST(Placement, WhatADeviceDoesNotTakeStaysInRam) {
  const ModelSizes sizes = test::SizesOf("qwen3-30b");
  Machine machine;
  machine.devices = {{.name = "GPU", .memory_bytes = 12 * kGib, .read_gbs = 500, .tflops = 30, .here = true}};
  machine.ram_bytes = 64 * kGib;
  const LayerSizes::ExpertPart& down = sizes.layers[0].expert_parts.back();
  machine.devices[0].refuses = {down.kind};
  const auto refused = [&](const LayerSizes& layer, const std::string& name) {
    return std::ranges::contains(layer.expert_parts, name, &LayerSizes::ExpertPart::name) &&
           std::ranges::find(layer.expert_parts, name, &LayerSizes::ExpertPart::name)->kind == down.kind;
  };
  const Placement place = PlaceModel(sizes, machine, {.context = 8192}, false);
  ASSERT_TRUE(place.feasible && place.offloads);
  std::uint64_t experts = 0;
  for (std::size_t i = 0; i < sizes.layers.size(); ++i) {
    const LayerSizes& layer = sizes.layers[i];
    const bool has_refused = std::ranges::contains(layer.expert_parts, down.kind, &LayerSizes::ExpertPart::kind);
    EXPECT_FALSE(has_refused && place.layers[i].experts == Tier::kVram) << i;
    for (const std::string& part : place.layers[i].vram_parts) EXPECT_FALSE(refused(layer, part)) << i;
    experts += place.layers[i].experts == Tier::kVram ? layer.expert_bytes : place.layers[i].vram_bytes;
  }
  EXPECT_EQ(experts, place.devices[0].experts);
  EXPECT_GT(place.devices[0].Total() + kGib, machine.devices[0].memory_bytes);  // filled with the others
  EXPECT_EQ(place.ram.experts + experts, sizes.ExpertBytes());
  machine.devices[0].memory_bytes = 64 * kGib;  // all of the model would fit
  const Placement roomy = PlaceModel(sizes, machine, {.context = 8192}, false);
  EXPECT_TRUE(roomy.feasible && roomy.offloads);
  EXPECT_GT(roomy.ram.experts, 0u);
  const Placement whole = PlaceModel(sizes, machine, {.context = 8192, .split_layers = SplitLayers::kNever}, false);
  for (const LayerPlace& layer : whole.layers) EXPECT_TRUE(layer.vram_parts.empty());
  EXPECT_TRUE(whole.feasible);
}

TEST(Placement, AnOutputOrAMatrixThatADeviceDoesNotTakeStaysInRam) {
  for (const char* const like : {"qwen3-30b", "lfm2-8b-a1b"}) {  // the second has tied embeddings
    const ModelSizes sizes = test::SizesOf(like);
    Machine machine;
    machine.devices = {{.name = "GPU", .memory_bytes = 40 * kGib, .read_gbs = 500, .tflops = 30, .here = true}};
    machine.ram_bytes = 64 * kGib;
    machine.ram_gbs = 40;
    const RunOptions options{.context = 8192};
    const Placement all = PlaceModel(sizes, machine, options, false);
    ASSERT_FALSE(sizes.layers[0].matrices.empty());
    const PlainMatrix& query = sizes.layers[0].matrices.front();
    std::uint64_t refused = sizes.output.bytes;
    for (const LayerSizes& layer : sizes.layers) {
      for (const PlainMatrix& matrix : layer.matrices) refused += matrix.kind == query.kind ? matrix.bytes : 0;
    }
    machine.devices[0].refuses = {sizes.output.kind, query.kind};
    const Placement some = PlaceModel(sizes, machine, options, false);
    EXPECT_EQ(some.devices[0].backbone + refused, all.devices[0].backbone) << like;
    // With tied embeddings the output is the embedding, which is there already.
    const std::uint64_t there = sizes.tied_embeddings ? sizes.output.bytes : 0;
    EXPECT_EQ(some.ram.backbone + there, all.ram.backbone + refused) << like;
    const double before = Predict(sizes, machine, options, all).decode.tokens_per_second;
    machine.devices[0].refuses.clear();
    EXPECT_LT(before, Predict(sizes, machine, options, all).decode.tokens_per_second) << "RAM is read more slowly";
  }
}

// A layer of the 122B is 1.42 GiB: of 64 GiB it may stay free, of 24 GiB not.
TEST(Placement, LayersAreSplitWhereMuchOfADeviceWouldBeEmpty) {
  const ModelSizes sizes = test::SizesOf("qwen3.5-122b");
  for (const std::uint64_t gib : {16, 17, 18, 19, 20, 21, 22, 23, 24, 40, 64}) {
    Machine machine;
    machine.devices = {{.name = "GPU", .memory_bytes = gib << 30, .read_gbs = 500, .tflops = 30}};
    machine.ram_bytes = 128ull << 30;
    const Placement usual = PlaceModel(sizes, machine, {.context = 8192}, false);
    const Placement whole = PlaceModel(sizes, machine, {.context = 8192, .split_layers = SplitLayers::kNever}, false);
    const std::uint64_t memory = machine.devices[0].memory_bytes;
    const bool is_large = memory - whole.devices[0].Total() > memory / kLargeRest;
    EXPECT_EQ(usual.devices[0].experts > whole.devices[0].experts, is_large) << gib;
    EXPECT_LE(memory - usual.devices[0].Total(), memory / kLargeRest) << gib;
    EXPECT_LE(usual.devices[0].Total(), memory) << gib;
  }
}

TEST(Placement, LayersStayWholeWhereNodesHoldExperts) {
  const ModelSizes sizes = test::SizesOf("qwen3.5-122b");
  Machine machine;
  machine.devices = {{.name = "GPU", .memory_bytes = 16ull << 30, .read_gbs = 500, .tflops = 30}};
  machine.ram_bytes = 16ull << 30;
  for (int i = 0; i < 8; ++i) machine.nodes.push_back({.name = "pc", .memory_bytes = 8ull << 30, .read_gbs = 20});
  const RunOptions options{.context = 8192, .split_layers = SplitLayers::kAlways};
  const Placement place = PlaceModel(sizes, machine, options, true);
  ASSERT_TRUE(place.feasible);
  EXPECT_GT(place.swarm_bytes, 0u);
  for (const LayerPlace& layer : place.layers) EXPECT_TRUE(layer.vram_parts.empty());
  machine.ram_bytes = 128ull << 30;
  const Placement alone = PlaceModel(sizes, machine, options, true);
  EXPECT_EQ(alone.swarm_bytes, 0u);
  EXPECT_TRUE(std::ranges::any_of(alone.layers, [](const LayerPlace& layer) { return !layer.vram_parts.empty(); }));
}

}  // namespace
}  // namespace linkcpp
