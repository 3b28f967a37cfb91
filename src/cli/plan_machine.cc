#include "cli/plan_machine.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <limits>
#include <string_view>
#include <thread>

#include "base/byte_size.h"
#include "cli/plan_calibrate.h"
#include "cli/swarm_nodes.h"
#include "cli/swarm_view.h"
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

// Reads 128 MiB with every core, for a quarter of a second and at least three times, and takes the best: GB/s.
double MeasureReading() {
  constexpr std::size_t kWords = (128ull << 20) / sizeof(std::uint64_t);
  const std::vector<std::uint64_t> words(kWords, 1);
  const std::size_t n_threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 64);
  double best = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
  for (int pass = 0; pass < 3 || std::chrono::steady_clock::now() < deadline; ++pass) {
    std::vector<std::uint64_t> sums(n_threads);
    const auto start = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (std::size_t t = 0; t < n_threads; ++t) {
        threads.emplace_back([&, t] {
          std::uint64_t sum = 0;
          for (std::size_t i = kWords * t / n_threads; i < kWords * (t + 1) / n_threads; ++i) sum += words[i];
          sums[t] = sum;
        });
      }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::uint64_t sum = 0;
    for (const std::uint64_t part : sums) sum += part;
    if (sum == kWords) best = std::max(best, static_cast<double>(kWords * sizeof(std::uint64_t)) / 1e9 / seconds);
  }
  return best;
}

Result<void> ReadDevices(const MachineWish& wish, Machine& machine, std::vector<std::string>& assumptions) {
  const double rate = wish.vram_rate.value_or(kVramGbs);
  const char* const rate_from = wish.vram_rate ? "--vram-rate" : "assumed, see --vram-rate";
  if (wish.vram.size() == 1 && wish.vram[0] == "none") {
    assumptions.emplace_back("no device: the CPU computes everything (--vram none)");
    return {};
  }
  std::vector<DeviceInfo> here;
  if (wish.vram.empty() || std::ranges::any_of(wish.vram, [](const std::string& text) { return text.contains('='); })) {
    here = Device::List();
    std::erase_if(here, [](const DeviceInfo& info) { return !info.is_gpu || info.free_bytes == 0; });
  }
  const auto add = [&](std::string name, std::uint64_t bytes, bool is_here) {
    machine.devices.push_back(
        {.name = std::move(name), .memory_bytes = bytes, .read_gbs = rate, .tflops = kVramTflops, .here = is_here});
  };
  for (const std::string& text : wish.vram) {
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
  for (const FastDevice& device : machine.devices) {
    assumptions.push_back(std::format("{}: {} ({}), read at {:.0f} GB/s ({}), {:.0f} Tflop/s (assumed)", device.name,
                                      BinarySizeText(device.memory_bytes), wish.vram.empty() ? "free now" : "--vram",
                                      rate, rate_from, kVramTflops));
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

}  // namespace

Result<Machine> ReadMachine(const MachineWish& wish, const ModelFile& model, const ModelSizes& sizes,
                            std::vector<std::string>& assumptions) {
  if (!wish.ram_rate) RestartWithOpenMpSpin();
  Machine machine;
  RETURN_IF_FAULT(ReadDevices(wish, machine, assumptions));
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
  machine.ram_gbs = wish.ram_rate ? *wish.ram_rate : MeasureReading();
  const unsigned n_cores = std::max(1u, std::thread::hardware_concurrency());
  machine.n_cores = n_cores;
  machine.cpu_tflops = kCoreTflops * n_cores;
  assumptions.push_back(std::format("RAM: {} ({}), read at {:.1f} GB/s ({})", BinarySizeText(machine.ram_bytes),
                                    wish.ram.empty() ? "available now" : "--ram", machine.ram_gbs,
                                    wish.ram_rate ? "--ram-rate" : "measured now, a busy machine shows less"));
  assumptions.push_back(
      std::format("CPU: {} core{}, {:.2f} Tflop/s (assumed)", n_cores, n_cores == 1 ? "" : "s", machine.cpu_tflops));
  if (wish.ram_rate) {
    AssumeStepCosts(sizes, machine);
    assumptions.push_back("beside weights (assumed with --ram-rate, from a Sapphire Rapids Xeon): " +
                          StepCostsText(machine));
    for (Node& node : machine.nodes) {
      if (node.here && node.read_gbs == 0) node.read_gbs = *wish.ram_rate;
    }
  } else {
    RETURN_IF_FAULT(CalibrateMachine(model, sizes, wish.n_batch, machine, assumptions));
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
  assumptions.emplace_back("flash attention; layers' experts stay together; rows travel as f32; routing is uniform");
  assumptions.push_back(std::format("kept free on each device: {}", BinarySizeText(kDeviceReserveBytes)));
  return machine;
}

}  // namespace linkcpp
