#include <glaze/glaze.hpp>

#include "base/write_json.h"
#include "planner/report.h"

namespace linkcpp {
namespace {

struct JsonHeld {
  std::string name;
  std::uint64_t capacity = 0, total = 0, backbone = 0, experts = 0, kv = 0, state = 0, compute = 0, reserve = 0;
};
struct JsonTier {
  std::string tier;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> layers;
};
struct JsonShare {
  std::string what, bound;
  double seconds = 0;
};
struct JsonSpeed {
  double tokens_per_second = 0;
  std::vector<JsonShare> shares;
};
struct JsonPlan {
  std::string model, architecture;
  std::uint64_t weights = 0, tensors = 0, expert_bytes = 0, backbone_bytes = 0, skipped_bytes = 0;
  std::uint32_t context = 0, parallel = 0;
  std::string kv;
  std::uint64_t kv_bytes = 0, kv_bytes_per_token = 0, state_bytes = 0;
  bool feasible = false;
  std::uint64_t missing_bytes = 0;
  std::uint32_t gpu_layers = 0;
  bool uses_nodes = false, nodes_first = false;
  std::string refusal;
  std::vector<JsonHeld> memory;
  std::vector<JsonTier> experts;
  std::optional<JsonSpeed> decode, decode_full, prefill;
  std::optional<Comparison> comparison;
  std::vector<Change> changes;
  std::vector<std::string> arguments, overrides, workers;
  std::map<std::string, std::string> environment;
  std::string command;
  std::vector<std::string> assumptions;
};

JsonHeld ToJson(const std::string& name, const Held& held, std::uint64_t capacity) {
  return {name, capacity, held.Total(), held.backbone, held.experts, held.kv, held.state, held.compute, held.reserve};
}

JsonSpeed ToJson(const Speed& speed) {
  JsonSpeed json{.tokens_per_second = speed.tokens_per_second, .shares = {}};
  for (const Share& share : speed.shares) json.shares.push_back({share.what, share.bound, share.seconds});
  return json;
}

}  // namespace

std::string PlanJson(const ModelSizes& sizes, const Machine& machine, const PlanWish& wish, const Plan& plan,
                     std::span<const std::string> assumptions) {
  JsonPlan json;
  json.model = sizes.name;
  json.architecture = sizes.architecture;
  json.weights = sizes.n_weights;
  json.tensors = sizes.n_tensors;
  json.expert_bytes = sizes.ExpertBytes();
  json.backbone_bytes = sizes.BackboneBytes();
  json.skipped_bytes = sizes.skipped_bytes;
  json.context = ContextCells(sizes, wish.run);
  json.parallel = wish.run.n_parallel;
  json.kv = KvTypeName(wish.run.kv);
  json.kv_bytes = TotalKvBytes(sizes, wish.run);
  json.kv_bytes_per_token = KvBytesPerToken(sizes, wish.run.kv);
  json.state_bytes = TotalStateBytes(sizes, wish.run);
  json.feasible = plan.placement.feasible;
  json.missing_bytes = plan.placement.missing_bytes;
  json.gpu_layers = plan.placement.n_gpu_layers;
  json.uses_nodes = plan.uses_swarm;
  json.nodes_first = plan.nodes_first;
  json.refusal = plan.refusal;
  for (std::size_t d = 0; d < machine.devices.size(); ++d) {
    json.memory.push_back(ToJson(machine.devices[d].name, plan.placement.devices[d], machine.devices[d].memory_bytes));
  }
  json.memory.push_back(ToJson("RAM", plan.placement.ram, machine.ram_bytes));
  for (const Tier tier : {Tier::kVram, Tier::kRam, Tier::kSwarm, Tier::kDisk, Tier::kNowhere}) {
    JsonTier part{.tier = TierName(tier), .bytes = plan.placement.ExpertBytes(sizes, tier), .layers = {}};
    for (std::size_t i = 0; i < sizes.layers.size(); ++i) {
      if (sizes.layers[i].expert_bytes > 0 && plan.placement.layers[i].experts == tier) {
        part.layers.push_back(sizes.layers[i].layer);
      }
    }
    if (part.bytes > 0) json.experts.push_back(std::move(part));
  }
  if (plan.placement.feasible) {
    json.decode = ToJson(plan.prediction.decode);
    json.decode_full = ToJson(plan.prediction.decode_full);
    json.prefill = ToJson(plan.prediction.prefill);
  }
  json.comparison = plan.comparison;
  json.changes = plan.changes;
  json.arguments = plan.wiring.arguments;
  json.overrides = plan.wiring.overrides;
  json.workers = plan.wiring.workers;
  json.environment.insert(plan.wiring.environment.begin(), plan.wiring.environment.end());
  json.command = plan.wiring.command;
  json.assumptions.assign(assumptions.begin(), assumptions.end());
  return WriteJson<JsonLayout::kIndented>(json) + "\n";
}

}  // namespace linkcpp
