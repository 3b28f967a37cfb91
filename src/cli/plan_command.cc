// linkcpp plan: will this model run here, with what where, how fast, and how to start it. Reads headers only.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <format>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <print>
#include <string>
#include <thread>
#include <vector>

#include "base/byte_size.h"
#include "cli/commands.h"
#include "gguf/model.h"
#include "kernel/device.h"
#include "planner/plan.h"
#include "planner/report.h"
#include "worker/byte_size.h"

namespace linkcpp {
namespace {

constexpr double kVramGbs = 500, kVramTflops = 30, kLinkGbs = 25;  // a mid-range card in a PCIe 4.0 slot
constexpr double kCoreTflops = 0.04;                               // one core with AVX2 on quantised matrices
constexpr std::uint64_t kLeastSize = 1ull << 20;                   // less is a forgotten unit

struct PlanArguments {
  std::string model, ram, disk, context = "full", kv = "f16", nodes;
  std::vector<std::string> vram;
  std::optional<double> vram_rate, ram_rate;
  std::uint32_t parallel = 1, batch = 512;
  std::optional<std::uint32_t> gpu_layers;
  bool force_nodes = false, json = false;
};

double Gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(1ull << 30);
}

Result<std::uint64_t> ParseMemory(std::string_view option, const std::string& text) {
  const auto bytes = ParseByteSize(text);
  if (!bytes) return Fail(FaultCode::kRefused, "{} {}", option, bytes.error().text);
  if (*bytes < kLeastSize) {
    return Fail(FaultCode::kRefused, "{} '{}' is {} bytes: write {}G for as many GiB", option, text, *bytes, text);
  }
  return *bytes;
}

Result<std::uint32_t> ParseContext(const std::string& text) {
  if (text == "full") return 0;
  std::uint32_t number = 0;
  const char* const end_of_text = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), end_of_text, number);
  const bool thousands = end + 1 == end_of_text && (*end == 'k' || *end == 'K');
  if (error != std::errc() || (end != end_of_text && !thousands) || number == 0 ||
      number > (thousands ? 1u << 17 : 1u << 27)) {
    return Fail(FaultCode::kRefused, "--ctx '{}' is not a number of tokens: write 32768, 32k or full", text);
  }
  return thousands ? number * 1024 : number;
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

// Reads 128 MiB with every core, for half a second and at least three times, and takes the best: GB/s.
double MeasureReading() {
  constexpr std::size_t kWords = (128ull << 20) / sizeof(std::uint64_t);
  const std::vector<std::uint64_t> words(kWords, 1);
  const std::size_t n_threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 64);
  double best = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
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

Result<void> ReadDevices(const PlanArguments& arguments, Machine& machine, std::vector<std::string>& assumptions) {
  const double rate = arguments.vram_rate.value_or(kVramGbs);
  const char* const rate_from = arguments.vram_rate ? "--vram-rate" : "assumed, see --vram-rate";
  if (arguments.vram.size() == 1 && arguments.vram[0] == "none") {
    assumptions.emplace_back("no device: the CPU computes everything (--vram none)");
    return {};
  }
  for (const std::string& text : arguments.vram) {
    ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseMemory("--vram", text));
    machine.devices.push_back({.name = std::format("device {}", machine.devices.size()),
                               .memory_bytes = bytes,
                               .read_gbs = rate,
                               .tflops = kVramTflops});
  }
  if (arguments.vram.empty()) {
    for (const DeviceInfo& info : Device::List()) {
      if (!info.is_gpu || info.free_bytes == 0) continue;
      machine.devices.push_back(
          {.name = info.name, .memory_bytes = info.free_bytes, .read_gbs = rate, .tflops = kVramTflops});
    }
    if (machine.devices.empty()) {
      assumptions.emplace_back("no device: ggml finds no GPU here (see --vram)");
      return {};
    }
  }
  for (const FastDevice& device : machine.devices) {
    assumptions.push_back(std::format("{}: {:.2f} GiB ({}), read at {:.0f} GB/s ({}), {:.0f} Tflop/s (assumed)",
                                      device.name, Gib(device.memory_bytes),
                                      arguments.vram.empty() ? "free now" : "--vram", rate, rate_from, kVramTflops));
  }
  machine.link_gbs = kLinkGbs;
  assumptions.push_back(std::format("from RAM to a device: {:.0f} GB/s (assumed)", kLinkGbs));
  return {};
}

Result<Machine> ReadMachine(const PlanArguments& arguments, std::vector<std::string>& assumptions) {
  Machine machine;
  RETURN_IF_FAULT(ReadDevices(arguments, machine, assumptions));
  machine.ram_bytes = AvailableMemory();
  if (!arguments.ram.empty()) {
    ASSIGN_OR_RETURN(machine.ram_bytes, ParseMemory("--ram", arguments.ram));
  }
  ASSIGN_OR_RETURN(machine.disk_gbs, ParseDisk(arguments.disk));
  if (!arguments.nodes.empty()) {
    std::ifstream file(arguments.nodes, std::ios::binary);
    if (!file) return Fail(FaultCode::kLocal, "{}: cannot be read", arguments.nodes);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ASSIGN_OR_RETURN(machine.nodes, ParseNodes(text, arguments.nodes));
  }
  machine.ram_gbs = arguments.ram_rate ? *arguments.ram_rate : MeasureReading();
  const unsigned n_cores = std::max(1u, std::thread::hardware_concurrency());
  machine.cpu_tflops = kCoreTflops * n_cores;
  assumptions.push_back(std::format("RAM: {:.2f} GiB ({}), read at {:.1f} GB/s ({})", Gib(machine.ram_bytes),
                                    arguments.ram.empty() ? "available now" : "--ram", machine.ram_gbs,
                                    arguments.ram_rate ? "--ram-rate" : "measured now, a busy machine shows less"));
  assumptions.push_back(
      std::format("CPU: {} core{}, {:.2f} Tflop/s (assumed)", n_cores, n_cores == 1 ? "" : "s", machine.cpu_tflops));
  machine.amx = HasAmx();
  if (machine.amx)
    assumptions.emplace_back(
        "this processor has AMX: llama.cpp packs the CPU's matrices for it, which makes some larger");
  assumptions.push_back(machine.disk_gbs > 0 ? std::format("disk: {} GB/s (--disk)", machine.disk_gbs)
                                             : std::string("disk: experts may not stay on it (see --disk)"));
  for (const Node& node : machine.nodes) {
    assumptions.push_back(std::format("{}: {:.2f} GiB, {} GB/s, {} ms, {}/{} Mbit/s, {} Tflop/s ({})", node.name,
                                      Gib(node.memory_bytes), node.read_gbs, node.rtt_ms, node.up_mbits,
                                      node.down_mbits, node.tflops, arguments.nodes));
  }
  assumptions.emplace_back("flash attention; layers' experts stay together; rows travel as f32; routing is uniform");
  assumptions.push_back(std::format("kept free on each device: {:.2f} GiB", Gib(kDeviceReserveBytes)));
  return machine;
}

Result<void> RunPlan(const PlanArguments& arguments) {
  PlanWish wish{.run = {}, .model_path = arguments.model, .force_nodes = arguments.force_nodes};
  ASSIGN_OR_RETURN(wish.run.context, ParseContext(arguments.context));
  wish.run.n_parallel = arguments.parallel;
  wish.run.n_batch = arguments.batch;
  wish.run.max_gpu_layers = arguments.gpu_layers;
  const auto kv = KvTypeFromName(arguments.kv);
  if (!kv) return Fail(FaultCode::kRefused, "--kv '{}' is neither f16, q8_0 nor q4_0", arguments.kv);
  wish.run.kv = *kv;
  ASSIGN_OR_RETURN(const ModelFile model, ModelFile::Open(arguments.model));
  ASSIGN_OR_RETURN(const ModelSizes sizes, MeasureModel(model));
  std::vector<std::string> assumptions;
  if (wish.run.context == 0) assumptions.emplace_back("context: the model's own (see --ctx)");
  if (wish.run.context > sizes.context_length && sizes.context_length > 0) {
    assumptions.push_back(std::format("the model was made for a context of {} only", sizes.context_length));
  }
  ASSIGN_OR_RETURN(const Machine machine, ReadMachine(arguments, assumptions));
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(sizes, machine, wish));
  std::print("{}", arguments.json ? PlanJson(sizes, machine, wish, plan, assumptions)
                                  : PlanText(sizes, machine, wish, plan, assumptions));
  return {};
}

}  // namespace

void AddPlanCommand(CLI::App& app, CommandContext& context) {
  auto* command =
      app.add_subcommand("plan", "say what of a model fits where, how fast it will be, and how to start it");
  auto arguments = std::make_shared<PlanArguments>();
  command->add_option("-m,--model", arguments->model, "the GGUF file, or any of its splits; only headers are read")
      ->required();
  command
      ->add_option("--vram", arguments->vram,
                   "memory of the devices, e.g. 24GiB,16GiB; none (default: what is free now)")
      ->delimiter(',');
  command->add_option("--vram-rate", arguments->vram_rate, "what a device reads, in GB/s (default: 500, assumed)")
      ->check(CLI::Range(0.1, 100'000.0));
  command->add_option("--ram", arguments->ram, "memory for the model, e.g. 32GiB (default: what is available now)");
  command->add_option("--ram-rate", arguments->ram_rate, "what the CPU reads, in GB/s (default: measured)")
      ->check(CLI::Range(0.1, 100'000.0));
  command->add_option("--disk", arguments->disk,
                      "leave experts in the file: nvme (3 GB/s), sata (0.5) or GB/s (default: no)");
  command->add_option("--ctx", arguments->context, "tokens of context of all sequences together: 32768, 32k, full")
      ->capture_default_str();
  command->add_option("--parallel", arguments->parallel, "sequences at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command->add_option("--batch", arguments->batch, "tokens of a prompt computed at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 16384));
  command->add_option("--kv", arguments->kv, "type of the KV cache: f16, q8_0, q4_0")->capture_default_str();
  command->add_option("--gpu-layers", arguments->gpu_layers, "at most so many layers on devices");
  command->add_option("--nodes", arguments->nodes, "nodes.json: machines that would hold experts (docs/planner.md)");
  command->add_flag("--force-nodes", arguments->force_nodes, "use the nodes even where they make it slower");
  command->add_flag("--json", arguments->json, "print the plan as JSON");
  command->footer(
      "Example: linkcpp plan -m model.gguf --vram 24GiB --ram 48GiB --ctx 32768 --nodes nodes.json\n"
      "Exit status: 0 feasible or not, the plan says which; 2 the model or an option can not be used.");
  command->callback([arguments, &context] {
    if (const auto done = RunPlan(*arguments); !done) {
      ReportFault(context, done.error(), arguments->json);
      context.status = 2;
    }
  });
}

}  // namespace linkcpp
