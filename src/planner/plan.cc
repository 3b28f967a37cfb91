#include "planner/plan.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <string_view>

#include "base/byte_size.h"
#include "gguf/tensor_type.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kLeastContext = 4096;  // below it people would not call it running
constexpr std::uint32_t kMostContext = 1u << 27;
constexpr std::uint32_t kMostSpareNodes = 256;

struct Attempt {
  Placement placement;
  double decode = 0;
};

Attempt TryPlan(const ModelSizes& sizes, const Machine& machine, const RunOptions& options, const KnownBuffers& known) {
  Attempt attempt{.placement = PlaceModel(sizes, machine, options, true, known), .decode = 0};
  if (attempt.placement.feasible) {
    attempt.decode = Predict(sizes, machine, options, attempt.placement).decode.tokens_per_second;
  }
  return attempt;
}

Change Judge(std::string what, const Attempt& attempt) {
  return {.what = std::move(what),
          .enough = attempt.placement.feasible,
          .missing_bytes = attempt.placement.missing_bytes,
          .decode_tokens_per_second = attempt.decode};
}

// The same model with its routed experts in another type; nullopt: not smaller, or ggml has no such type.
std::optional<ModelSizes> Requantised(const ModelSizes& sizes, std::string_view type) {
  const auto number = TensorTypeNumber(type);
  const auto block = number ? TensorTypeBlock(*number) : std::nullopt;
  if (!block) return std::nullopt;
  ModelSizes other = sizes;
  for (LayerSizes& layer : other.layers) {
    if (layer.expert_bytes == 0) continue;
    const double scale = static_cast<double>(layer.expert_elements) / static_cast<double>(block->n_elements) *
                         static_cast<double>(block->size_bytes) / static_cast<double>(layer.expert_bytes);
    layer.slice_bytes = static_cast<std::uint64_t>(std::ceil(static_cast<double>(layer.slice_bytes) * scale));
    layer.expert_bytes = layer.slice_bytes * layer.n_experts;
    for (LayerSizes::ExpertPart& part : layer.expert_parts) {
      part.bytes = static_cast<std::uint64_t>(std::ceil(static_cast<double>(part.bytes) * scale));
    }
    layer.largest_expert_tensor_bytes =
        static_cast<std::uint64_t>(std::ceil(static_cast<double>(layer.largest_expert_tensor_bytes) * scale));
  }
  if (other.ExpertBytes() >= sizes.ExpertBytes()) return std::nullopt;
  return other;
}

std::vector<Change> FindChanges(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                                const KnownBuffers& known) {
  std::vector<Change> changes;
  const std::uint32_t context = ContextCells(sizes, options);
  if (context / 2 >= kLeastContext) {
    RunOptions less = options;
    Attempt attempt;
    for (less.context = context / 2; less.context >= kLeastContext; less.context /= 2) {
      attempt = TryPlan(sizes, machine, less, known);
      if (attempt.placement.feasible || less.context / 2 < kLeastContext) break;
    }
    changes.push_back(Judge(std::format("a context of {} (--ctx {})", less.context, less.context), attempt));
  }
  for (const KvType type : {KvType::kQ8_0, KvType::kQ4_0}) {
    if (KvRowBytes(type, 256) >= KvRowBytes(options.kv, 256) || !WhyNotKv(sizes, type).empty()) continue;
    RunOptions other = options;
    other.kv = type;
    const Attempt attempt = TryPlan(sizes, machine, other, known);
    if (!attempt.placement.feasible && type != KvType::kQ4_0) continue;
    changes.push_back(Judge(std::format("a KV cache in {} (--kv {})", KvTypeName(type), KvTypeName(type)), attempt));
    break;
  }
  for (const std::string_view type : {"IQ4_XS", "Q3_K", "IQ3_XXS", "Q2_K", "IQ2_XXS"}) {
    const auto other = Requantised(sizes, type);
    if (!other) continue;
    const Attempt attempt = TryPlan(*other, machine, options, known);
    if (!attempt.placement.feasible && type != "IQ2_XXS") continue;
    changes.push_back(Judge(std::format("experts quantised to {} ({} of them instead of {})", type,
                                        BinarySizeText(other->ExpertBytes()), BinarySizeText(sizes.ExpertBytes())),
                            attempt));
    break;
  }
  {
    Machine more = machine;
    Attempt attempt;
    std::uint32_t n = 0;
    do {
      more.nodes.push_back({.name = std::format("spare{}", ++n),
                            .memory_bytes = kSpareNodeBytes,
                            .read_gbs = 20,
                            .rtt_ms = 0.5,
                            .up_mbits = 1000,
                            .down_mbits = 1000});
      attempt = TryPlan(sizes, more, options, known);
    } while (!attempt.placement.feasible && n < kMostSpareNodes);
    changes.push_back(Judge(
        std::format("{} more node{} of 8 GB (wired LAN: 0.5 ms, 1 Gbit/s, 20 GB/s)", n, n == 1 ? "" : "s"), attempt));
  }
  if (machine.disk_gbs == 0) {
    Machine with_disk = machine;
    with_disk.disk_gbs = kNvmeGbs;
    changes.push_back(
        Judge("the rest of the experts read from the file (--disk nvme)", TryPlan(sizes, with_disk, options, known)));
  }
  std::ranges::stable_partition(changes, &Change::enough);
  return changes;
}

Comparison Compare(const ModelSizes& sizes, const Machine& machine, const RunOptions& options, const Placement& swarm,
                   const KnownBuffers& known) {
  Comparison result;
  Machine local = machine;
  Placement alone = PlaceModel(sizes, local, options, false, known);
  bool assumed = false;
  if (!alone.feasible && local.disk_gbs == 0) {
    local.disk_gbs = kNvmeGbs;
    assumed = true;
    alone = PlaceModel(sizes, local, options, false, known);
  }
  const Prediction with = Predict(sizes, machine, options, swarm);
  result.swarm_decode = with.decode.tokens_per_second;
  result.swarm_prefill = with.prefill.tokens_per_second;
  if (!alone.feasible) {
    result.local = "nothing: this machine alone does not even hold the backbone";
    result.swarm_wins = true;
    return result;
  }
  result.local = alone.disk_bytes > 0
                     ? std::format("disk at {} GB/s{}", local.disk_gbs, assumed ? " (assumed NVMe)" : "")
                     : std::string("RAM");
  const Prediction without = Predict(sizes, local, options, alone);
  result.local_decode = without.decode.tokens_per_second;
  result.local_prefill = without.prefill.tokens_per_second;
  result.swarm_wins = result.swarm_decode > result.local_decode;

  const auto decode_at = [&](double rtt_ms) {
    Machine other = machine;
    for (Node& node : other.nodes) node.rtt_ms = rtt_ms;
    return Predict(sizes, other, options, swarm).decode.tokens_per_second;
  };
  if (decode_at(0) > result.local_decode) {
    double low = 0, high = 1;
    while (decode_at(high) > result.local_decode && high < 1e6) high *= 2;
    for (int i = 0; i < 40; ++i) {
      const double middle = (low + high) / 2;
      (decode_at(middle) > result.local_decode ? low : high) = middle;
    }
    result.break_even_rtt_ms = low;
  }
  for (std::uint32_t n = 1; n <= machine.nodes.size() && result.nodes_to_win == 0; ++n) {
    Machine fewer = local;  // what fewer nodes do not hold comes from the disk
    fewer.nodes.resize(n);
    const Attempt attempt = TryPlan(sizes, fewer, options, known);
    if (attempt.placement.swarm_bytes > 0 && attempt.decode > result.local_decode) result.nodes_to_win = n;
  }
  return result;
}

// As many layers on the nodes as they hold, and in RAM the first ones that are left: a user who asks for the nodes gets
// them though RAM would do. nullopt: the nodes hold no layer, or RAM is too small for the rest.
std::optional<Placement> PlaceOnNodesFirst(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                                           const KnownBuffers& known) {
  const Placement alone = PlaceModel(sizes, machine, options, false, known);
  Machine less = machine;
  less.disk_gbs = 0;
  less.ram_bytes = alone.ram.Total() - alone.ram.experts;
  for (std::size_t i = 0; i <= sizes.layers.size() && less.ram_bytes <= machine.ram_bytes; ++i) {
    Placement placement = PlaceModel(sizes, less, options, true, known);
    if (placement.feasible) return placement.swarm_bytes > 0 ? std::optional(std::move(placement)) : std::nullopt;
    if (i < sizes.layers.size() && alone.layers[i].experts != Tier::kVram) {
      less.ram_bytes += sizes.layers[i].expert_bytes;
    }
  }
  return std::nullopt;
}

// Of several devices the smallest that turned out to hold no layer. false: there is none.
bool LeaveOutIdle(Machine& machine, const Placement& placement) {
  FastDevice* idle = nullptr;
  std::size_t used = 0;
  for (std::size_t d = 0; d < machine.devices.size(); ++d) {
    FastDevice& device = machine.devices[d];
    if (device.left_out) continue;
    ++used;
    const Held& held = placement.devices[d];
    if (held.Weights() + held.Caches() > 0 || (idle != nullptr && idle->memory_bytes <= device.memory_bytes)) continue;
    idle = &device;
  }
  if (used < 2 || idle == nullptr) return false;
  idle->left_out = true;
  return true;
}

}  // namespace

Result<Plan> MakePlan(const ModelSizes& sizes, const Machine& whole_machine, const PlanWish& wish) {
  const RunOptions& options = wish.run;
  const std::size_t n_layers = sizes.layers.size();
  if (options.max_gpu_layers && *options.max_gpu_layers > n_layers + 1) {
    return Fail(FaultCode::kRefused, "{} layers on devices: the file has {} and an output, so 0 to {}",
                *options.max_gpu_layers, n_layers, n_layers + 1);
  }
  if (options.context == 0 && sizes.context_length == 0) {
    return Fail(FaultCode::kRefused, "{} does not say how long its context is: give --ctx", sizes.name);
  }
  const std::uint32_t context = options.context == 0 ? sizes.context_length : options.context;
  if (context > kMostContext) {
    return Fail(FaultCode::kRefused, "a context of {}: plans end at {}: give --ctx", context, kMostContext);
  }
  if (const std::string why = WhyNotKv(sizes, options.kv); !why.empty()) {
    return Fail(FaultCode::kRefused, "--kv {}: {}: use f16", KvTypeName(options.kv), why);
  }
  Plan plan;
  KnownBuffers known;
  Machine machine = WithoutUselessDevices(sizes, whole_machine, options);
  for (bool done = false; !done;) {
    known = {};
    plan.assumptions.clear();
    plan.refusal.clear();
    plan.placement =
        PlaceAsking(sizes, machine, options, wish.model_path, wish.ask, known, plan.assumptions, plan.refusal);
    done = !LeaveOutIdle(machine, plan.placement);
  }
  for (const FastDevice& device : machine.devices) {
    if (!device.left_out) continue;
    plan.assumptions.push_back(
        std::format("{} is left out: it would hold nothing, or less than the buffers llama.cpp would have on it{}",
                    device.name, device.here ? "" : "; name the others with -dev"));
  }
  if (wish.force_nodes && !machine.nodes.empty()) {
    if (auto nodes_first = PlaceOnNodesFirst(sizes, machine, options, known)) {
      plan.placement = *std::move(nodes_first);
      plan.nodes_first = true;
    }
  }
  if (!plan.placement.feasible) {
    plan.changes = FindChanges(sizes, machine, options, known);
    return plan;
  }
  if (plan.placement.swarm_bytes > 0) {
    plan.comparison = Compare(sizes, machine, options, plan.placement, known);
    if (!plan.comparison->swarm_wins && !wish.force_nodes) {
      // Alone it is faster; but "alone" may need a disk the user did not offer, and then the swarm it is.
      Placement alone = PlaceModel(sizes, machine, options, false, known);
      if (alone.feasible) plan.placement = std::move(alone);
    }
  }
  plan.uses_swarm = plan.placement.swarm_bytes > 0;
  plan.prediction = Predict(sizes, machine, options, plan.placement);
  plan.wiring = WirePlacement(sizes, machine, options, plan.placement, wish.model_path, wish.swarm);
  return plan;
}

}  // namespace linkcpp
