#include <algorithm>
#include <cmath>
#include <format>
#include <glaze/glaze.hpp>
#include <optional>

#include "base/byte_size.h"
#include "planner/machine.h"

namespace linkcpp {
namespace {

constexpr std::string_view kExample =
    "write [{\"name\": \"pc1\", \"memory\": \"8GiB\", \"read_gbs\": 20, \"rtt_ms\": 0.3, \"up_mbits\": 1000, "
    "\"down_mbits\": 1000}]";

// As written; what is missing stays empty, so that the message can name it.
struct NodeText {
  std::optional<std::string> name, memory;
  std::optional<double> read_gbs, rtt_ms, up_mbits, down_mbits, tflops;
  std::optional<bool> here;
  std::optional<std::uint32_t> threads;
};

// What is wrong, where, and in which field: "unknown field 'colour'", "'read_gbs' at 1:45 is not what it should be".
std::string Describe(const glz::error_ctx& error, const std::string& json) {
  const std::size_t at = std::min<std::size_t>(error.count, json.size());
  if (error.ec == glz::error_code::unknown_key) {
    return std::format("unknown field '{}'", json.substr(at, json.find('"', at) - at));
  }
  const std::string where = glz::format_error(error, json);
  const std::size_t end = json.rfind("\":", at);
  const std::size_t begin = end == std::string::npos || end == 0 ? std::string::npos : json.rfind('"', end - 1);
  std::string text = where.substr(0, where.find('\n'));  // "1:45: expected_digit"
  if (begin != std::string::npos)
    text += std::format(" at or after field '{}'", json.substr(begin + 1, end - begin - 1));
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace

Result<std::vector<Node>> ParseNodes(std::string_view json, std::string_view name) {
  if (json.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return Fail(FaultCode::kRefused, "{}: empty: there is no node in it: {}", name, kExample);
  }
  std::vector<NodeText> texts;
  const std::string buffer(json);
  if (const auto error = glz::read<glz::opts{.error_on_unknown_keys = true}>(texts, buffer)) {
    return Fail(FaultCode::kRefused, "{}: {}: {}", name, Describe(error, buffer), kExample);
  }
  std::vector<Node> nodes;
  for (const NodeText& text : texts) {
    Node node;
    node.name = text.name.value_or(std::format("node{}", nodes.size() + 1));
    if (std::ranges::contains(nodes, node.name, &Node::name))
      return Fail(FaultCode::kRefused, "{}: two nodes are called {}", name, node.name);
    if (!text.memory) return Fail(FaultCode::kRefused, "{}: {}: \"memory\" is missing, e.g. \"8GiB\"", name, node.name);
    const auto memory = ParseByteSize(*text.memory);
    if (!memory) return Fail(FaultCode::kRefused, "{}: {}: memory: {}", name, node.name, memory.error().text);
    node.memory_bytes = *memory;
    node.here = text.here.value_or(false);
    node.threads = text.threads.value_or(0);
    if (node.threads > 0 && !node.here) {
      return Fail(FaultCode::kRefused, "{}: {}: threads are for a worker here (\"here\": true)", name, node.name);
    }
    // What a worker here leaves out: no wire is added, and its kernel is ours.
    const auto or_if_here = [&](const std::optional<double>& value, double otherwise) {
      return value || !node.here ? value : std::optional(otherwise);
    };
    const bool measured = node.here && !text.read_gbs;
    const auto read_gbs = or_if_here(text.read_gbs, 1), rtt_ms = or_if_here(text.rtt_ms, 0);
    const auto up_mbits = or_if_here(text.up_mbits, 1), down_mbits = or_if_here(text.down_mbits, 1);
    struct Field {
      const char* key;
      const std::optional<double>& value;
      double& into;
      double least, most;
    };
    const std::optional<double> tflops = text.tflops.value_or(node.tflops);
    const Field fields[] = {{"read_gbs", read_gbs, node.read_gbs, 0.01, 100'000},
                            {"rtt_ms", rtt_ms, node.rtt_ms, 0, 100'000},
                            {"up_mbits", up_mbits, node.up_mbits, 0.001, 10'000'000},
                            {"down_mbits", down_mbits, node.down_mbits, 0.001, 10'000'000},
                            {"tflops", tflops, node.tflops, 0.000'1, 100'000}};
    for (const Field& field : fields) {
      if (!field.value) return Fail(FaultCode::kRefused, "{}: {}: \"{}\" is missing", name, node.name, field.key);
      if (!(*field.value >= field.least && *field.value <= field.most)) {
        return Fail(FaultCode::kRefused, "{}: {}: {} is {}: it must lie between {} and {}", name, node.name, field.key,
                    *field.value, field.least, field.most);
      }
      field.into = *field.value;
    }
    if (measured) node.read_gbs = 0;
    if (node.here && !text.up_mbits) node.up_mbits = 0;
    if (node.here && !text.down_mbits) node.down_mbits = 0;
    nodes.push_back(std::move(node));
  }
  if (nodes.empty()) return Fail(FaultCode::kRefused, "{}: there is no node in it", name);
  return nodes;
}

std::string DropUselessNodes(std::vector<Node>& nodes, std::uint64_t slice_bytes) {
  std::string names;
  for (const Node& node : nodes) {
    if (node.memory_bytes >= slice_bytes) continue;
    names += std::format("{}{} ({})", names.empty() ? "" : ", ", node.name, BinarySizeText(node.memory_bytes));
  }
  if (names.empty()) return names;
  std::erase_if(nodes, [&](const Node& node) { return node.memory_bytes < slice_bytes; });
  return std::format("not counted, because one slice takes {}: {}", BinarySizeText(slice_bytes), names);
}

}  // namespace linkcpp
