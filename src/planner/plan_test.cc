// The plan as a whole: what it prints for ten machines (tests/golden/plan_*.txt), and its edges.
// LINKCPP_UPDATE_GOLDEN=1 writes the files anew; read the difference before committing it.
#include "planner/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <format>
#include <fstream>
#include <iterator>
#include <regex>

#include "planner/report.h"
#include "planner/step_costs.h"
#include "planner/test_models.h"

namespace linkcpp {
namespace {

constexpr std::uint64_t kGib = 1ull << 30;

Node MakeNode(const char* name, std::uint64_t gib, double gbs, double rtt_ms, double mbits) {
  return {.name = name,
          .memory_bytes = gib * kGib,
          .read_gbs = gbs,
          .rtt_ms = rtt_ms,
          .up_mbits = mbits,
          .down_mbits = mbits};
}

struct Case {
  const char* name;
  const char* model;
  Machine machine;
  RunOptions run;
};

FastDevice Gpu(const char* name, std::uint64_t gib, double gbs, double tflops) {
  return {.name = name, .memory_bytes = gib * kGib, .read_gbs = gbs, .tflops = tflops};
}

Machine Pc(std::uint64_t ram_gib, double gbs, double tflops) {
  return {.devices = {},
          .ram_bytes = ram_gib * kGib,
          .ram_gbs = gbs,
          .cpu_tflops = tflops,
          .n_cores = 8,
          .link_gbs = 0,
          .disk_gbs = 0,
          .nodes = {}};
}

Machine WithGpus(Machine machine, std::vector<FastDevice> devices) {
  machine.devices = std::move(devices);
  machine.link_gbs = 25;
  return machine;
}

Machine WithDisk(Machine machine, double gbs) {
  machine.disk_gbs = gbs;
  return machine;
}

Machine WithNodes(Machine machine, std::vector<Node> nodes) {
  machine.nodes = std::move(nodes);
  return machine;
}

std::vector<Case> Cases() {
  const std::vector<Node> old_pcs{MakeNode("pc1", 14, 20, 0.3, 1000), MakeNode("pc2", 14, 20, 0.3, 1000),
                                  MakeNode("pc3", 6, 15, 0.3, 1000), MakeNode("pc4", 6, 15, 0.3, 1000)};
  std::vector<Node> far = old_pcs;
  for (Node& node : far) {
    node.rtt_ms = 30;
    node.up_mbits = 20;
    node.down_mbits = 100;
  }
  return {
      {"phone", "granite-1b-a400m", Pc(4, 15, 0.1), {.context = 4096}},
      {"laptop_8gb", "qwen3-30b", WithDisk(Pc(6, 30, 0.3), 3), {.context = 8192, .kv = KvType::kQ8_0}},
      {"laptop_16gb_short", "qwen3-30b", Pc(12, 40, 0.4), {.context = 32'768}},
      {"apu_64gb", "gpt-oss-120b", WithGpus(Pc(12, 90, 0.8), {Gpu("APU", 56, 200, 25)}), {.context = 32'768}},
      {"gpu_24gb",
       "glm-4.5-air",
       WithGpus(Pc(60, 70, 1), {Gpu("GPU", 24, 900, 80)}),
       {.context = 32'768, .n_parallel = 4}},
      {"two_gpus",
       "qwen3.5-122b",
       WithGpus(Pc(60, 70, 1), {Gpu("GPU0", 24, 900, 80), Gpu("GPU1", 16, 450, 40)}),
       {.context = 65'536}},
      {"reference_64gb", "qwen3.5-122b", WithGpus(Pc(32, 60, 1), {Gpu("GPU", 64, 1000, 80)}), {.context = 262'144}},
      {"four_old_pcs_lan", "qwen3.5-122b", WithNodes(WithDisk(Pc(40, 40, 0.5), 3), old_pcs), {.context = 16'384}},
      {"four_old_pcs_far", "qwen3.5-122b", WithNodes(WithDisk(Pc(40, 40, 0.5), 3), far), {.context = 16'384}},
      {"workstation_deepseek",
       "deepseek-v3",
       WithGpus(Pc(400, 200, 3), {Gpu("GPU", 48, 900, 90)}),
       {.context = 32'768}},
  };
}

class Golden : public testing::TestWithParam<int> {};

TEST_P(Golden, IsWhatItPrints) {
  Case test_case = Cases()[static_cast<std::size_t>(GetParam())];
  const ModelSizes sizes = test::SizesOf(test_case.model);
  AssumeStepCosts(sizes, test_case.machine);
  const PlanWish wish{.run = test_case.run, .model_path = "model.gguf", .force_nodes = false};
  const auto plan = MakePlan(sizes, test_case.machine, wish);
  ASSERT_TRUE(plan) << plan.error().text;
  const std::vector<std::string> assumptions{"the figures of plan_test.cc"};
  const std::string text = PlanText(sizes, test_case.machine, wish, *plan, assumptions);
  const std::string path = std::string(LINKCPP_SOURCE_DIR) + "/tests/golden/plan_" + test_case.name + ".txt";
  if (std::getenv("LINKCPP_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  const std::string golden{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(text, golden) << "was " << path;
}

INSTANTIATE_TEST_SUITE_P(Machines, Golden, testing::Range(0, 10), [](const auto& machine) {
  return std::string(Cases()[static_cast<std::size_t>(machine.param)].name);
});

TEST(Plan, SwarmFarAwayLosesAndIsLeftOutUnlessForced) {
  const Case far = Cases()[8];
  const ModelSizes sizes = test::SizesOf(far.model);
  PlanWish wish{.run = far.run, .model_path = "m.gguf", .force_nodes = false};
  const auto honest = MakePlan(sizes, far.machine, wish);
  ASSERT_TRUE(honest && honest->comparison);
  EXPECT_FALSE(honest->comparison->swarm_wins);
  EXPECT_FALSE(honest->uses_swarm);
  EXPECT_LT(honest->comparison->break_even_rtt_ms, 30);
  EXPECT_TRUE(honest->wiring.environment.empty());
  wish.force_nodes = true;
  const auto forced = MakePlan(sizes, far.machine, wish);
  ASSERT_TRUE(forced);
  EXPECT_TRUE(forced->uses_swarm);
  EXPECT_FALSE(forced->wiring.environment.empty());
}

// 12 GiB of RAM hold granite's experts; four PCs with a GiB each hold two thirds of them.
TEST(Plan, ForcedNodesComeBeforeRam) {
  const ModelSizes sizes = test::SizesOf("granite-1b-a400m");
  const std::vector<Node> small(
      4, {.name = "pc", .memory_bytes = kGib / 8, .read_gbs = 20, .rtt_ms = 0.3, .up_mbits = 1000, .down_mbits = 1000});
  const Machine machine = WithNodes(Pc(12, 40, 0.5), small);
  PlanWish wish{.run = {.context = 4096}, .model_path = "m.gguf", .force_nodes = false};
  const auto usual = MakePlan(sizes, machine, wish);
  ASSERT_TRUE(usual);
  EXPECT_FALSE(usual->uses_swarm);
  EXPECT_NE(PlanText(sizes, machine, wish, *usual, {}).find("not needed"), std::string::npos);
  wish.force_nodes = true;
  const auto forced = MakePlan(sizes, machine, wish);
  ASSERT_TRUE(forced);
  ASSERT_TRUE(forced->uses_swarm);
  const Placement& place = forced->placement;
  EXPECT_LE(place.swarm_bytes, kGib / 2);
  EXPECT_GT(place.swarm_bytes, kGib / 2 - 2 * sizes.layers[0].expert_bytes) << "as many as the nodes hold";
  EXPECT_EQ(place.swarm_bytes + place.ram.experts, sizes.ExpertBytes());
  EXPECT_EQ(place.layers.front().experts, Tier::kRam);
  EXPECT_EQ(place.layers.back().experts, Tier::kSwarm);
  EXPECT_NE(PlanText(sizes, machine, wish, *forced, {}).find("before RAM"), std::string::npos);
}

TEST(Plan, ARunningSwarmIsJoinedAndNotStartedAnew) {
  const Case near = Cases()[7];
  const ModelSizes sizes = test::SizesOf(near.model);
  Machine machine = near.machine;
  for (Node& node : machine.nodes) node.joined = true;
  PlanWish wish{.run = near.run, .model_path = "m.gguf", .force_nodes = false};
  wish.swarm = {
      .coordinator = "https://10.0.0.1:9000#sha256=ab", .token_file = "t.txt", .plugin = "/p/x.so", .preload = ""};
  const auto plan = MakePlan(sizes, machine, wish);
  ASSERT_TRUE(plan && plan->uses_swarm);
  EXPECT_TRUE(plan->wiring.command.starts_with(
      "GGML_BACKEND_PATH=/p/x.so LINKCPP_COORDINATOR='https://10.0.0.1:9000#sha256=ab' LINKCPP_DATA_LISTEN=0.0.0.0:0 "
      "LINKCPP_LOCAL=allow LINKCPP_TOKEN_FILE=t.txt "))
      << plan->wiring.command;
  EXPECT_NE(plan->wiring.command.find(" llama-server -m m.gguf "), std::string::npos);
  EXPECT_TRUE(plan->wiring.workers.empty());
  EXPECT_EQ(PlanText(sizes, machine, wish, *plan, {}).find("8090"), std::string::npos);
}

TEST(Plan, ExpertsOnDiskBesideNodesAreNotRepacked) {
  Case near = Cases()[7];
  near.machine.nodes.resize(2);
  const ModelSizes sizes = test::SizesOf(near.model);
  const auto plan = MakePlan(sizes, near.machine, {.run = near.run, .model_path = "m.gguf", .force_nodes = false});
  ASSERT_TRUE(plan);
  ASSERT_GT(plan->placement.disk_bytes, 0u);
  ASSERT_GT(plan->placement.swarm_bytes, 0u);
  EXPECT_TRUE(std::ranges::contains(plan->wiring.arguments, "--no-repack"));
}

TEST(Plan, TheBreakEvenRoundTripIsWhereBothAreAlike) {
  Case near = Cases()[7];
  const ModelSizes sizes = test::SizesOf(near.model);
  const PlanWish wish{.run = near.run, .model_path = "m.gguf", .force_nodes = true};
  const auto plan = MakePlan(sizes, near.machine, wish);
  ASSERT_TRUE(plan && plan->comparison);
  EXPECT_TRUE(plan->comparison->swarm_wins);
  for (Node& node : near.machine.nodes) node.rtt_ms = plan->comparison->break_even_rtt_ms;
  const auto there = MakePlan(sizes, near.machine, wish);
  ASSERT_TRUE(there && there->comparison);
  EXPECT_NEAR(there->comparison->swarm_decode, there->comparison->local_decode, 1e-3);
}

TEST(Plan, EveryChangeThatIsEnoughIs) {
  const Case small = Cases()[2];
  const ModelSizes sizes = test::SizesOf(small.model);
  const PlanWish wish{.run = small.run, .model_path = "m.gguf", .force_nodes = false};
  const auto plan = MakePlan(sizes, small.machine, wish);
  ASSERT_TRUE(plan);
  ASSERT_FALSE(plan->placement.feasible);
  EXPECT_GT(plan->placement.missing_bytes, 0u);
  ASSERT_GE(plan->changes.size(), 4u);
  EXPECT_TRUE(plan->changes.front().enough);
  for (const Change& change : plan->changes)
    EXPECT_EQ(change.enough, change.decode_tokens_per_second > 0) << change.what;
}

TEST(Plan, MoreLayersThanTheFileHas) {
  const ModelSizes sizes = test::SizesOf("granite-1b-a400m");
  const auto plan = MakePlan(sizes, Cases()[0].machine,
                             {.run = {.max_gpu_layers = 99}, .model_path = "m.gguf", .force_nodes = false});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().text, "99 layers on devices: the file has 24 and an output, so 0 to 25");
}

TEST(NumberPattern, MatchesExactlyTheseLayers) {
  std::vector<std::uint32_t> numbers{38, 39, 40, 41, 42, 43, 44, 45, 46, 47};
  EXPECT_EQ(NumberPattern(numbers), "(3[89]|4[0-7])");
  for (std::uint32_t seed = 1; seed < 200; ++seed) {
    numbers.clear();
    for (std::uint32_t n = 0; n < 128; ++n) {
      if ((n * 2654435761u ^ seed * 40503u) % 7 < seed % 7) numbers.push_back(n);
    }
    if (numbers.empty()) continue;
    const std::regex regex("blk\\." + NumberPattern(numbers) + "\\.ffn");
    for (std::uint32_t n = 0; n < 128; ++n) {
      EXPECT_EQ(std::regex_search(std::format("blk.{}.ffn", n), regex), std::ranges::contains(numbers, n)) << n;
    }
    EXPECT_EQ(NumberPattern(numbers).find(','), std::string::npos);
  }
}

TEST(Nodes, WithLessThanASliceAreNotCounted) {
  std::vector<Node> nodes{MakeNode("big", 1, 20, 1, 1), MakeNode("small", 0, 20, 1, 1)};
  nodes[1].memory_bytes = 300'000;
  EXPECT_EQ(DropUselessNodes(nodes, 299'999), "");
  EXPECT_EQ(DropUselessNodes(nodes, 6'119'424), "not counted, because one slice takes 5.8 MiB: small (293.0 KiB)");
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].name, "big");
}

TEST(Nodes, AreReadAndWrongFieldsNamed) {
  const auto nodes = ParseNodes(
      R"([{"name": "pc1", "memory": "8GiB", "read_gbs": 20, "rtt_ms": 0.3, "up_mbits": 100, "down_mbits": 50}])",
      "n.json");
  ASSERT_TRUE(nodes) << nodes.error().text;
  EXPECT_EQ((*nodes)[0].memory_bytes, 8 * kGib);
  EXPECT_EQ((*nodes)[0].down_mbits, 50);
  const std::pair<const char*, const char*> wrong[] = {
      {"", "n.json: empty"},
      {" \n", "there is no node in it"},
      {"[]", "no node"},
      {"{}", "n.json"},
      {R"([{"memory": "8GiB"}])", "read_gbs"},
      {R"([{"name": "a", "read_gbs": 20}])", "memory"},
      {R"([{"name": "a", "memory": "64 parsecs", "read_gbs": 20, "rtt_ms": 1, "up_mbits": 1, "down_mbits": 1}])",
       "64 parsecs"},
      {R"([{"name": "a", "memory": "8G", "read_gbs": -1, "rtt_ms": 1, "up_mbits": 1, "down_mbits": 1}])",
       "read_gbs is -1"},
      {R"([{"name": "a", "memory": "8G", "read_gbs": "fast", "rtt_ms": 1, "up_mbits": 1, "down_mbits": 1}])", "n.json"},
      {R"([{"name": "a", "memory": "8G", "colour": 1, "read_gbs": 1, "rtt_ms": 1, "up_mbits": 1, "down_mbits": 1}])",
       "colour"},
      {R"([{"name": "a", "memory": "8G", "here": true}, {"name": "a", "memory": "8G", "here": true}])",
       "two nodes are called a"},
  };
  for (const auto& [json, expected] : wrong) {
    const auto result = ParseNodes(json, "n.json");
    ASSERT_FALSE(result) << json;
    EXPECT_NE(result.error().text.find(expected), std::string::npos) << result.error().text;
    EXPECT_EQ(result.error().text.find('\n'), std::string::npos) << result.error().text;
  }
}

}  // namespace
}  // namespace linkcpp
