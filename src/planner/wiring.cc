#include "planner/wiring.h"

#include <algorithm>
#include <format>
#include <map>
#include <string_view>

#include "base/byte_size.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kHostBatch = 2048;  // llama-server's own -b
constexpr std::string_view kNewCoordinator = "http://127.0.0.1:8090";

constexpr std::string_view kPlainCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@+%";

std::string Quoted(const std::string& word) {
  if (!word.empty() && word.find_first_not_of(kPlainCharacters) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += R"('\'')";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string LayerRanges(std::span<const std::uint32_t> ascending) {  // "3,5:8": as linkcpp join takes them
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t j = i + 1;
    while (j < ascending.size() && ascending[j] == ascending[j - 1] + 1) ++j;
    if (!text.empty()) text += ',';
    text += j - i == 1 ? std::format("{}", ascending[i]) : std::format("{}:{}", ascending[i], ascending[j - 1] + 1);
    i = j;
  }
  return text;
}

// The experts of these layers into a buffer type; of all layers when `all`.
std::string Override(std::span<const std::uint32_t> layers, bool all, std::string_view where) {
  if (all) return std::format("exps={}", where);
  return std::format(R"(blk\.{}\.ffn_.*_exps={})", NumberPattern(layers), where);
}

// llama.cpp's -dev: on devices that hold no layers it takes memory all the same, for prompts. "": those it finds; also
// where devices are only planned, whose names are not known.
std::string DevicesArgument(const Machine& machine, const Placement& placement) {
  if (placement.n_gpu_layers == 0) return machine.devices.empty() && !machine.has_other_devices ? "" : "none";
  bool leaves_out = machine.has_other_devices, are_here = true;
  std::string names;
  for (const FastDevice& device : machine.devices) {
    leaves_out = leaves_out || device.left_out;
    if (device.left_out) continue;
    are_here = are_here && device.here;
    names += (names.empty() ? "" : ",") + device.name;
  }
  return leaves_out && are_here ? names : "";
}

}  // namespace

std::string NumberPattern(std::span<const std::uint32_t> ascending) {
  std::map<std::uint32_t, std::string> by_tens;  // everything but the last digit -> last digits
  for (const std::uint32_t n : ascending) by_tens[n / 10] += static_cast<char>('0' + n % 10);
  std::string pattern;
  for (const auto& [tens, digits] : by_tens) {
    if (!pattern.empty()) pattern += '|';
    if (tens > 0) pattern += std::to_string(tens);
    if (digits.size() == 1) {
      pattern += digits;
      continue;
    }
    const bool is_run = digits.back() - digits.front() + 1 == static_cast<int>(digits.size()) && digits.size() > 2;
    pattern += is_run ? std::format("[{}-{}]", digits.front(), digits.back()) : std::format("[{}]", digits);
  }
  return std::format("({})", pattern);
}

Wiring WirePlacement(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                     const Placement& placement, const std::string& model_path, const SwarmStart& start) {
  Wiring wiring;
  std::vector<std::uint32_t> outside, swarm;
  std::uint32_t n_moe = 0;
  bool disk = false;
  for (std::size_t i = 0; i < sizes.layers.size(); ++i) {
    if (sizes.layers[i].expert_bytes == 0) continue;
    ++n_moe;
    const Tier tier = placement.layers[i].experts;
    if (tier != Tier::kVram && placement.layers[i].vram_bytes == 0) outside.push_back(sizes.layers[i].layer);
    if (placement.layers[i].vram_bytes > 0) {
      std::string parts;
      for (const auto& part : sizes.layers[i].expert_parts) {
        if (!std::ranges::contains(placement.layers[i].vram_parts, part.name))
          parts += (parts.empty() ? "" : "|") + part.name;
      }
      wiring.overrides.push_back(std::format(R"(blk\.{}\.({})\.=CPU)", sizes.layers[i].layer, parts));
    }
    if (tier == Tier::kSwarm) swarm.push_back(sizes.layers[i].layer);
    disk = disk || tier == Tier::kDisk;
  }
  auto& arguments = wiring.arguments;
  const auto add = [&](const char* name, std::string value) {
    arguments.emplace_back(name);
    arguments.push_back(std::move(value));
  };
  add("-c", std::to_string(ContextCells(sizes, options)));
  add("-np", std::to_string(options.n_parallel));
  if (options.n_batch > kHostBatch) add("-b", std::to_string(options.n_batch));  // -ub is cut to it
  add("-ub", std::to_string(options.n_batch));
  add("-ngl", std::to_string(GpuLayersArgument(sizes, placement)));
  if (const std::string devices = DevicesArgument(machine, placement); !devices.empty()) add("-dev", devices);
  std::string split;
  for (const std::uint32_t n : TensorSplitArgument(sizes, machine, placement)) {
    split += (split.empty() ? "" : ",") + std::to_string(n);
  }
  if (!split.empty()) add("-ts", split);
  // Without layers on a device the experts are on the CPU, or with the plug-in, anyway.
  if (placement.n_gpu_layers > 0 && !outside.empty()) {
    wiring.overrides.push_back(Override(outside, outside.size() == n_moe, swarm.empty() ? "CPU" : "LinkCPP"));
  }
  std::string overrides;  // in one -ot: llama.cpp takes several, and warns that it will not
  for (const std::string& value : wiring.overrides) overrides += (overrides.empty() ? "" : ",") + value;
  if (!overrides.empty()) add("-ot", overrides);
  add("-fa", sizes.flash_attention ? "on" : "off");
  if (options.kv != KvType::kF16) {
    add("-ctk", KvTypeName(options.kv));
    add("-ctv", KvTypeName(options.kv));
  }
  if (disk) arguments.emplace_back("--no-repack");  // repacked weights are copies, and would not fit
  arguments.emplace_back("-fit");
  arguments.emplace_back("off");

  std::string rest;
  for (const std::string& word : arguments) rest += ' ' + Quoted(word);
  if (swarm.empty()) {
    wiring.command = "llama-server -m " + Quoted(model_path) + rest;
    return wiring;
  }
  // What the backbone computes itself must have room there: the limit is rounded up.
  const std::uint64_t local_mib = (placement.ram.experts + (1ull << 20) - 1) >> 20;
  const std::string local = local_mib > 0 ? std::format("LINKCPP_LOCAL_MEMORY={}M ", local_mib) : std::string();
  const bool all_here = std::ranges::all_of(machine.nodes, &Node::here);
  const bool runs = !start.coordinator.empty();
  auto& environment = wiring.environment;
  environment = {{"GGML_BACKEND_PATH", start.plugin},
                 {"LINKCPP_COORDINATOR", runs ? start.coordinator : std::string(kNewCoordinator)},
                 {"LINKCPP_DATA_LISTEN", runs       ? start.data_listen
                                         : all_here ? "127.0.0.1:0"
                                                    : "0.0.0.0:0"},
                 {"LINKCPP_LOCAL", "allow"}};
  if (!start.token_file.empty()) environment.emplace_back("LINKCPP_TOKEN_FILE", start.token_file);
  if (local_mib > 0) environment.emplace_back("LINKCPP_LOCAL_MEMORY", std::format("{}M", local_mib));
  if (!start.preload.empty()) environment.emplace_back("LD_PRELOAD", start.preload);
  environment.emplace_back("GOMP_SPINCOUNT", "1000");  // as `linkcpp serve` does, docs/plugin.md
  if (runs) {
    for (const auto& [name, value] : environment) wiring.command += std::format("{}={} ", name, Quoted(value));
    wiring.command += "llama-server -m " + Quoted(model_path) + rest;
  } else {
    wiring.command = std::format("{}linkcpp serve -m {} --listen {}:8090 --{}", local, Quoted(model_path),
                                 all_here ? "127.0.0.1" : "0.0.0.0", rest);
  }
  for (const Node& node : machine.nodes) {
    if (node.joined) continue;
    wiring.workers.push_back(
        std::format("LINKCPP_TOKEN=TOKEN linkcpp join URL --memory {} --layers {} --name {}{}",
                    ByteSizeOption(node.memory_bytes), LayerRanges(swarm), Quoted(node.name),
                    node.threads > 0 ? std::format(" --threads {}", node.threads) : std::string()));
  }
  return wiring;
}

LayoutRequest LayoutRequestOf(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                              const Placement& placement, const Wiring& wiring, const std::string& model_path) {
  LayoutRequest request{.model_path = model_path,
                        .n_gpu_layers = static_cast<std::int32_t>(GpuLayersArgument(sizes, placement)),
                        .n_context = ContextCells(sizes, options),
                        .n_seq_max = options.n_parallel,
                        .n_ubatch = options.n_batch,
                        .kv_type = KvTypeName(options.kv),
                        .flash_attention = sizes.flash_attention,
                        .repack = !std::ranges::contains(wiring.arguments, "--no-repack"),
                        .host_state_bytes = placement.ram.state};
  for (const FastDevice& device : machine.devices) {
    if (device.left_out || placement.n_gpu_layers == 0) continue;
    request.devices.push_back({.name = device.name, .memory_bytes = device.memory_bytes, .here = device.here});
  }
  for (const std::uint32_t n : TensorSplitArgument(sizes, machine, placement)) {
    request.tensor_split.push_back(static_cast<float>(n));
  }
  for (const std::string& value : wiring.overrides) request.overrides.push_back(value.substr(0, value.rfind('=')));
  return request;
}

}  // namespace linkcpp
