#include <algorithm>
#include <format>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "planner/report.h"

namespace linkcpp {
namespace {

// Of a table's cell: nothing is "-".
std::string Cell(std::uint64_t bytes) {
  return bytes == 0 ? "-" : BinarySizeText(bytes);
}

// "38-47", "3, 5-7"; "" for none.
std::string RangesText(std::span<const std::size_t> ascending) {
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t j = i + 1;
    while (j < ascending.size() && ascending[j] == ascending[j - 1] + 1) ++j;
    text += text.empty() ? "" : ", ";
    text += j - i == 1 ? std::format("{}", ascending[i]) : std::format("{}-{}", ascending[i], ascending[j - 1]);
    i = j;
  }
  return text;
}

std::string LayersIn(const ModelSizes& sizes, const Placement& placement, Tier tier) {
  std::vector<std::size_t> layers;
  for (std::size_t i = 0; i < sizes.layers.size(); ++i) {
    if (sizes.layers[i].expert_bytes > 0 && placement.layers[i].experts == tier) layers.push_back(i);
  }
  return RangesText(layers);
}

const char* TierPhrase(Tier tier) {
  switch (tier) {
    case Tier::kVram: return "in VRAM";
    case Tier::kRam: return "in RAM";
    case Tier::kSwarm: return "on the nodes";
    case Tier::kDisk: return "on disk";
    case Tier::kNowhere: break;
  }
  return "without a place";
}

class Page {
 public:
  template <class... Args>
  void Line(std::format_string<Args...> format, Args&&... args) {
    std::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void Row(Page& page, const std::string& name, const Held& held, std::uint64_t capacity) {
  page.Line("  {:<12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} of {}", name, Cell(held.backbone),
            Cell(held.experts), Cell(held.kv), Cell(held.state), Cell(held.compute), Cell(held.reserve),
            Cell(held.Total()), Cell(capacity));
}

// Layers of which the same parts are on a device together.
void WriteSplitLayers(Page& page, const Placement& place) {
  struct Alike {
    std::string parts;
    std::vector<std::size_t> layers;
    std::uint64_t bytes = 0;
  };
  std::vector<Alike> all;
  for (std::size_t i = 0; i < place.layers.size(); ++i) {
    std::string parts;
    for (const std::string& part : place.layers[i].vram_parts) parts += (parts.empty() ? "" : ", ") + part;
    if (parts.empty()) continue;
    auto alike = std::ranges::find(all, parts, &Alike::parts);
    if (alike == all.end()) alike = all.insert(all.end(), {.parts = parts, .layers = {}});
    alike->layers.push_back(i);
    alike->bytes += place.layers[i].vram_bytes;
  }
  for (const Alike& alike : all) {
    page.Line("    of layer{} {} in VRAM all the same: {} ({})", alike.layers.size() == 1 ? "" : "s",
              RangesText(alike.layers), alike.parts, BinarySizeText(alike.bytes));
  }
}

void WriteSpeed(Page& page, const char* name, const Speed& speed) {
  double total = 0;
  for (const Share& share : speed.shares) total += share.seconds;
  std::string bounds;
  for (const Share& share : speed.shares) {
    const double percent = 100 * share.seconds / total;
    if (percent < 1) continue;
    bounds += std::format("{}{} {} {:.0f} %", bounds.empty() ? "" : ", ", share.what, share.bound, percent);
  }
  page.Line("  {:<22} {:8.2f} tok/s   {}", name, speed.tokens_per_second, bounds);
}

void WriteComparison(Page& page, const Machine& machine, const Plan& plan) {
  const Comparison& c = *plan.comparison;
  page.Line("");
  page.Line("Swarm against this machine alone ({})", c.local);
  if (c.local_decode <= 0) return;
  const std::size_t n = machine.nodes.size();
  const std::string nodes = n == 1 ? "this node" : std::format("these {} nodes", n);
  page.Line("  decode  {:.2f} tok/s with, {:.2f} without: the swarm {} by a factor of {:.2f}", c.swarm_decode,
            c.local_decode, c.swarm_wins ? "wins" : "loses",
            c.swarm_wins ? c.swarm_decode / c.local_decode : c.local_decode / c.swarm_decode);
  page.Line("  prefill {:.1f} tok/s with, {:.1f} without", c.swarm_prefill, c.local_prefill);
  if (c.break_even_rtt_ms > 0) {
    page.Line("  break-even round trip {:.2f} ms: below it {} win{}", c.break_even_rtt_ms, nodes, n == 1 ? "s" : "");
  } else {
    page.Line("  {} lose{} at any round trip", nodes, n == 1 ? "s" : "");
  }
  if (c.nodes_to_win > 1) page.Line("  with fewer than {} of the {} they lose", c.nodes_to_win, n);
  if (!c.swarm_wins && !plan.uses_swarm)
    page.Line("  so this plan leaves the nodes out; --force-nodes uses them all the same");
  if (!c.swarm_wins && plan.uses_swarm) page.Line("  this plan uses the nodes all the same");
}

// Nodes were given, and nothing lies on them.
void WriteIdleNodes(Page& page, const ModelSizes& sizes, const Machine& machine, const PlanWish& wish) {
  std::uint64_t memory = 0, least_layer = 0;
  for (const Node& node : machine.nodes) memory += node.memory_bytes;
  for (const LayerSizes& layer : sizes.layers) {
    if (layer.expert_bytes > 0 && (least_layer == 0 || layer.expert_bytes < least_layer))
      least_layer = layer.expert_bytes;
  }
  page.Line("");
  if (!wish.force_nodes) {
    page.Line("The nodes are not needed: all experts have a place here (--force-nodes puts them on the nodes first)");
  } else {
    page.Line("The nodes are left out in spite of --force-nodes: together they give {}, a layer's experts take {}",
              BinarySizeText(memory), BinarySizeText(least_layer));
  }
}

void WriteRun(Page& page, const ModelSizes& sizes, const Machine& machine, const PlanWish& wish, const Plan& plan) {
  page.Line("");
  page.Line("Run");
  page.Line("  {}", plan.wiring.command);
  if (!plan.uses_swarm) return;
  if (!wish.swarm.coordinator.empty()) {
    const std::size_t n = machine.nodes.size();
    page.Line("  It joins the coordinator that runs; {} node{} {} already{}.", n, n == 1 ? "" : "s",
              n == 1 ? "has joined" : "have joined",
              wish.swarm.token_file.empty() ? ", and the token is in LINKCPP_TOKEN as it is now" : "");
    if (plan.placement.CountLayers(sizes, Tier::kRam) + plan.placement.CountLayers(sizes, Tier::kDisk) > 0) {
      page.Line("  What the nodes hold beside layers {} is computed there too: the coordinator chooses.",
                LayersIn(sizes, plan.placement, Tier::kSwarm));
    }
  } else {
    page.Line("  which sets this for the llama-server that it starts:");
    for (const auto& [name, value] : plan.wiring.environment) page.Line("    {}={}", name, value);
  }
  if (plan.wiring.workers.empty()) return;
  page.Line("  and on the nodes, with TOKEN and URL of the join line that `linkcpp serve` prints:");
  for (const std::string& worker : plan.wiring.workers) page.Line("    {}", worker);
}

}  // namespace

std::string PlanText(const ModelSizes& sizes, const Machine& machine, const PlanWish& wish, const Plan& plan,
                     std::span<const std::string> assumptions) {
  Page page;
  const Placement& place = plan.placement;
  page.Line("{} ({}): {} layers, {} with experts, {:.2f} billion weights", sizes.name, sizes.architecture,
            sizes.layers.size(), sizes.n_moe_layers(), static_cast<double>(sizes.n_weights) / 1e9);
  page.Line("  experts {}, all else {}{}{}", BinarySizeText(sizes.ExpertBytes()), BinarySizeText(sizes.BackboneBytes()),
            sizes.tied_embeddings ? ", embeddings are tied" : "",
            sizes.skipped_bytes > 0
                ? std::format(", prediction layers {} (not loaded)", BinarySizeText(sizes.skipped_bytes))
                : std::string());
  page.Line("  context {} for {} sequence{}: KV {} {} ({} B a token), state {}", ContextCells(sizes, wish.run),
            wish.run.n_parallel, wish.run.n_parallel == 1 ? "" : "s", KvTypeName(wish.run.kv),
            BinarySizeText(TotalKvBytes(sizes, wish.run)), KvBytesPerToken(sizes, wish.run.kv),
            BinarySizeText(TotalStateBytes(sizes, wish.run)));
  page.Line("");
  page.Line("Assumed");
  for (const std::string& line : assumptions) page.Line("  {}", line);
  page.Line("");
  if (plan.placement.feasible) {
    page.Line("Feasible");
    if (!plan.refusal.empty()) page.Line("  but the llama.cpp installed here does not run it: {}", plan.refusal);
  } else {
    page.Line("Not feasible: {} are missing", BinarySizeText(place.missing_bytes));
  }
  page.Line("  {:<12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "backbone", "experts", "KV", "state",
            "compute", "reserve", "sum");
  for (std::size_t d = 0; d < place.devices.size(); ++d) {
    Row(page, machine.devices[d].name, place.devices[d], machine.devices[d].memory_bytes);
  }
  Row(page, "RAM", place.ram, machine.ram_bytes);
  for (const Tier tier : {Tier::kVram, Tier::kRam, Tier::kSwarm, Tier::kDisk, Tier::kNowhere}) {
    const std::uint32_t n = place.CountLayers(sizes, tier);
    if (n == 0) continue;
    page.Line("  experts of {} layer{} {}: {}, layer{} {}", n, n == 1 ? "" : "s", TierPhrase(tier),
              BinarySizeText(place.ExpertBytes(sizes, tier)), n == 1 ? "" : "s", LayersIn(sizes, place, tier));
  }
  WriteSplitLayers(page, place);
  if (plan.nodes_first) page.Line("  --force-nodes: layers go to the nodes before RAM");
  if (!place.feasible) {
    page.Line("");
    page.Line("What would do, one change at a time");
    for (const Change& change : plan.changes) {
      if (change.enough) {
        page.Line("  {}: enough, {:.2f} tok/s", change.what, change.decode_tokens_per_second);
      } else {
        page.Line("  {}: not enough, {} still missing", change.what, BinarySizeText(change.missing_bytes));
      }
    }
    return page.Take();
  }
  page.Line("");
  page.Line("Predicted, from bandwidths and round trips");
  WriteSpeed(page, "decode, empty context", plan.prediction.decode);
  WriteSpeed(page, "decode, full context", plan.prediction.decode_full);
  WriteSpeed(page, "prefill", plan.prediction.prefill);
  if (plan.uses_swarm) {
    page.Line("  ceilings for decode: round trips {:.1f}, uplink {:.1f} tok/s", plan.prediction.round_trip_ceiling,
              plan.prediction.uplink_ceiling);
  }
  if (plan.comparison) {
    WriteComparison(page, machine, plan);
  } else if (!machine.nodes.empty()) {
    WriteIdleNodes(page, sizes, machine, wish);
  }
  WriteRun(page, sizes, machine, wish, plan);
  return page.Take();
}

}  // namespace linkcpp
