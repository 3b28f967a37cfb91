#include "planner/predict.h"

#include <gtest/gtest.h>

#include "planner/swarm_layer.h"
#include "planner/test_models.h"

namespace linkcpp {
namespace {

constexpr std::uint64_t kGib = 1ull << 30;
constexpr std::uint64_t kSlice = 6'119'424;  // one expert of the 122B, Q4_K/Q4_K/Q6_K

TEST(Ceilings, OfRoundTrips) {
  EXPECT_NEAR(RoundTripCeiling(48, 0.25), 83, 0.5);
  EXPECT_NEAR(RoundTripCeiling(48, 1), 21, 0.5);
  EXPECT_NEAR(RoundTripCeiling(48, 5), 4.2, 0.05);
  EXPECT_NEAR(RoundTripCeiling(48, 10), 2.1, 0.05);
  EXPECT_NEAR(RoundTripCeiling(48, 30), 0.69, 0.005);
}

TEST(Ceilings, OfUplinksWithF16RowsToEightWorkers) {
  EXPECT_NEAR(UplinkCeiling(48, 8, 6144, 20), 1.1, 0.05);
  EXPECT_NEAR(UplinkCeiling(48, 8, 6144, 100), 5.3, 0.05);
  EXPECT_NEAR(UplinkCeiling(48, 8, 6144, 1000), 53, 0.5);
}

TEST(BreakEven, AgainstMemoryAndDisk) {
  struct Case {
    double local_gbs, remote_gbs, rtt_ms;
  };
  for (const auto& [local, remote, rtt] :
       {Case{40, 40, 1.07}, Case{40, 20, 0.92}, Case{70, 40, 0.55}, Case{70, 20, 0.39}, Case{6, 40, 8.0},
        Case{6, 20, 7.9}, Case{3, 40, 16.2}, Case{3, 20, 16.0}}) {
    EXPECT_NEAR(BreakEvenRttMs(8 * kSlice, local, kSlice, remote), rtt, rtt > 1.1 ? 0.06 : 0.006)
        << local << ' ' << remote;
  }
  EXPECT_LT(BreakEvenRttMs(8 * kSlice, 1000, kSlice, 20), 0);
}

TEST(DistinctExperts, OfABatch) {
  EXPECT_NEAR(DistinctExperts(256, 8, 1), 8, 0.01);
  EXPECT_NEAR(DistinctExperts(256, 8, 8), 57, 0.5);
  EXPECT_NEAR(DistinctExperts(256, 8, 32), 163, 0.5);
  EXPECT_NEAR(DistinctExperts(256, 8, 128), 252, 0.5);
}

LayerSizes Layer(std::uint32_t n_used) {
  LayerSizes layer;
  layer.expert_bytes = 256 * kSlice;
  layer.slice_bytes = kSlice;
  layer.n_experts = 256;
  layer.n_used = n_used;
  return layer;
}

Node NodeAt(double rtt_ms) {
  return {.name = "pc", .memory_bytes = 8 * kGib, .read_gbs = 20, .rtt_ms = rtt_ms, .up_mbits = 1e6, .down_mbits = 1e6};
}

Machine With(std::vector<Node> nodes) {
  Machine machine;
  machine.nodes = std::move(nodes);
  return machine;
}

TEST(SwarmLayer, OneNodeDoesEverything) {
  const SwarmLayer layer = PredictSwarmLayer(Layer(8), With({NodeAt(1)}), 12'288);
  EXPECT_NEAR(layer.workers, 1, 1e-9);
  EXPECT_NEAR(layer.kernel_seconds, 8 * kSlice / 20e9, 1e-9);
  EXPECT_NEAR(layer.seconds, 0.001 + 8 * kSlice / 20e9 + 9 * 12'288 * 8 / 1e12, 1e-9);
}

TEST(SwarmLayer, TwoNodesAndTwoExpertsMeetOnOneHalfOfTheTime) {
  const SwarmLayer layer = PredictSwarmLayer(Layer(2), With({NodeAt(0), NodeAt(0)}), 0);
  EXPECT_NEAR(layer.workers, 1.5, 1e-9);
  EXPECT_NEAR(layer.kernel_seconds, 1.5 * kSlice / 20e9, 1e-9);
}

TEST(SwarmLayer, ASlowNodeCountsAsOftenAsItIsAsked) {
  std::vector<Node> nodes{NodeAt(0), NodeAt(100)};
  nodes[0].memory_bytes = 24 * kGib;  // three of four experts
  const SwarmLayer layer = PredictSwarmLayer(Layer(1), With(nodes), 0);
  EXPECT_NEAR(layer.seconds, 0.25 * 0.1 + kSlice / 20e9, 1e-6);
}

TEST(SwarmLayer, WorkersHereShareOneMachine) {
  Node here = NodeAt(0);
  here.here = true;
  here.read_gbs = 10;
  Machine machine = With({here, here, here, here});
  machine.expert_gbs = 12;  // all cores together, little more than one worker alone
  const SwarmLayer layer = PredictSwarmLayer(Layer(8), machine, 0);
  EXPECT_NEAR(layer.kernel_seconds, 8 * kSlice / 12e9, 1e-9);
  machine.expert_gbs = 1000;
  EXPECT_LT(PredictSwarmLayer(Layer(8), machine, 0).kernel_seconds, layer.kernel_seconds);
}

TEST(Makespan, ThreadsTakeTurnsOnCores) {
  using Jobs = std::vector<std::pair<double, std::uint32_t>>;
  EXPECT_EQ(Makespan(Jobs{{2, 1}, {1, 1}}, 2, 100), 2) << "a core each";
  EXPECT_EQ(Makespan(Jobs{{2, 1}, {2, 1}, {2, 1}}, 2, 100), 4) << "the third waits for a core";
  EXPECT_EQ(Makespan(Jobs{{2, 2}, {2, 2}}, 2, 100), 4);
  EXPECT_NEAR(Makespan(Jobs{{2, 1}, {2, 1}, {2, 1}}, 2, 0.1), 3, 0.11) << "shared in short slices";
  EXPECT_EQ(Makespan(Jobs{{2, 1}, {2, 1}, {2, 1}}, 2, 0.001), 3);
}

TEST(SwarmLayer, MoreWorkersHereThanCoresTakeTurns) {
  Node here = NodeAt(0);
  here.here = true;
  here.threads = 1;
  here.read_gbs = 10;
  Machine machine = With({here, here, here});
  machine.n_cores = 3;
  machine.expert_gbs = 30;
  const double side_by_side = PredictSwarmLayer(Layer(3), machine, 0).kernel_seconds;
  machine.n_cores = 2;
  const double in_turns = PredictSwarmLayer(Layer(3), machine, 0).kernel_seconds;
  // Of 27 draws 3 put all on one worker (3 slices long), 18 two and one (2), and 6 one on each: 1 side by side, 2 in
  // turns.
  EXPECT_NEAR(side_by_side, (3 * 3 + 18 * 2 + 6 * 1) / 27.0 * kSlice / 10e9, 1e-9);
  EXPECT_NEAR(in_turns, (3 * 3 + 18 * 2 + 6 * 2) / 27.0 * kSlice / 10e9, 1e-9);
}

TEST(SwarmLayer, WakeUpsCountOnceForNodesAwayAndForEachWorkerHere) {
  Machine machine = With({NodeAt(0), NodeAt(0)});
  machine.wake_seconds = 10e-6;
  EXPECT_NEAR(PredictSwarmLayer(Layer(8), machine, 0).hop_seconds, 40e-6, 1e-9);
  for (Node& node : machine.nodes) node.here = true;
  const SwarmLayer layer = PredictSwarmLayer(Layer(8), machine, 0);
  EXPECT_NEAR(layer.hop_seconds, 60e-6 * layer.workers, 1e-9);
}

TEST(Nodes, AWorkerHereNeedsNoFigures) {
  const auto nodes = ParseNodes(R"([{"memory": "8GiB", "here": true, "threads": 2}])", "nodes.json");
  ASSERT_TRUE(nodes) << nodes.error().text;
  EXPECT_TRUE(nodes->front().here);
  EXPECT_EQ(nodes->front().threads, 2u);
  EXPECT_EQ(nodes->front().read_gbs, 0) << "to be measured";
  EXPECT_FALSE(ParseNodes(R"([{"memory": "8GiB", "threads": 2}])", "nodes.json"));
}

TEST(Predict, DecodeIsReadingEachTierOnce) {
  const ModelSizes sizes = test::SizesOf("qwen3.5-122b");
  const Machine machine{.devices = {},
                        .ram_bytes = 128 * kGib,
                        .ram_gbs = 40,
                        .cpu_tflops = 1,
                        .link_gbs = 0,
                        .disk_gbs = 0,
                        .nodes = {}};
  const RunOptions options{.context = 4096};
  const Placement place = PlaceModel(sizes, machine, options, true);
  ASSERT_TRUE(place.feasible);
  const Prediction prediction = Predict(sizes, machine, options, place);
  double bytes = static_cast<double>(sizes.output_bytes);
  for (const LayerSizes& layer : sizes.layers) {
    bytes += static_cast<double>(layer.backbone_bytes + 6 * layer.recurrent_bytes + 8 * layer.slice_bytes);
  }
  EXPECT_NEAR(prediction.decode.tokens_per_second, 40e9 / bytes, 1e-6);
  EXPECT_LT(prediction.decode_full.tokens_per_second, prediction.decode.tokens_per_second);
  EXPECT_EQ(prediction.decode.shares.size(), 1u);
}

// A batch's figures are taken as they were measured; of the last layer one row goes through the experts.
TEST(Predict, PrefillIsTheSumOfWhatWasMeasured) {
  const ModelSizes sizes = test::SizesOf("qwen3-30b");
  Machine machine{.devices = {}, .ram_bytes = 128 * kGib, .ram_gbs = 1e6, .cpu_tflops = 1e6, .nodes = {}};
  machine.batch = {.n_rows = 512,
                   .dense_gbs = 100,
                   .expert_gbs = 20,
                   .attention_seconds = 0.01,
                   .router_seconds = 0.002,
                   .step_seconds = 0.5};
  const RunOptions options{.context = 4096};
  const Placement place = PlaceModel(sizes, machine, options, true);
  double seconds = 0;
  for (const LayerSizes& layer : sizes.layers) {
    seconds += 512.0 * static_cast<double>(layer.backbone_bytes) / 100e9 + 0.01 + 0.5 * layer.n_steps;
    if (layer.layer + 1 < sizes.layers.size())
      seconds += 512.0 * 8 * static_cast<double>(layer.slice_bytes) / 20e9 + 0.002;
  }
  EXPECT_NEAR(512 / Predict(sizes, machine, options, place).prefill.tokens_per_second, seconds, 0.001 * seconds);
}

TEST(Predict, AFasterLinkIsNeverSlower) {
  const ModelSizes sizes = test::SizesOf("qwen3.5-122b");
  Machine machine{.devices = {},
                  .ram_bytes = 16 * kGib,
                  .ram_gbs = 40,
                  .cpu_tflops = 1,
                  .link_gbs = 0,
                  .disk_gbs = 3,
                  .nodes = std::vector<Node>(8, NodeAt(30))};
  const RunOptions options{.context = 4096};
  double before = 0;
  for (const double rtt : {30.0, 10.0, 5.0, 1.0, 0.25}) {
    for (Node& node : machine.nodes) node.rtt_ms = rtt;
    const Placement place = PlaceModel(sizes, machine, options, true);
    ASSERT_GT(place.swarm_bytes, 0u);
    const Prediction prediction = Predict(sizes, machine, options, place);
    EXPECT_GT(prediction.decode.tokens_per_second, before);
    EXPECT_LT(prediction.decode.tokens_per_second, prediction.round_trip_ceiling);
    before = prediction.decode.tokens_per_second;
  }
}

}  // namespace
}  // namespace linkcpp
