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

// The first `most` characters.
std::string_view Head(std::string_view text, std::size_t most) {
  std::size_t end = 0, n = 0;
  for (; end < text.size(); ++end) {
    if ((static_cast<unsigned char>(text[end]) & 0xc0) != 0x80 && ++n > most) break;
  }
  return text.substr(0, end);
}

// Columns whose head begins with '>' are numbers and stand right; columns without any cell but "-" are left out.
class Table {
 public:
  Table(const TextStyle& style, const std::vector<std::string_view>& head) : style_(style) {
    std::vector<std::string> names;
    for (const std::string_view name : head) {
      right_.push_back(name.starts_with('>'));
      names.emplace_back(name.substr(right_.back() ? 1 : 0));
    }
    rows_.push_back({std::move(names), false});
  }
  void Row(std::vector<std::string> cells, bool red = false) { rows_.push_back({std::move(cells), red}); }

  std::string Text() const {
    std::vector<std::size_t> widths(right_.size());
    std::vector<bool> empty(right_.size(), rows_.size() > 1);
    for (const Line& line : rows_) {
      for (std::size_t i = 0; i < line.cells.size(); ++i) {
        widths[i] = std::max(widths[i], Width(line.cells[i]));
        if (&line != &rows_.front() && line.cells[i] != "-") empty[i] = false;
      }
    }
    std::string text;
    for (const Line& line : rows_) {
      std::string row;
      for (std::size_t i = 0; i < line.cells.size(); ++i) {
        if (empty[i]) continue;
        const std::string gap(widths[i] - Width(line.cells[i]), ' ');
        if (!row.empty()) row += "  ";
        row += right_[i] ? gap + line.cells[i] : line.cells[i] + gap;
      }
      row.erase(row.find_last_not_of(' ') + 1);
      if (style_.width > 1 && Width(row) > style_.width) row = std::string(Head(row, style_.width - 1)) + "…";
      const bool head = &line == &rows_.front();
      if (style_.color && (head || line.red)) row = (head ? "\x1b[1m" : "\x1b[31m") + row + "\x1b[0m";
      text += row + '\n';
    }
    return text;
  }

 private:
  struct Line {
    std::vector<std::string> cells;
    bool red = false;
  };
  const TextStyle& style_;
  std::vector<bool> right_;
  std::vector<Line> rows_;
};

// A line, broken between words where the terminal ends; what goes on is indented.
std::string Broken(std::string_view line, const TextStyle& style) {
  std::string text;
  std::size_t column = 0;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
    if (style.width > 0 && column > 2 && column + 1 + Width(word) > style.width) {
      text += "\n  ";
      column = 2;
    } else if (column > 0) {
      text += ' ';
      ++column;
    }
    text += word;
    column += Width(word);
  }
  return text + "\n";
}

std::string Number(std::uint64_t n) {
  return n == 0 ? "-" : std::to_string(n);
}

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

std::string LayersText(const std::vector<LayerCoverage>& layers, const TextStyle& style) {
  Table table(style, {"LAYERS", "COVERED", "HOLDERS"});
  for (std::size_t i = 0; i < layers.size();) {
    const LayerCoverage& first = layers[i];
    std::size_t end = i + 1;
    while (end < layers.size() && layers[end].layer == layers[end - 1].layer + 1 &&
           layers[end].n_experts == first.n_experts && layers[end].covered == first.covered &&
           layers[end].min_holders == first.min_holders) {
      ++end;
    }
    table.Row({LayerSpan(first.layer, layers[end - 1].layer), std::format("{} of {}", first.covered, first.n_experts),
               std::format("at least {}", first.min_holders)},
              first.covered < first.n_experts);
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
  if (check.canaries + check.spot_checks == 0) return std::format("{}: {}", name, check.state);
  return std::format(
      "{}: {}; {} and {} of {}, cosine {:.7f} (worst {:.7f}), at most {:.3g} of the derived bound; {} ({})", name,
      check.state, check.canaries == 1 ? "1 canary" : std::format("{} canaries", check.canaries),
      CountText(check.spot_checks, "spot check"), CountText(check.slices, "slice"), check.cosine, check.worst_cosine,
      check.over_bound, check.kernel_class, check.kernel_model);
}

std::string StateText(const NodeStatus& node) {
  if (!node.admitted) return "refused";
  return node.connected ? node.state : "not connected";
}

std::string NodesText(const std::vector<NodeStatus>& nodes, const TextStyle& style) {
  Table table(style,
              {"NODE", "ID", "STATE", "DEVICE", ">GIVES", ">SLICES", ">TO LOAD", ">PAIRS", ">BUSY", ">SEEN", "HOLDS"});
  for (const NodeStatus& node : nodes) {
    const std::string state = StateText(node);
    table.Row({node.name, ShortId(node.node_id), state, node.device, BytesText(node.memory_bytes),
               std::format("{} of {}", node.slices_ready, node.slices_wanted),
               node.wanted_bytes == 0 ? "-" : BytesText(node.wanted_bytes), Number(node.pairs_computed),
               node.busy_us == 0 ? "-" : DurationText(static_cast<double>(node.busy_us) / 1e6),
               DurationText(node.seconds_since_seen) + " ago", HoldsText(node.ready)},
              state == "refused" || state == "not connected" || state == "idle");
  }
  std::string text = table.Text();
  for (const NodeStatus& node : nodes) {
    if (!node.refusal.empty()) {
      text += Broken(std::format("{} is kept off backbones: {}", node.name, node.refusal), style);
    }
    for (const NodeCheck& check : node.checks) {
      if (const std::string said = CheckText(node.name, check); !said.empty()) text += Broken(said, style);
    }
    if (!node.error.empty()) text += Broken(std::format("{} says: {}", node.name, node.error), style);
  }
  return text;
}

std::string BackbonesText(const StatusReply& status, const TextStyle& style) {
  std::map<std::string, std::string> names;
  for (const NodeStatus& node : status.nodes) names[node.node_id] = node.name;
  Table backbones(style,
                  {"BACKBONE", "DATA PORT", ">DISPATCHES", ">PAIRS", ">LOCAL", ">RETRIED", ">FAILED", ">ROUND TRIPS"});
  Table links(style, {"LINK", "TO", "ID", ">PAIRS", ">SENT", ">RECEIVED", ">RTT", ">RTT MAX", ">FAULTS"});
  bool any_link = false;
  for (const BackboneStatus& backbone : status.backbones) {
    const BackboneReport& report = backbone.report;
    backbones.Row({backbone.program, backbone.data_address, Number(report.dispatches), Number(report.pairs),
                   Number(report.pairs_local), Number(report.pairs_retried), Number(report.failed),
                   Number(report.round_trips)});
    for (const LinkReport& link : report.links) {
      const auto name = names.find(link.node_id);
      any_link = true;
      links.Row({backbone.program, name == names.end() ? "?" : name->second, ShortId(link.node_id), Number(link.pairs),
                 BytesText(link.bytes_sent), BytesText(link.bytes_received),
                 link.connected ? std::format("{:.2f} ms", link.rtt_us_mean / 1e3) : "gone",
                 std::format("{:.2f} ms", link.rtt_us_max / 1e3), Number(link.faults)},
                name != names.end() && !link.connected);
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

std::string CountText(std::uint64_t n, std::string_view what) {
  return std::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string StatusText(const StatusReply& status, const TextStyle& style) {
  std::string text =
      Broken(std::format("{} ({}), {} of experts in {}; coordinator {}, up {}", status.model_name, status.architecture,
                         BytesText(status.expert_bytes), CountText(status.n_slices, "slice"), status.version,
                         DurationText(status.uptime_seconds)),
             style);
  text += std::format("covered: {} of {} by {}\n\n", status.slices_covered, CountText(status.n_slices, "slice"),
                      CountText(status.nodes.size(), "node"));
  text += LayersText(status.layers, style);
  if (!status.nodes.empty()) text += "\n" + NodesText(status.nodes, style);
  if (!status.backbones.empty()) text += "\n" + BackbonesText(status, style);
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
