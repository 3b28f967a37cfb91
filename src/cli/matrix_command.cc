// linkcpp matrix: the same real expert computation on every backend that can be reached here, each against every other
// and against the oracle.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <glaze/glaze.hpp>
#include <print>
#include <thread>

#include "cli/beside.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/matrix_cases.h"
#include "matrix/compare.h"
#include "matrix/contenders.h"
#include "matrix/report.h"
#include "matrix/row_status.h"
#include "synth/plan.h"
#include "synth/write.h"

namespace linkcpp {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> models;
  std::vector<std::uint32_t> layers;
  std::string experts;
  std::uint32_t n_rows = 0;
  std::string rows_from, text;
  std::uint64_t seed = 1;
  std::vector<std::string> backends, require, added;
  int n_threads = 0;
  int timeout_s = 240;
  std::string svg;
  bool json = false, list = false;
};

constexpr std::uint32_t kDecodedRows = 80;   // of austen-moe, 4 experts each in 4 layers: 1,280 pairs
constexpr std::uint32_t kSyntheticRows = 4;  // of the 122B's shape, 8 experts each
constexpr std::uint32_t kDefaultRows = 8;

// ---- where things are

std::string FromEnvironment(const char* name, std::string otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

// A file of the checkout: from the working folder, or from where this program was built.
std::string Asset(std::string_view name) {
  const fs::path here = fs::path("assets") / name;
  if (fs::exists(here)) return here.string();
  return (fs::path(ProgramBeside("../../../assets")) / name).lexically_normal().string();
}

ContenderOptions WhereRowsAre(const Options& options) {
  return {.row_program = ProgramBeside("linkcpp-matrix-row"),
          .arm64_program = FromEnvironment(
              "LINKCPP_ARM64_ROW",
              fs::path(ProgramBeside("../../arm64/bin/linkcpp-matrix-row")).lexically_normal().string()),
          .arm64_root = FromEnvironment("LINKCPP_ARM64_ROOT", "/opt/arm64"),
          .n_threads = options.n_threads,
          .timeout_s = options.timeout_s,
          .added = options.added};
}

// ---- what is computed

Result<void> AddDefaults(MatrixInput& input, const Options& options, CaseOptions cases) {
  const std::string austen = Asset("austen-moe-q4km.gguf");
  ASSIGN_OR_RETURN(const ModelFile small, ModelFile::Open(austen));
  cases.rows_from = "decode";
  cases.n_rows = options.n_rows == 0 ? kDecodedRows : options.n_rows;
  RETURN_IF_FAULT(AddModel(input, "austen-moe-q4km", small, cases, InterruptGuard::KeepGoing));

  // Four layers are the fewest that llama.cpp takes; the first has Q4_K everywhere, the last Q6_K for down.
  ASSIGN_OR_RETURN(
      const SynthPlan plan,
      PlanSynth({.like = "qwen3.5-122b", .type = "Q4_K_M", .layers = 4, .experts = 8, .vocabulary = 2048}));
  const std::string path = cases.scratch + "/122b.gguf";
  ASSIGN_OR_RETURN(const WriteOutcome written,
                   WriteSynth(plan, path, {.seed = options.seed, .progress = [](auto, auto) {
                                             return InterruptGuard::KeepGoing();
                                           }}));
  {
    ASSIGN_OR_RETURN(const ModelFile large, ModelFile::Open(path));
    cases.rows_from = "gaussian";
    cases.n_rows = options.n_rows == 0 ? kSyntheticRows : options.n_rows;
    for (const std::uint32_t layer : {0u, 3u}) {
      cases.layers = {layer};
      RETURN_IF_FAULT(AddModel(input, "122B's shape (3072 x 1024, made up)", large, cases, InterruptGuard::KeepGoing));
    }
  }
  fs::remove(path);
  return written.file_bytes > 0 ? Result<void>{} : Fail(FaultCode::kLocal, "{}: empty", path);
}

Result<MatrixInput> MakeInput(const Options& options, const std::string& scratch) {
  MatrixInput input;
  CaseOptions cases{.layers = options.layers,
                    .experts = options.experts,
                    .n_rows = options.n_rows == 0 ? kDefaultRows : options.n_rows,
                    .rows_from = options.rows_from.empty() ? "gaussian" : options.rows_from,
                    .text = options.text.empty() ? Asset("austen-moe-val.txt") : options.text,
                    .capture_program = ProgramBeside("capture_rows"),
                    .scratch = scratch,
                    .seed = options.seed};
  if (options.models.empty()) {
    RETURN_IF_FAULT(AddDefaults(input, options, cases));
    return input;
  }
  for (const std::string& path : options.models) {
    ASSIGN_OR_RETURN(const ModelFile model, ModelFile::Open(path));
    RETURN_IF_FAULT(AddModel(input, model.name(), model, cases, InterruptGuard::KeepGoing));
  }
  return input;
}

// ---- running it

struct Row {
  Contender contender;
  BackendReport report;
  std::optional<MatrixAnswer> answer;
};

void RunRow(Row& row, const MatrixJob& job, const std::string& scratch) {
  BackendReport& report = row.report;
  report.state = "skipped";
  report.reason = row.contender.missing;
  for (ChildCommand command : row.contender.attempts) {
    const std::string answer = scratch + "/answer";
    command.argv.insert(command.argv.end(), {scratch + "/job", answer});
    const auto done = RunChild(command, InterruptGuard::KeepGoing);
    if (!done.has_value()) {
      report.state = "failed";
      report.reason = done.error().text;
      return;
    }
    report.seconds = done->seconds;
    if (done->status == kRowHasNoDevice) {
      report.reason = done->LastWords();
      continue;
    }
    report.state = "failed";
    if (done->status != 0) {
      report.reason = done->LastWords();
      return;
    }
    auto read = ReadAnswer(job, answer);
    fs::remove(answer);
    if (!read.has_value()) {
      report.reason = read.error().text;
      return;
    }
    report.kernel_class = read->kernel_class;
    report.device = read->device;
    report.features = read->features;
    report.reason = WrongFeatures(row.contender, read->features);
    if (!report.reason.empty()) return;
    report.state = "ran";
    row.answer = std::move(*read);
    return;
  }
}

std::string FaultIn(const MatrixGroup& group, const MatrixAnswer& answer) {
  for (const JudgedTask& judged : group.tasks) {
    if (!answer.tasks[judged.task].fault.empty()) return answer.tasks[judged.task].fault;
  }
  return "";
}

Result<GroupReport> JudgeGroup(Judge& judge, const MatrixInput& input, std::size_t index,
                               const std::vector<Row>& rows) {
  const MatrixGroup& group = input.groups[index];
  GroupReport report{
      .name = group.name, .types = group.types, .rows = group.rows, .pairs = 0, .oracle = {}, .between = {}};
  for (const JudgedTask& judged : group.tasks) report.pairs += input.job.tasks[judged.task].pairs.size();
  std::vector<const Row*> whole;
  std::vector<std::string> formats;
  for (const Row& row : rows) {
    if (!row.answer.has_value()) continue;
    OracleCell& cell = report.oracle.emplace_back();
    cell.backend = row.contender.id;
    cell.fault = FaultIn(group, *row.answer);
    if (!cell.fault.empty()) continue;
    ASSIGN_OR_RETURN(cell.by_row, judge.AgainstOracle(index, row.contender.kind, *row.answer, kByRow));
    ASSIGN_OR_RETURN(cell.shuffled, judge.AgainstOracle(index, row.contender.kind, *row.answer, kShuffled));
    ASSIGN_OR_RETURN(cell.one_batch, judge.AgainstOracle(index, row.contender.kind, *row.answer, kOneBatch));
    cell.inside = cell.by_row.inside && cell.shuffled.inside && cell.one_batch.inside;
    cell.itself = judge.WithItself(index, *row.answer, kShuffled);
    whole.push_back(&row);
    formats.push_back(cell.by_row.row_format);
  }
  for (std::size_t a = 0; a < whole.size(); ++a) {
    for (std::size_t b = a + 1; b < whole.size(); ++b) {
      PairCell& cell = report.between.emplace_back();
      cell.a = whole[a]->contender.id;
      cell.b = whole[b]->contender.id;
      cell.same_rows = formats[a] == formats[b];
      cell.same_class = whole[a]->answer->kernel_class == whole[b]->answer->kernel_class;
      ASSIGN_OR_RETURN(cell.figures, judge.Between(index, *whole[a]->answer, *whole[b]->answer));
    }
  }
  return report;
}

Result<std::vector<Contender>> Chosen(const Options& options) {
  for (const std::string& added : options.added) {
    const std::size_t equals = added.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == added.size()) {
      return Fail(FaultCode::kRefused, "--add {}: give NAME=PATH, e.g. zen4=/usr/lib/…/libggml-cpu-zen4.so", added);
    }
  }
  ASSIGN_OR_RETURN(auto all, FindContenders(WhereRowsAre(options), InterruptGuard::KeepGoing));
  std::string known;
  for (const Contender& contender : all) known += (known.empty() ? "" : ", ") + contender.id;
  for (const auto* names : {&options.backends, &options.require}) {
    for (const std::string& name : *names) {
      if (std::ranges::find(all, name, &Contender::id) == all.end()) {
        return Fail(FaultCode::kRefused, "no backend called \"{}\"; there are: {}", name, known);
      }
    }
  }
  if (options.backends.empty()) return all;
  std::vector<Contender> chosen;
  for (Contender& contender : all) {
    if (std::ranges::find(options.backends, contender.id) != options.backends.end())
      chosen.push_back(std::move(contender));
  }
  return chosen;
}

template <class... Args>
void Say(const Options& options, std::format_string<Args...> format, Args&&... args) {
  if (options.json && ::isatty(STDERR_FILENO) == 0) return;
  std::println(stderr, "{}", std::format(format, std::forward<Args>(args)...));
}

Result<MatrixReport> Run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const InterruptGuard guard;
  ASSIGN_OR_RETURN(std::vector<Contender> contenders, Chosen(options));
  ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  ASSIGN_OR_RETURN(const MatrixInput input, MakeInput(options, scratch.path()));
  RETURN_IF_FAULT(WriteJob(input.job, scratch.path() + "/job"));

  MatrixReport report{.machine = {}, .seconds = 0, .inside = true, .backends = {}, .groups = {}};
  std::vector<Row> rows;
  for (Contender& contender : contenders) {
    Row& row = rows.emplace_back(Row{.contender = std::move(contender), .report = {}, .answer = {}});
    row.report.id = row.contender.id;
    row.report.name = row.contender.name;
    RunRow(row, input.job, scratch.path());
    if (!InterruptGuard::KeepGoing()) return Fail(FaultCode::kLocal, "stopped");
    Say(options, "[{}/{}] {}: {}", rows.size(), contenders.size(), row.report.name,
        row.answer ? std::format("{:.1f} s", row.report.seconds) : row.report.state + ": " + row.report.reason);
    if (row.report.state == "failed") report.inside = false;
    report.backends.push_back(row.report);
  }
  const int n_threads =
      options.n_threads > 0 ? options.n_threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Judge judge(input.job, input.groups, n_threads);
  for (std::size_t g = 0; g < input.groups.size(); ++g) {
    ASSIGN_OR_RETURN(report.groups.emplace_back(), JudgeGroup(judge, input, g, rows));
    for (const OracleCell& cell : report.groups.back().oracle) {
      if (cell.fault.empty() && !cell.inside) report.inside = false;
    }
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

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

Result<void> List(const Options& options) {
  ASSIGN_OR_RETURN(const auto contenders, Chosen(options));
  if (options.json) {
    std::vector<JsonContender> list;
    for (const Contender& contender : contenders) list.push_back({contender.id, contender.name, contender.missing});
    std::println("{}", glz::write_json(list).value_or("[]"));
    return {};
  }
  for (const Contender& contender : contenders) {
    std::println("{:<12} {:<28} {}", contender.id, contender.name,
                 contender.missing.empty() ? "will be tried" : "skipped: " + contender.missing);
  }
  return {};
}

// "" when the backend ran and computed every group.
std::string WhatIsMissing(const MatrixReport& report, const std::string& id) {
  const auto found = std::ranges::find(report.backends, id, &BackendReport::id);
  if (found == report.backends.end()) return "was not among --backends";
  if (found->state != "ran") return "did not run: " + found->reason;
  for (const GroupReport& group : report.groups) {
    const auto cell = std::ranges::find(group.oracle, id, &OracleCell::backend);
    if (!cell->fault.empty()) return std::format("refused {}: {}", group.name, cell->fault);
  }
  return "";
}

void Act(const Options& options, CommandContext& context) {
  if (options.list) {
    if (const auto listed = List(options); !listed.has_value()) ReportFault(context, listed.error(), options.json);
    return;
  }
  const auto report = Run(options);
  if (!report.has_value()) return ReportFault(context, report.error(), options.json);
  if (std::ranges::none_of(report->backends, [](const BackendReport& row) { return row.state == "ran"; })) {
    const std::string why = report->backends.empty() ? "" : ": " + report->backends.front().reason;
    return ReportFault(context, {FaultCode::kLocal, "no backend ran, so nothing was compared" + why}, options.json);
  }
  if (options.json) {
    std::println("{}", glz::write_json(*report).value_or("{}"));
  } else {
    std::print("{}", MatrixTable(*report));
  }
  if (!options.svg.empty()) {
    if (const auto written = WriteText(options.svg, MatrixSvg(*report)); !written.has_value()) {
      return ReportFault(context, written.error());
    }
  }
  if (!report->inside) context.status = 1;
  for (const std::string& name : options.require) {
    const std::string missing = WhatIsMissing(*report, name);
    if (missing.empty()) continue;
    std::println(stderr, "linkcpp: backend {} is required and {}", name, missing);
    context.status = 1;
  }
}

}  // namespace

void AddMatrixCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("matrix", "the same experts on every backend here, each against every other and the oracle");
  command->footer(
      "Without -m: assets/austen-moe-q4km.gguf with rows of real decoding, and layers of the 122B's shape, made up.\n"
      "/bound, /likely: largest |Δ| as a share of its derived bound; rows alone: what turning rows into the kernel's\n"
      "format costs the worst pair (docs/matrix.md). Backends that are not to be had are listed with the reason.\n"
      "Exit status 0: every backend that ran is inside its bounds; 1: one is not, broke, or is required and did not "
      "run.\n"
      "Examples: linkcpp matrix --svg matrix.svg\n"
      "          linkcpp matrix -m model.gguf --layer 3 --experts 0:4 --rows 16 --backends avx2,vulkan0");
  command->add_option("-m,--model", options->models, "model files (GGUF)");
  command->add_option("--layer", options->layers, "which layers (default: all that have experts)")->delimiter(',');
  command->add_option("--experts", options->experts,
                      "every row through these, e.g. 0:4,9 (default: those that the model's router chooses)");
  command->add_option("--rows", options->n_rows, "rows a layer (default: 8; without -m 80 and 4)")
      ->check(CLI::Range(1, 65536));
  auto* rows_from =
      command->add_option("--rows-from", options->rows_from,
                          "gaussian (default), embeddings, decode, or a file of little-endian float32 rows");
  command->add_option("--text", options->text, "the text to decode for --rows-from decode");
  command->add_option("--seed", options->seed, "seed of rows, weights and orders")->capture_default_str();
  command->add_option("--backends", options->backends, "only these, by id (--list shows them)")->delimiter(',');
  command->add_option("--require", options->require, "fail if one of these did not run")->delimiter(',');
  command->add_option("--add", options->added, "one backend more: NAME=PATH of a ggml backend library");
  command->add_option("--threads", options->n_threads, "threads of CPU rows and of the oracle; 0: one per core")
      ->check(CLI::Range(0, 512))
      ->capture_default_str();
  command->add_option("--timeout", options->timeout_s, "seconds that one backend may take")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command->add_option("--svg", options->svg, "also draw it into this file");
  command->add_flag("--json", options->json, "print a JSON object");
  command->add_flag("--list", options->list, "only list the backends");
  command->callback([options, &context, rows_from] {
    if (rows_from->count() > 0 && options->models.empty()) {
      throw CLI::ValidationError("--rows-from", "needs -m (without it rows are given)");
    }
    Act(*options, context);
  });
}

}  // namespace linkcpp
