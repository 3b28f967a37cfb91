#include "cli/plan_machine.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <print>
#include <ranges>
#include <string_view>
#include <thread>
#include <utility>

#include "base/byte_size.h"
#include "cli/cpu_speed.h"
#include "cli/swarm_nodes.h"
#include "cli/swarm_view.h"
#include "gguf/manifest.h"
#include "gguf/tensor_type.h"
#include "kernel/device.h"
#include "kernel/openmp_spin.h"
#include "planner/memory.h"
#include "planner/plan.h"
#include "planner/step_costs.h"
#include "worker/byte_size.h"

namespace linkcpp {
namespace {

constexpr double kVramGbs = 500, kVramTflops = 30, kLinkGbs = 25;  // a mid-range card in a PCIe 4.0 slot
constexpr double kCoreTflops = 0.04;                               // one core with AVX2 on quantised matrices
constexpr std::uint64_t kLeastSize = 1ull << 20;                   // less is a forgotten unit

Result<std::uint64_t> ParseMemory(std::string_view option, const std::string& text) {
  const auto bytes = ParseByteSize(text);
  if (!bytes) return Fail(FaultCode::kRefused, "{} {}", option, bytes.error().text);
  if (*bytes < kLeastSize) {
    const bool no_unit = text.find_first_not_of("0123456789.") == std::string::npos;
    return Fail(FaultCode::kRefused, "{} '{}' is {} bytes: {}", option, text, *bytes,
                no_unit ? std::format("write {}G for as many GiB", text) : std::string("no model fits there"));
  }
  return *bytes;
}

Result<double> ParseDisk(const std::string& text) {
  if (text.empty()) return 0;
  if (text == "nvme") return kNvmeGbs;
  if (text == "sata") return kSataGbs;
  double rate = 0;
  const char* const end_of_text = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), end_of_text, rate);
  const std::string_view unit(end, end_of_text);
  if (error != std::errc() || (!unit.empty() && unit != "GB/s") || !(rate >= 0.001 && rate <= 1000)) {
    return Fail(FaultCode::kRefused, "--disk '{}' is neither nvme, sata nor a number of GB/s", text);
  }
  return rate;
}

// Whether ggml's CPU backend will pack matrices for AMX here.
bool HasAmx() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("amx-int8") != 0;
#else
  return false;
#endif
}

// Which of the model's weights a device does not compute with.
void FindRefused(const ModelSizes& sizes, FastDevice& device, std::vector<std::string>& assumptions) {
  std::map<WeightKind, std::pair<std::string, std::uint64_t>> kinds;  // one of them: name, bytes
  for (const LayerSizes& layer : sizes.layers) {
    for (const LayerSizes::ExpertPart& part : layer.expert_parts) kinds.try_emplace(part.kind, part.name, part.bytes);
    for (const PlainMatrix& matrix : layer.matrices) kinds.try_emplace(matrix.kind, matrix.name, matrix.bytes);
  }
  kinds.try_emplace(sizes.output.kind, sizes.output.name, sizes.output.bytes);
  for (const auto& [kind, example] : kinds) {
    if (Device::TakesWeight(device.name, kind.type, kind.n_in, kind.n_out, kind.n_experts, kind.n_used)) continue;
    device.refuses.push_back(kind);
    assumptions.push_back(std::format("{} does not compute with {} in {} ({}): {} in RAM", device.name, example.first,
                                      TensorTypeName(kind.type), BinarySizeText(example.second),
                                      kind.n_experts > 0 ? "they stay" : "that stays"));
  }
}

Result<void> ReadDevices(const MachineWish& wish, const ModelSizes& sizes, Machine& machine,
                         std::vector<std::string>& assumptions) {
  const double rate = wish.vram_rate.value_or(kVramGbs);
  const char* const rate_from = wish.vram_rate ? "--vram-rate" : "assumed, see --vram-rate";
  if (wish.vram == "none") {
    assumptions.emplace_back("no device: the CPU computes everything (--vram none)");
    machine.has_other_devices = true;  // there may be some
    return {};
  }
  std::vector<DeviceInfo> here;
  if (wish.vram.empty() || wish.vram.contains('=')) {
    here = Device::List();
    std::erase_if(here, [](const DeviceInfo& info) { return !info.is_gpu || info.free_bytes == 0; });
  }
  const auto add = [&](std::string name, std::uint64_t bytes, bool is_here) {
    machine.devices.push_back(
        {.name = std::move(name), .memory_bytes = bytes, .read_gbs = rate, .tflops = kVramTflops, .here = is_here});
  };
  for (const auto part : std::views::split(wish.vram, ',')) {  // "": no part
    const std::string text(part.begin(), part.end());
    const std::size_t equals = text.find('=');
    const std::string name = equals == std::string::npos ? "" : text.substr(0, equals);
    ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseMemory("--vram", name.empty() ? text : text.substr(equals + 1)));
    if (name.empty()) {
      add(std::format("device {}", machine.devices.size()), bytes, false);
      continue;
    }
    if (!std::ranges::contains(here, name, &DeviceInfo::name)) {
      std::string names;
      for (const DeviceInfo& info : here) names += (names.empty() ? "" : ", ") + info.name;
      return Fail(FaultCode::kRefused, "--vram {}: there is no device {} here{}", text, name,
                  names.empty() ? "; ggml finds no GPU" : "; there are: " + names);
    }
    if (std::ranges::contains(machine.devices, name, &FastDevice::name)) {
      return Fail(FaultCode::kRefused, "--vram names {} twice", name);
    }
    add(name, bytes, true);
  }
  if (wish.vram.empty()) {
    for (const DeviceInfo& info : here) add(info.name, info.free_bytes, true);
    if (machine.devices.empty()) {
      assumptions.emplace_back("no device: ggml finds no GPU here (see --vram)");
      return {};
    }
  }
  machine.has_other_devices = std::ranges::any_of(here, [&](const DeviceInfo& info) {
    return !std::ranges::contains(machine.devices, info.name, &FastDevice::name);
  });
  for (const FastDevice& device : machine.devices) {
    assumptions.push_back(std::format("{}: {} ({}), read at {:.0f} GB/s ({}), {:.0f} Tflop/s (assumed)", device.name,
                                      BinarySizeText(device.memory_bytes), wish.vram.empty() ? "free now" : "--vram",
                                      rate, rate_from, kVramTflops));
  }
  for (FastDevice& device : machine.devices) {
    if (device.here) FindRefused(sizes, device, assumptions);
  }
  machine.link_gbs = kLinkGbs;
  assumptions.push_back(std::format("from RAM to a device: {:.0f} GB/s (assumed)", kLinkGbs));
  return {};
}

}  // namespace

bool IsHere(std::string_view url) {
  return url.contains("//127.") || url.contains("//localhost") || url.contains("//[::1]");
}

namespace {

// Its nodes. What the coordinator says no to is not the command line's fault: kGone.
Result<void> ReadSwarm(const MachineWish& wish, const ModelFile& model, const ModelSizes& sizes, Machine& machine,
                       std::vector<std::string>& assumptions) {
  ASSIGN_OR_RETURN(const HttpEndpoint endpoint, VisitorEndpoint(wish.swarm_url, wish.token_file));
  SwarmView swarm(endpoint);
  const auto status = swarm.Status();
  if (!status) return Fail(FaultCode::kGone, "{}", status.error().text);
  const auto serves_it = swarm.Serves(model.header_hash().Hex());
  if (!serves_it) return Fail(FaultCode::kGone, "{}", serves_it.error().text);
  machine.nodes = NodesOf(*status, sizes, assumptions);
  if (machine.nodes.empty()) return Fail(FaultCode::kGone, "{} has no node to plan with", wish.swarm_url);
  for (Node& node : machine.nodes) node.joined = *serves_it;
  if (!*serves_it) {
    assumptions.push_back(std::format("{} serves another model ({}): its nodes would have to join a new coordinator",
                                      wish.swarm_url, status->model_name));
  }
  if (!IsHere(wish.swarm_url) || !wish.ram.empty()) return {};
  // What workers here may still fill is not free for anything else.
  std::uint64_t promised = 0;
  for (const NodeStatus& node : status->nodes) {
    const std::uint64_t held = status->n_slices > 0 ? status->expert_bytes / status->n_slices * node.slices_ready : 0;
    promised += node.memory_bytes - std::min(node.memory_bytes, held);
  }
  machine.ram_bytes -= std::min(machine.ram_bytes, promised);
  assumptions.push_back(
      std::format("the swarm's nodes are on this machine: {} that they may still fill is taken off its RAM",
                  BinarySizeText(promised)));
  return {};
}

// Fills in how fast the CPU computes; how that is known, for people.
Result<std::string> FindSpeed(const MachineWish& wish, const ModelFile& model, const ModelSizes& sizes,
                              Machine& machine) {
  ASSIGN_OR_RETURN(const SpeedQuestion question, AskSpeed(model, sizes, wish.n_batch, machine.nodes));
  const std::string cache = DefaultCacheDir(), folder = cache.empty() ? "" : cache + "/speed";
  if (!wish.measure_again) {
    if (const auto kept = FindKeptSpeed(folder, question)) {
      UseSpeed(question, kept->speed, machine);
      return std::format("measured {} min ago, --measure measures again", kept->age_s / 60);
    }
  }
  RestartWithOpenMpSpin();
  if (::isatty(STDERR_FILENO) == 1) std::println(stderr, "measuring this CPU on the model's shapes, some seconds");
  ASSIGN_OR_RETURN(const CpuSpeed speed, MeasureSpeed(question));
  KeepSpeed(folder, question, speed);
  UseSpeed(question, speed, machine);
  return "measured now, a busy machine shows less";
}

void SayCpuSpeed(const Machine& machine, const std::string& how, std::vector<std::string>& assumptions) {
  assumptions.push_back(
      std::format("CPU on this model's shapes, {}: matrices {:.1f}, experts {:.1f}, K and V {:.1f} GB/s",
                  how.substr(0, how.find(',')), machine.dense_gbs, machine.expert_gbs, machine.attention_gbs));
  assumptions.push_back("  beside them " + StepCostsText(machine));
  const BatchRates& batch = machine.batch;
  if (batch.n_rows == 0) return;
  std::string delta_net;
  if (batch.delta_net_seconds > 0) delta_net = std::format(", its delta net {:.2f} ms", 1e3 * batch.delta_net_seconds);
  assumptions.push_back(std::format(
      "  a batch of {}: matrices {:.0f}, experts {:.0f} GB/s of weights times rows; a layer's attention {:.2f} ms, its "
      "router {:.2f} ms{}, another step {:.2f} ms; over loopback {:.2f} GB/s, a token's rows {:.2f}",
      batch.n_rows, batch.dense_gbs, batch.expert_gbs, 1e3 * batch.attention_seconds, 1e3 * batch.router_seconds,
      delta_net, 1e3 * batch.step_seconds, machine.loopback_gbs, machine.loopback_row_gbs));
}

}  // namespace

Result<Machine> ReadMachine(const MachineWish& wish, const ModelFile& model, const ModelSizes& sizes,
                            std::vector<std::string>& assumptions) {
  Machine machine;
  RETURN_IF_FAULT(ReadDevices(wish, sizes, machine, assumptions));
  machine.ram_bytes = AvailableMemory();
  if (!wish.ram.empty()) {
    ASSIGN_OR_RETURN(machine.ram_bytes, ParseMemory("--ram", wish.ram));
  }
  ASSIGN_OR_RETURN(machine.disk_gbs, ParseDisk(wish.disk));
  if (!wish.nodes.empty()) {
    std::ifstream file(wish.nodes, std::ios::binary);
    if (!file || std::filesystem::is_directory(wish.nodes))
      return Fail(FaultCode::kLocal, "{}: cannot be read", wish.nodes);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ASSIGN_OR_RETURN(machine.nodes, ParseNodes(text, wish.nodes));
  }
  if (!wish.swarm_url.empty()) RETURN_IF_FAULT(ReadSwarm(wish, model, sizes, machine, assumptions));
  if (!machine.nodes.empty()) {
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (const LayerSizes& layer : sizes.layers) {
      if (layer.expert_bytes > 0) least = std::min(least, layer.slice_bytes);
    }
    const std::string dropped = DropUselessNodes(machine.nodes, least);
    if (!dropped.empty()) assumptions.push_back(dropped);
  }
  const unsigned n_cores = std::max(1u, std::thread::hardware_concurrency());
  machine.n_cores = n_cores;
  machine.cpu_tflops = kCoreTflops * n_cores;
  std::string how = "--ram-rate";
  if (wish.ram_rate) {
    machine.ram_gbs = *wish.ram_rate;
    AssumeStepCosts(sizes, machine);
    for (Node& node : machine.nodes) {
      if (node.here && node.read_gbs == 0) node.read_gbs = *wish.ram_rate;
    }
  } else {
    ASSIGN_OR_RETURN(how, FindSpeed(wish, model, sizes, machine));
  }
  assumptions.push_back(std::format("RAM: {} ({}), read at {:.1f} GB/s ({})", BinarySizeText(machine.ram_bytes),
                                    wish.ram.empty() ? "available now" : "--ram", machine.ram_gbs, how));
  assumptions.push_back(
      std::format("CPU: {} core{}, {:.2f} Tflop/s (assumed)", n_cores, n_cores == 1 ? "" : "s", machine.cpu_tflops));
  if (wish.ram_rate) {
    assumptions.push_back("beside weights (assumed with --ram-rate, from a Sapphire Rapids Xeon): " +
                          StepCostsText(machine));
  } else {
    SayCpuSpeed(machine, how, assumptions);
  }
  machine.amx = HasAmx();
  if (machine.amx)
    assumptions.emplace_back(
        "this processor has AMX: llama.cpp packs the CPU's matrices for it, which makes some larger");
  assumptions.push_back(machine.disk_gbs > 0 ? std::format("disk: {} GB/s (--disk)", machine.disk_gbs)
                                             : std::string("disk: experts may not stay on it (see --disk)"));
  for (const Node& node : machine.nodes) {
    if (!wish.swarm_url.empty()) break;  // said already
    assumptions.push_back(std::format("{}: {}, {:.4g} GB/s, {} ms, {}/{} Mbit/s, {} Tflop/s ({}{})", node.name,
                                      BinarySizeText(node.memory_bytes), node.read_gbs, node.rtt_ms, node.up_mbits,
                                      node.down_mbits, node.tflops, wish.nodes, node.here ? ", here" : ""));
  }
  assumptions.emplace_back("flash attention; rows travel as f32; routing is uniform");
  assumptions.push_back(std::format("kept free on each device: {}", BinarySizeText(kDeviceReserveBytes)));
  return machine;
}

}  // namespace linkcpp
