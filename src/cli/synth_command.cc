// linkcpp synth: makes models to work on where real weights can not be had, and skeletons to plan with.
#include <unistd.h>

#include <cstdio>
#include <glaze/glaze.hpp>
#include <memory>
#include <optional>
#include <print>
#include <string>
#include <vector>

#include "base/write_json.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "synth/plan.h"
#include "synth/write.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kDefaultLayers = 4;
constexpr std::uint32_t kDefaultVocabulary = 2048;

struct SynthArguments {
  std::string like, type = "Q4_K_M", output;
  std::optional<std::uint32_t> layers, experts, vocabulary;
  std::uint64_t seed = 1;
  unsigned threads = 2;
  bool skeleton = false, list = false, force = false, json = false;
};

struct SynthReport {
  std::string file, model, architecture, type;
  std::uint32_t layers = 0, experts = 0, experts_used = 0, vocabulary = 0;
  std::uint64_t tensors = 0, parameters = 0, expert_bytes = 0, other_bytes = 0;
  std::uint64_t header_bytes = 0, file_bytes = 0, disk_bytes = 0;
  bool skeleton = false;
  std::uint64_t seed = 0;
  double seconds = 0;
};

struct ListRow {
  std::string name, model, architecture;
  std::uint64_t parameters = 0, tensors = 0, file_bytes = 0, expert_bytes = 0;
  std::uint32_t layers = 0, experts = 0, experts_used = 0;
};

double Gigabytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

bool ShowProgress(std::uint64_t done, std::uint64_t total) {
  if (::isatty(STDERR_FILENO) != 0) {
    constexpr int kWidth = 40;
    const int full = total == 0 ? kWidth : static_cast<int>(done * kWidth / total);
    std::print(stderr, "\r[{}{}] {:5.2f} / {:.2f} GB", std::string(full, '#'), std::string(kWidth - full, '.'),
               Gigabytes(done), Gigabytes(total));
    if (done == total || !InterruptGuard::KeepGoing()) std::println(stderr, "");
    std::fflush(stderr);
  }
  return InterruptGuard::KeepGoing();
}

void RunList(const SynthArguments& arguments, CommandContext& context) {
  std::vector<ListRow> rows;
  for (const Geometry& g : KnownGeometries()) {
    const auto plan = PlanSynth({.like = g.name, .type = arguments.type});
    if (!plan) return ReportUsage(context, plan.error(), arguments.json);
    const PlanTotals totals = plan->Totals();
    rows.push_back({.name = std::string(g.name),
                    .model = std::string(g.title),
                    .architecture = std::string(g.arch),
                    .parameters = totals.n_parameters,
                    .tensors = totals.n_tensors,
                    .file_bytes = plan->data_bytes,
                    .expert_bytes = totals.expert_bytes,
                    .layers = g.n_layers,
                    .experts = g.n_experts,
                    .experts_used = g.n_used});
  }
  if (arguments.json) return std::println("{}", WriteJson<JsonLayout::kIndented>(rows));
  std::println("{:18} {:12} {:>9} {:>7} {:>9} {:>10} {:>10}", "name", "architecture", "billions", "layers", "experts",
               "GB", "experts GB");
  for (const ListRow& row : rows) {
    std::println("{:18} {:12} {:9.2f} {:7} {:>9} {:10.2f} {:10.2f}", row.name, row.architecture,
                 static_cast<double>(row.parameters) / 1e9, row.layers,
                 std::format("{}/{}", row.experts, row.experts_used), Gigabytes(row.file_bytes),
                 Gigabytes(row.expert_bytes));
  }
  std::println("sizes at {}; experts: how many a layer has / how many a token takes", arguments.type);
}

void Run(const SynthArguments& arguments, CommandContext& context) {
  if (arguments.list) return RunList(arguments, context);
  if (arguments.like.empty() || arguments.output.empty()) {
    return ReportUsage(
        context, {FaultCode::kRefused, "synth needs --like MODEL and -o FILE (linkcpp synth --list shows models)"},
        arguments.json);
  }
  PlanOptions options{.like = arguments.like,
                      .type = arguments.type,
                      .layers = arguments.layers,
                      .experts = arguments.experts,
                      .vocabulary = arguments.vocabulary};
  if (!arguments.skeleton) {
    if (!options.layers) options.layers = kDefaultLayers;
    if (!options.vocabulary) options.vocabulary = kDefaultVocabulary;
  }
  const auto plan = PlanSynth(options);
  if (!plan) return ReportUsage(context, plan.error(), arguments.json);
  const InterruptGuard guard;
  const auto outcome = WriteSynth(*plan, arguments.output,
                                  {.skeleton = arguments.skeleton,
                                   .overwrite = arguments.force,
                                   .seed = arguments.seed,
                                   .threads = arguments.threads,
                                   .progress = &ShowProgress});
  if (!outcome) return ReportFault(context, outcome.error(), arguments.json);

  const PlanTotals totals = plan->Totals();
  const Geometry& g = plan->geometry;
  const SynthReport report{.file = arguments.output,
                           .model = std::string(g.title),
                           .architecture = std::string(g.arch),
                           .type = std::string(plan->mix.name),
                           .layers = g.n_layers,
                           .experts = g.n_experts,
                           .experts_used = g.n_used,
                           .vocabulary = g.n_vocab,
                           .tensors = totals.n_tensors,
                           .parameters = totals.n_parameters,
                           .expert_bytes = totals.expert_bytes,
                           .other_bytes = totals.other_bytes,
                           .header_bytes = outcome->header_bytes,
                           .file_bytes = outcome->file_bytes,
                           .disk_bytes = outcome->disk_bytes,
                           .skeleton = arguments.skeleton,
                           .seed = arguments.seed,
                           .seconds = outcome->seconds};
  if (arguments.json) return std::println("{}", WriteJson<JsonLayout::kIndented>(report));
  std::println("{}: {}{}, {} layers, {} experts of which {} are used, {} tokens, {}", report.file,
               report.skeleton ? "skeleton of " : "like ", report.model, report.layers, report.experts,
               report.experts_used, report.vocabulary, report.type);
  std::println("  {} tensors, {} parameters; experts {} bytes, all else {} bytes", report.tensors, report.parameters,
               report.expert_bytes, report.other_bytes);
  if (report.skeleton) {
    std::println("  {:.2f} GB long, {:.1f} MB on disk: its weights are file holes and read as zeros",
                 Gigabytes(report.file_bytes), static_cast<double>(report.disk_bytes) / 1e6);
  } else {
    std::println("  {:.2f} GB in {:.1f} s, {:.0f} MB/s", Gigabytes(report.file_bytes), report.seconds,
                 static_cast<double>(report.file_bytes) / 1e6 / report.seconds);
  }
}

}  // namespace

void AddSynthCommand(CLI::App& app, CommandContext& context) {
  auto* command = app.add_subcommand("synth", "make a model with random weights in the shape of a known one");
  auto arguments = std::make_shared<SynthArguments>();
  command->add_option("--like", arguments->like, "the model whose shape to take, e.g. qwen3.5-122b (see --list)");
  command->add_option("-o,--output", arguments->output, "the GGUF file to write");
  command->add_option("--layers", arguments->layers, "how many layers (default 4; with --skeleton all)");
  command->add_option("--experts", arguments->experts, "how many experts a layer has (default: as many as the model)");
  command->add_option("--vocab", arguments->vocabulary, "how many tokens (default 2048; with --skeleton the model's)");
  command->add_option("--type", arguments->type, "quantisation: Q4_K_M, Q8_0, F16, Q4_0, MXFP4_MOE, ...")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "the same seed gives the same file")->capture_default_str();
  command->add_option("--threads", arguments->threads, "threads that draw weights")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_flag("--skeleton", arguments->skeleton, "the complete header, with file holes instead of weights");
  command->add_flag("--list", arguments->list, "list the known models with their sizes at --type");
  command->add_flag("--force", arguments->force, "overwrite FILE");
  command->add_flag("--json", arguments->json, "print the result as JSON");
  command->footer(
      "Examples:\n"
      "  linkcpp synth --like qwen3.5-122b --layers 4 -o m.gguf\n"
      "  linkcpp synth --like qwen3.5-122b --skeleton -o plan.gguf");
  command->callback([arguments, &context] { Run(*arguments, context); });
}

}  // namespace linkcpp
