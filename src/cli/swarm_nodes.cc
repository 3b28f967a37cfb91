#include "cli/swarm_nodes.h"

#include <algorithm>
#include <cmath>
#include <format>

#include "base/byte_size.h"

namespace linkcpp {
namespace {

constexpr double kUnknownReadGbs = 10, kUnknownRttMs = 1;
constexpr std::uint64_t kEnoughDispatches = 20;

// Of the model that the swarm serves, which need not be the one that is planned.
double MeanSliceBytes(const StatusReply& status, const ModelSizes& sizes) {
  if (status.n_slices > 0) return static_cast<double>(status.expert_bytes) / static_cast<double>(status.n_slices);
  double bytes = 0, slices = 0;
  for (const LayerSizes& layer : sizes.layers) {
    bytes += static_cast<double>(layer.expert_bytes);
    slices += layer.n_experts;
  }
  return slices > 0 ? bytes / slices : 0;
}

// From sending a dispatch to having its answer, over all backbones that have asked this node; 0: none has.
double DispatchMs(const StatusReply& status, const std::string& node_id) {
  double weighted = 0, dispatches = 0;
  for (const BackboneStatus& backbone : status.backbones) {
    for (const LinkReport& link : backbone.report.links) {
      if (link.node_id != node_id || link.dispatches < kEnoughDispatches) continue;
      weighted += link.rtt_us_mean / 1000 * static_cast<double>(link.dispatches);
      dispatches += static_cast<double>(link.dispatches);
    }
  }
  return dispatches > 0 ? weighted / dispatches : 0;
}

}  // namespace

std::vector<Node> NodesOf(const StatusReply& status, const ModelSizes& sizes, std::vector<std::string>& assumptions) {
  std::vector<Node> nodes;
  for (const NodeStatus& said : status.nodes) {
    if (!said.admitted || said.memory_bytes == 0) continue;
    Node node{.name = said.name.empty() ? said.node_id : said.name,
              .memory_bytes = said.memory_bytes,
              .up_mbits = 1e6,
              .down_mbits = 1e6};
    // Pairs of one dispatch that share an expert read it once, so after long prompts this is more than memory does.
    const bool has_speed = said.dispatches >= kEnoughDispatches && said.busy_us > 0;
    const double busy_ms =
        has_speed ? static_cast<double>(said.busy_us) / 1000 / static_cast<double>(said.dispatches) : 0;
    node.read_gbs = has_speed ? static_cast<double>(said.pairs_computed) * MeanSliceBytes(status, sizes) /
                                    (static_cast<double>(said.busy_us) * 1e3)
                              : kUnknownReadGbs;
    const double dispatch_ms = DispatchMs(status, said.node_id);
    const bool has_rtt = dispatch_ms > 0;
    node.rtt_ms = has_rtt ? std::max(0.0, dispatch_ms - busy_ms) : kUnknownRttMs;
    node.read_gbs = std::clamp(node.read_gbs, 0.01, 100'000.0);
    assumptions.push_back(std::format(
        "{}: {}, {:.1f} GB/s ({}), {:.2f} ms a round trip ({})", node.name, BinarySizeText(node.memory_bytes),
        node.read_gbs,
        has_speed ? std::format("measured over {} dispatches", said.dispatches) : "assumed: it has not computed yet",
        node.rtt_ms, has_rtt ? "measured, with the rows' way" : "assumed: no backbone has asked it yet"));
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace linkcpp
