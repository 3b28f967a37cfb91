// linkcpp matrix: the same real expert computation on every backend that can be reached here, and on workers of a
// swarm, each against every other and against the oracle. Options and what is printed; cli/matrix_run.h does the work.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <glaze/glaze.hpp>
#include <print>

#include "base/write_json.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/matrix_run.h"
#include "cli/usage.h"

namespace linkcpp {
namespace {

struct Options : MatrixOptions {
  bool list = false;
};

Result<void> WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Fail(FaultCode::kLocal, "{}: cannot be written", path);
  return {};
}

struct JsonContender {
  std::string id, name;
  std::string missing;  // why it will be skipped
};

void List(const Options& options, const std::vector<Contender>& contenders) {
  if (options.json) {
    std::vector<JsonContender> list;
    for (const Contender& contender : contenders) list.push_back({contender.id, contender.name, contender.missing});
    std::println("{}", WriteJson(list));
    return;
  }
  for (const Contender& contender : contenders) {
    std::println("{:<12} {:<28.28} {}", contender.id, contender.name,
                 contender.missing.empty() ? "will be tried" : "skipped: " + contender.missing);
  }
}

// "" when the backend ran and computed every group.
std::string WhatIsMissing(const MatrixReport& report, const std::string& id) {
  const auto found = std::ranges::find(report.backends, id, &BackendReport::id);
  if (found == report.backends.end()) return "is not among those that were tried";
  if (found->state != "ran") return "did not run: " + found->reason;
  for (const GroupReport& group : report.groups) {
    const auto cell = std::ranges::find(group.oracle, id, &OracleCell::backend);
    if (!cell->fault.empty()) return std::format("refused {}: {}", group.name, cell->fault);
  }
  return "";
}

void Print(const Options& options, const MatrixReport& report, const std::vector<std::string>& required,
           CommandContext& context) {
  if (options.json) {
    std::println("{}", WriteJson(report));
  } else {
    std::print("{}", MatrixTable(report));
  }
  if (!options.svg.empty()) {
    if (const auto written = WriteText(options.svg, MatrixSvg(report)); !written.has_value()) {
      return ReportFault(context, written.error());
    }
  }
  if (!report.inside) context.status = 1;
  for (const std::string& name : required) {
    const std::string missing = WhatIsMissing(report, name);
    if (missing.empty()) continue;
    const auto found = std::ranges::find(report.backends, name, &BackendReport::id);
    const bool is_worker = found == report.backends.end() || found->name.starts_with("worker ");
    std::println(stderr, "linkcpp: {} {} is required and {}", is_worker ? "worker" : "backend", name, missing);
    context.status = 1;
  }
}

void Act(const Options& options, CommandContext& context) {
  const InterruptGuard guard;
  const auto report_fault = [&](const Fault& fault, bool usage = false) {
    // Whatever failed first, a child or a file: it was because of that.
    if (!InterruptGuard::KeepGoing()) return ReportFault(context, {FaultCode::kGone, "interrupted"}, options.json);
    usage ? ReportUsage(context, fault, options.json) : ReportFault(context, fault, options.json);
  };
  if (const auto fine = CheckMatrixOptions(options); !fine) return report_fault(fine.error(), true);
  const auto backends = MatrixBackends(options);
  if (!backends) return report_fault(backends.error(), backends.error().code == FaultCode::kRefused);
  const auto workers = MatrixWorkers(options, *backends);
  if (!workers) return report_fault(workers.error());
  if (options.list) {
    std::vector<Contender> all = *backends;
    for (const WorkerContender& worker : *workers) all.push_back(worker.contender);
    return List(options, all);
  }
  const auto log = MakeStderrLog("matrix", LogLevel::kError);  // what happens to a link is said in its worker's row
  const auto report = RunMatrix(options, *backends, *workers, *log);
  if (!report.has_value()) return report_fault(report.error());
  if (std::ranges::none_of(report->backends, [](const BackendReport& row) { return row.state == "ran"; })) {
    std::string why;
    for (const BackendReport& row : report->backends) why += std::format("\n  {}: {}", row.name, row.reason);
    return report_fault({FaultCode::kLocal, "no backend ran, so nothing was compared" + why});
  }
  std::vector<std::string> required = options.require;
  if (!options.nodes.empty()) {  // who is asked for by name is wanted
    for (const WorkerContender& worker : *workers) required.push_back(worker.contender.id);
  }
  Print(options, *report, required, context);
}

}  // namespace

void AddMatrixCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "matrix", "the same experts on every backend here and on a swarm's workers, each against every other");
  command->footer(
      "Without -m: assets/austen-moe-q4km.gguf with rows of real decoding, and layers of the 122B's shape, made up.\n"
      "With --swarm: -m is the file that the swarm serves; every worker is a row, of the experts that it holds.\n"
      "share of bound: the largest |Δ| of an element as a share of the bound that is derived for it, 1 at most; of\n"
      "likely: the same of the narrow bound around a replay with rows in the kernel's format. rows alone: what "
      "turning\n"
      "rows into that format costs the worst pair (docs/matrix.md).\n"
      "Backends and workers that are not to be had are listed with the reason.\n"
      "Exit status 0: everything that ran is inside its bounds; 1: something is not, broke, or is required "
      "(--require,\n"
      "--node) and did not run; 2: an option or the model can not be used.\n"
      "Examples: linkcpp matrix --svg matrix.svg\n"
      "          linkcpp matrix -m model.gguf --layer 3 --experts 0:4 --rows 16 --backends avx2,vulkan0\n"
      "          LINKCPP_TOKEN=… linkcpp matrix -m model.gguf --swarm http://127.0.0.1:8090 --backends avx512,numpy");
  auto* model = command->add_option("-m,--model", options->models, "model files (GGUF)");
  command
      ->add_option("--layer", options->layers,
                   "which layers (default: all that have experts; with --swarm as few as show every kind that a worker "
                   "holds)")
      ->delimiter(',');
  command->add_option("--experts", options->experts,
                      "every row through these, e.g. 0:4,9 (default: those that the model's router chooses)");
  command->add_option("--rows", options->n_rows, "rows a layer (default: 8; without -m 80 and 4)")
      ->check(CLI::Range(1, 65536));
  command
      ->add_option("--rows-from", options->rows_from,
                   "gaussian (default), embeddings, decode, or a file of little-endian float32 rows")
      ->needs(model);
  command->add_option("--text", options->text, "the text to decode for --rows-from decode");
  command->add_option("--seed", options->seed, "seed of rows, weights and orders")->capture_default_str();
  auto* swarm =
      command->add_option("--swarm", options->swarm, "also the workers of this running swarm: the coordinator's URL");
  swarm->needs(model);
  command->add_option("--node", options->nodes, "only this worker, by id, its beginning, or name; may be given again")
      ->needs(swarm);
  command->add_option("--token-file", options->token_file, "a file with the swarm's token (default: LINKCPP_TOKEN)")
      ->needs(swarm);
  command
      ->add_option("--data-listen", options->data_listen,
                   "where the workers dial this machine (default: loopback, or all interfaces)")
      ->needs(swarm)
      ->check(IsHostPort(true));
  command->add_option("--backends", options->backends, "of this machine only these, by id (--list shows them)")
      ->delimiter(',');
  command->add_option("--require", options->require, "fail if one of these did not run")->delimiter(',');
  command->add_option("--add", options->added, "one backend more: NAME=PATH of a ggml backend library");
  command->add_option("--threads", options->n_threads, "threads of CPU rows and of the oracle; 0: one per core")
      ->check(CLI::Range(0, 512))
      ->capture_default_str();
  command
      ->add_option("--timeout", options->timeout_s,
                   "seconds that one backend may take; a worker at most 120 s an answer")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command->add_option("--svg", options->svg, "also draw it into this file");
  command->add_flag("--json", options->json, "print a JSON object");
  command->add_flag("--list", options->list, "only list the backends, and the workers of --swarm");
  command->callback([options, &context] { Act(*options, context); });
}

}  // namespace linkcpp
