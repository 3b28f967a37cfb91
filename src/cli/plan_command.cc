// linkcpp plan: will this model run here, with what where, how fast, and how to start it. Reads headers only.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <format>
#include <memory>
#include <optional>
#include <print>
#include <string>
#include <vector>

#include "base/plain_text.h"
#include "cli/ask_layout.h"
#include "cli/beside.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/plan_machine.h"
#include "gguf/model.h"
#include "planner/plan.h"
#include "planner/report.h"

namespace linkcpp {
namespace {

struct PlanArguments {
  std::string model, context = "full", kv = "f16", token_file;
  MachineWish machine;
  std::uint32_t parallel = 1, batch = 512;
  std::optional<std::uint32_t> gpu_layers;
  bool force_nodes = false, split_layers = false, whole_layers = false, estimate = false, json = false;
};

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

Result<void> RunPlan(const PlanArguments& arguments) {
  PlanWish wish{.run = {}, .model_path = arguments.model, .force_nodes = arguments.force_nodes};
  ASSIGN_OR_RETURN(wish.run.context, ParseContext(arguments.context));
  wish.run.n_parallel = arguments.parallel;
  wish.run.n_batch = arguments.batch;
  wish.run.max_gpu_layers = arguments.gpu_layers;
  if (arguments.split_layers) wish.run.split_layers = SplitLayers::kAlways;
  if (arguments.whole_layers) wish.run.split_layers = SplitLayers::kNever;
  const auto kv = KvTypeFromName(arguments.kv);
  if (!kv) return Fail(FaultCode::kRefused, "--kv '{}' is neither f16, q8_0 nor q4_0", arguments.kv);
  wish.run.kv = *kv;
  if (arguments.force_nodes && arguments.machine.nodes.empty() && arguments.machine.swarm_url.empty())
    return Fail(FaultCode::kRefused, "--force-nodes: there is no node: give --nodes or --swarm");
  MachineWish machine_wish = arguments.machine;
  machine_wish.n_batch = arguments.batch;
  machine_wish.token_file = arguments.token_file;
  ASSIGN_OR_RETURN(const ModelFile model, ModelFile::Open(arguments.model));
  ASSIGN_OR_RETURN(const ModelSizes sizes, MeasureModel(model));
  if (model.paths().size() > 1) wish.model_path = model.paths().front();  // llama.cpp wants the first split
  std::vector<std::string> assumptions;
  if (wish.run.context == 0) assumptions.emplace_back("context: the model's own (see --ctx)");
  if (wish.run.context > sizes.context_length && sizes.context_length > 0) {
    assumptions.push_back(std::format("the model was made for a context of {} only", sizes.context_length));
  }
  ASSIGN_OR_RETURN(const Machine machine, ReadMachine(machine_wish, model, sizes, assumptions));
  const InterruptGuard guard;  // a copy of the header goes away with the asker
  if (!arguments.estimate) wish.ask = MakeLayoutAsker(model);
  wish.swarm.plugin = LibraryBeside("libggml-linkcpp.so");
  if (const std::string preload = LibraryBeside("liblinkcpp-preload.so"); std::filesystem::exists(preload)) {
    wish.swarm.preload = preload;
  }
  if (std::ranges::any_of(machine.nodes, &Node::joined)) {
    wish.swarm.coordinator = machine_wish.swarm_url;
    wish.swarm.token_file = arguments.token_file;
    if (IsHere(machine_wish.swarm_url)) wish.swarm.data_listen = "127.0.0.1:0";
  }
  const auto made = MakePlan(sizes, machine, wish);
  wish.ask = nullptr;  // its line on the terminal goes away
  ASSIGN_OR_RETURN(const Plan plan, made);
  if (!InterruptGuard::KeepGoing()) return Fail(FaultCode::kGone, "interrupted");
  assumptions.append_range(plan.assumptions);
  std::print("{}", arguments.json ? PlanJson(sizes, machine, wish, plan, assumptions)
                                  : PlainLines(PlanText(sizes, machine, wish, plan, assumptions)));
  return {};
}

}  // namespace

void AddPlanCommand(CLI::App& app, CommandContext& context) {
  auto* command =
      app.add_subcommand("plan", "say what of a model fits where, how fast it will be, and how to start it");
  auto arguments = std::make_shared<PlanArguments>();
  command->add_option("-m,--model", arguments->model, "the GGUF file, or any of its splits; only headers are read")
      ->required();
  command->add_option(
      "--vram", arguments->machine.vram,
      "memory of the devices, e.g. 24GiB,16GiB; NAME=16GiB of one that is here; none (default: what is free "
      "now)");
  command
      ->add_option("--vram-rate", arguments->machine.vram_rate, "what a device reads, in GB/s (default: 500, assumed)")
      ->check(CLI::Range(0.1, 100'000.0));
  command->add_option("--ram", arguments->machine.ram,
                      "memory for the model, e.g. 32GiB (default: what is available now)");
  command->add_option("--ram-rate", arguments->machine.ram_rate, "what the CPU reads, in GB/s (default: measured)")
      ->check(CLI::Range(0.1, 100'000.0));
  command
      ->add_flag("--measure", arguments->machine.measure_again,
                 "measure the CPU again, though it was within the last hour")
      ->excludes("--ram-rate");
  command->add_option("--disk", arguments->machine.disk,
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
  command->add_option("--nodes", arguments->machine.nodes,
                      "nodes.json: machines that would hold experts (docs/planner.md)");
  command->add_flag(
      "--split-layers", arguments->split_layers,
      "fill devices to the last: of some layers single expert tensors there, the others in RAM "
      "(default: of devices that are here; of planned ones where whole layers leave more than 1/32 free)");
  command->add_flag("--whole-layers", arguments->whole_layers, "never split a layer's experts between a device and RAM")
      ->excludes("--split-layers");
  command
      ->add_option("--swarm", arguments->machine.swarm_url,
                   "a running coordinator: plan with its nodes, as measured there (token: LINKCPP_TOKEN, --token-file)")
      ->excludes("--nodes");
  command->add_option("--token-file", arguments->token_file, "file that holds the coordinator's token");
  command->add_flag("--force-nodes", arguments->force_nodes,
                    "use the nodes even where they make it slower, and before RAM");
  command->add_flag("--estimate", arguments->estimate,
                    "estimate compute buffers instead of asking the installed llama.cpp");
  command->add_flag("--json", arguments->json, "print the plan as JSON");
  command->footer(
      "Example: linkcpp plan -m model.gguf --vram 24GiB --ram 48GiB --ctx 32768 --nodes nodes.json\n"
      "Exit status: 0 feasible or not, the plan says which; 1 the coordinator of --swarm does not answer; 2 the "
      "model or an option can not be used.");
  command->callback([arguments, &context] {
    if (const auto done = RunPlan(*arguments); !done) {
      ReportFault(context, done.error(), arguments->json);
      context.status =
          done.error().code == FaultCode::kGone ? 1 : 2;  // a coordinator that does not answer is no wrong usage
    }
  });
}

}  // namespace linkcpp
