#include "coordinator/status_text.h"

#include <algorithm>
#include <cstdint>
#include <format>
#include <map>
#include <string_view>
#include <vector>

namespace linkcpp {
namespace {

constexpr std::size_t kMaxHolds = 60;

// Characters, not bytes: a continuation byte of UTF-8 takes no place.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void Row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  std::string Text() const {
    std::vector<std::size_t> widths(rows_.front().size());
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
    }
    std::string text;
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        text += row[i];
        if (i + 1 < row.size()) text.append(widths[i] + 2 - Width(row[i]), ' ');
      }
      text += '\n';
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string LayerSpan(std::uint16_t first, std::uint16_t last) {
  return first == last ? std::format("{}", first) : std::format("{}:{}", first, last + 1);
}

// "layers 0:4 experts 0:8; …": layers in a row that hold the same experts are one entry.
std::string HoldsText(const std::vector<LayerHoldings>& holdings) {
  std::string text;
  for (std::size_t i = 0; i < holdings.size();) {
    std::size_t end = i + 1;
    while (end < holdings.size() && holdings[end].experts == holdings[i].experts &&
           holdings[end].layer == holdings[end - 1].layer + 1) {
      ++end;
    }
    if (!text.empty()) text += "; ";
    text +=
        std::format("layers {} experts {}", LayerSpan(holdings[i].layer, holdings[end - 1].layer), holdings[i].experts);
    i = end;
  }
  if (text.size() > kMaxHolds) text = text.substr(0, kMaxHolds) + "…";
  return text.empty() ? "-" : text;
}

std::string LayersText(const std::vector<LayerCoverage>& layers) {
  Table table({"LAYERS", "COVERED", "HOLDERS"});
  for (std::size_t i = 0; i < layers.size();) {
    const LayerCoverage& first = layers[i];
    std::size_t end = i + 1;
    while (end < layers.size() && layers[end].layer == layers[end - 1].layer + 1 &&
           layers[end].n_experts == first.n_experts && layers[end].covered == first.covered &&
           layers[end].min_holders == first.min_holders) {
      ++end;
    }
    table.Row({LayerSpan(first.layer, layers[end - 1].layer), std::format("{} of {}", first.covered, first.n_experts),
               std::format("at least {}", first.min_holders)});
    i = end;
  }
  return table.Text();
}

// Names need not differ: two workers on one machine have its name.
std::string ShortId(const std::string& id) {
  return id.substr(0, 8);
}

std::string CheckText(const std::string& name, const NodeCheck& check) {
  if (check.state == "refused") return "";  // said already
  if (check.canaries + check.spot_checks == 0) return std::format("{}: {}\n", name, check.state);
  return std::format(
      "{}: {}; {} canaries and {} spot checks of {} slices, cosine {:.7f} (worst {:.7f}), at most {:.3g} of the "
      "derived "
      "bound; {} ({})\n",
      name, check.state, check.canaries, check.spot_checks, check.slices, check.cosine, check.worst_cosine,
      check.over_bound, check.kernel_class, check.kernel_model);
}

std::string NodesText(const std::vector<NodeStatus>& nodes) {
  Table table({"NODE", "ID", "STATE", "DEVICE", "GIVES", "SLICES", "TO LOAD", "PAIRS", "BUSY", "SEEN", "HOLDS"});
  for (const NodeStatus& node : nodes) {
    table.Row({node.name, ShortId(node.node_id), node.admitted ? node.state : "refused", node.device,
               BytesText(node.memory_bytes), std::format("{} of {}", node.slices_ready, node.slices_wanted),
               BytesText(node.wanted_bytes), std::format("{}", node.pairs_computed),
               DurationText(static_cast<double>(node.busy_us) / 1e6), DurationText(node.seconds_since_seen) + " ago",
               HoldsText(node.ready)});
  }
  std::string text = table.Text();
  for (const NodeStatus& node : nodes) {
    if (!node.refusal.empty()) text += std::format("{} is kept off backbones: {}\n", node.name, node.refusal);
    for (const NodeCheck& check : node.checks) text += CheckText(node.name, check);
    if (!node.error.empty()) text += std::format("{} says: {}\n", node.name, node.error);
  }
  return text;
}

std::string BackbonesText(const StatusReply& status) {
  std::map<std::string, std::string> names;
  for (const NodeStatus& node : status.nodes) names[node.node_id] = node.name;
  Table backbones({"BACKBONE", "DATA PORT", "DISPATCHES", "PAIRS", "LOCAL", "RETRIED", "FAILED", "ROUND TRIPS"});
  Table links({"LINK", "TO", "ID", "PAIRS", "SENT", "RECEIVED", "RTT", "RTT MAX", "FAULTS"});
  bool any_link = false;
  for (const BackboneStatus& backbone : status.backbones) {
    const BackboneReport& report = backbone.report;
    backbones.Row({backbone.program, backbone.data_address, std::format("{}", report.dispatches),
                   std::format("{}", report.pairs), std::format("{}", report.pairs_local),
                   std::format("{}", report.pairs_retried), std::format("{}", report.failed),
                   std::format("{}", report.round_trips)});
    for (const LinkReport& link : report.links) {
      const auto name = names.find(link.node_id);
      any_link = true;
      links.Row({backbone.program, name == names.end() ? "?" : name->second, ShortId(link.node_id),
                 std::format("{}", link.pairs), BytesText(link.bytes_sent), BytesText(link.bytes_received),
                 link.connected ? std::format("{:.2f} ms", link.rtt_us_mean / 1e3) : "gone",
                 std::format("{:.2f} ms", link.rtt_us_max / 1e3), std::format("{}", link.faults)});
    }
  }
  return backbones.Text() + (any_link ? "\n" + links.Text() : "");
}

std::string Html(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '<': html += "&lt;"; break;
      case '>': html += "&gt;"; break;
      case '&': html += "&amp;"; break;
      case '"': html += "&quot;"; break;
      default: html += c;
    }
  }
  return html;
}

}  // namespace

std::string BytesText(std::uint64_t bytes) {
  if (bytes < 1000) return std::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* larger : {"kB", "MB", "GB", "TB"}) {
    if (value < 999.95) break;
    value /= 1000;
    unit = larger;
  }
  return std::format("{:.1f} {}", value, unit);
}

std::string DurationText(double seconds) {
  if (seconds < 60) return std::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::uint64_t>(seconds);
  if (whole < 3600) return std::format("{} min {} s", whole / 60, whole % 60);
  return std::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string StatusText(const StatusReply& status) {
  std::string text = std::format("{} ({}), {} of experts in {} slices; coordinator {}, up {}\n", status.model_name,
                                 status.architecture, BytesText(status.expert_bytes), status.n_slices, status.version,
                                 DurationText(status.uptime_seconds));
  text += std::format("covered: {} of {} slices by {} node{}\n\n", status.slices_covered, status.n_slices,
                      status.nodes.size(), status.nodes.size() == 1 ? "" : "s");
  text += LayersText(status.layers);
  if (!status.nodes.empty()) text += "\n" + NodesText(status.nodes);
  if (!status.backbones.empty()) text += "\n" + BackbonesText(status);
  return text;
}

std::string StatusPage(const StatusReply& status) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"5\">"
         "<title>linkcpp: " +
         Html(status.model_name) +
         "</title><style>body{margin:2rem;font-family:sans-serif}pre{overflow-x:auto}</style></head>"
         "<body><h1>linkcpp</h1><pre>" +
         Html(StatusText(status)) + "</pre></body></html>\n";
}

}  // namespace linkcpp
