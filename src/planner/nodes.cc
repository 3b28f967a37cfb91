#include <cmath>
#include <glaze/glaze.hpp>
#include <optional>

#include "base/byte_size.h"
#include "planner/machine.h"

namespace linkcpp {
namespace {

// As written; what is missing stays empty, so that the message can name it.
struct NodeText {
  std::optional<std::string> name, memory;
  std::optional<double> read_gbs, rtt_ms, up_mbits, down_mbits, tflops;
};

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

Result<std::vector<Node>> ParseNodes(std::string_view json, std::string_view name) {
  std::vector<NodeText> texts;
  const std::string buffer(json);
  if (const auto error = glz::read<glz::opts{.error_on_unknown_keys = true}>(texts, buffer)) {
    return Fail(FaultCode::kRefused,
                "{}: {}: write [{{\"name\": \"pc1\", \"memory\": \"8GiB\", \"read_gbs\": 20, \"rtt_ms\": 0.3, "
                "\"up_mbits\": 1000, \"down_mbits\": 1000}}]",
                name, FirstLine(glz::format_error(error, buffer)));
  }
  std::vector<Node> nodes;
  for (const NodeText& text : texts) {
    Node node;
    node.name = text.name.value_or(std::format("node{}", nodes.size() + 1));
    if (!text.memory) return Fail(FaultCode::kRefused, "{}: {}: \"memory\" is missing, e.g. \"8GiB\"", name, node.name);
    const auto memory = ParseByteSize(*text.memory);
    if (!memory) return Fail(FaultCode::kRefused, "{}: {}: memory: {}", name, node.name, memory.error().text);
    node.memory_bytes = *memory;
    struct Field {
      const char* key;
      const std::optional<double>& value;
      double& into;
      double least, most;
    };
    const std::optional<double> tflops = text.tflops.value_or(node.tflops);
    const Field fields[] = {{"read_gbs", text.read_gbs, node.read_gbs, 0.01, 100'000},
                            {"rtt_ms", text.rtt_ms, node.rtt_ms, 0, 100'000},
                            {"up_mbits", text.up_mbits, node.up_mbits, 0.001, 10'000'000},
                            {"down_mbits", text.down_mbits, node.down_mbits, 0.001, 10'000'000},
                            {"tflops", tflops, node.tflops, 0.000'1, 100'000}};
    for (const Field& field : fields) {
      if (!field.value) return Fail(FaultCode::kRefused, "{}: {}: \"{}\" is missing", name, node.name, field.key);
      if (!(*field.value >= field.least && *field.value <= field.most)) {
        return Fail(FaultCode::kRefused, "{}: {}: {} is {}: it must lie between {} and {}", name, node.name, field.key,
                    *field.value, field.least, field.most);
      }
      field.into = *field.value;
    }
    nodes.push_back(std::move(node));
  }
  if (nodes.empty()) return Fail(FaultCode::kRefused, "{}: there is no node in it", name);
  return nodes;
}

}  // namespace linkcpp
