#include "coordinator/metrics.h"

#include <format>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace linkcpp {
namespace {

std::string Escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
  return text;
}

class Page {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  void Family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += std::format("# HELP linkcpp_{0} {2}\n# TYPE linkcpp_{0} {1}\n", name, type, help);
  }
  template <class Number>
  void Row(Labels labels, Number value) {
    text_ += "linkcpp_" + name_;
    std::string_view before = "{";
    for (const auto& [label, labelled] : labels) {
      text_ += std::format("{}{}=\"{}\"", before, label, Escaped(labelled));
      before = ",";
    }
    if (labels.size() > 0) text_ += '}';
    text_ += std::format(" {}\n", value);
  }
  // One family with a row for each element; `value` picks the number.
  template <class Range, class Label, class Value>
  void Each(std::string_view name, std::string_view type, std::string_view help, const Range& range, Label label,
            Value value) {
    Family(name, type, help);
    for (const auto& element : range) label(element, value(element));
  }

  std::string Take() { return std::move(text_); }

 private:
  std::string name_, text_;
};

}  // namespace

std::string PrometheusText(const StatusReply& status) {
  Page page;
  page.Family("slices", "gauge", "Slices of the model.");
  page.Row({{"model", status.model_name}}, status.n_slices);
  page.Family("slices_covered", "gauge", "Slices with at least one ready holder.");
  page.Row({{"model", status.model_name}}, status.slices_covered);
  page.Family("uptime_seconds", "gauge", "Since the coordinator started.");
  page.Row({}, status.uptime_seconds);
  page.Family("nodes", "gauge", "Workers that are joined.");
  page.Row({}, status.nodes.size());
  page.Family("backbones", "gauge", "Backbones that are attached.");
  page.Row({}, status.backbones.size());

  const auto layer = [&](const LayerCoverage& row, auto value) {
    page.Row({{"layer", std::to_string(row.layer)}}, value);
  };
  page.Each("layer_experts_covered", "gauge", "Experts of a layer with at least one ready holder.", status.layers,
            layer, [](const LayerCoverage& row) { return row.covered; });
  page.Each("layer_min_holders", "gauge", "Ready holders of the layer's least held expert.", status.layers, layer,
            [](const LayerCoverage& row) { return row.min_holders; });

  const auto node = [&](const NodeStatus& row, auto value) {
    page.Row({{"node", row.node_id}, {"name", row.name}, {"device", row.device}}, value);
  };
  page.Each("node_slices_ready", "gauge", "Slices a worker has verified and loaded.", status.nodes, node,
            [](const NodeStatus& row) { return row.slices_ready; });
  page.Each("node_slices_wanted", "gauge", "Slices a worker should hold.", status.nodes, node,
            [](const NodeStatus& row) { return row.slices_wanted; });
  page.Each("node_downloaded_bytes_total", "counter", "Bytes a worker has downloaded.", status.nodes, node,
            [](const NodeStatus& row) { return row.downloaded_bytes; });
  page.Each("node_pairs_total", "counter", "Pairs a worker has computed.", status.nodes, node,
            [](const NodeStatus& row) { return row.pairs_computed; });
  page.Each("node_busy_seconds_total", "counter", "Time a worker spent computing.", status.nodes, node,
            [](const NodeStatus& row) { return static_cast<double>(row.busy_us) / 1e6; });
  page.Each("node_seen_seconds", "gauge", "Since a worker was last heard of.", status.nodes, node,
            [](const NodeStatus& row) { return row.seconds_since_seen; });

  page.Each("node_admitted", "gauge", "0: a backbone found that a worker computes wrong.", status.nodes, node,
            [](const NodeStatus& row) { return row.admitted ? 1 : 0; });
  const auto checks = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    page.Family(name, type, help);
    for (const BackboneStatus& row : status.backbones) {
      for (const NodeCheck& check : row.report.checks) {
        page.Row({{"backbone", row.backbone_id}, {"node", check.node_id}}, value(check));
      }
    }
  };
  checks("check_canaries_total", "counter", "Canary rows of a worker that were judged.",
         [](const NodeCheck& check) { return check.canaries; });
  checks("check_spots_total", "counter", "Live results of a worker that were checked.",
         [](const NodeCheck& check) { return check.spot_checks; });
  checks("check_skipped_total", "counter", "Live results drawn for a check for which there was no time.",
         [](const NodeCheck& check) { return check.skipped; });
  checks("check_worst_cosine", "gauge", "Of one row of a worker against its reference.",
         [](const NodeCheck& check) { return check.worst_cosine; });

  const auto backbone = [&](const BackboneStatus& row, auto value) {
    page.Row({{"backbone", row.backbone_id}, {"program", row.program}}, value);
  };
  page.Each("backbone_dispatches_total", "counter", "Layers × batches computed.", status.backbones, backbone,
            [](const BackboneStatus& row) { return row.report.dispatches; });
  page.Each("backbone_pairs_total", "counter", "Pairs asked for.", status.backbones, backbone,
            [](const BackboneStatus& row) { return row.report.pairs; });
  page.Each("backbone_pairs_local_total", "counter", "Pairs the backbone computed itself.", status.backbones, backbone,
            [](const BackboneStatus& row) { return row.report.pairs_local; });
  page.Each("backbone_pairs_retried_total", "counter", "Pairs moved to another holder.", status.backbones, backbone,
            [](const BackboneStatus& row) { return row.report.pairs_retried; });
  page.Each("backbone_failed_total", "counter", "Graph computations that returned an error.", status.backbones,
            backbone, [](const BackboneStatus& row) { return row.report.failed; });
  page.Each("backbone_round_trips_total", "counter", "Round trips to workers.", status.backbones, backbone,
            [](const BackboneStatus& row) { return row.report.round_trips; });

  const auto links = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    page.Family(name, type, help);
    for (const BackboneStatus& row : status.backbones) {
      for (const LinkReport& link : row.report.links) {
        page.Row({{"backbone", row.backbone_id}, {"node", link.node_id}}, value(link));
      }
    }
  };
  links("link_pairs_total", "counter", "Pairs computed over a link.",
        [](const LinkReport& link) { return link.pairs; });
  links("link_sent_bytes_total", "counter", "Bytes a backbone sent over a link.",
        [](const LinkReport& link) { return link.bytes_sent; });
  links("link_received_bytes_total", "counter", "Bytes a backbone received over a link.",
        [](const LinkReport& link) { return link.bytes_received; });
  links("link_faults_total", "counter", "Timeouts, refusals and losses of a link.",
        [](const LinkReport& link) { return link.faults; });
  links("link_rtt_seconds", "gauge", "Dispatch to result, decaying average.",
        [](const LinkReport& link) { return link.rtt_us_mean / 1e6; });
  return page.Take();
}

}  // namespace linkcpp
