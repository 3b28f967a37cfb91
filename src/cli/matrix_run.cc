#include "cli/matrix_run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <print>
#include <thread>

#include "base/plain_text.h"
#include "cli/beside.h"
#include "cli/interrupt.h"
#include "cli/matrix_cases.h"
#include "cli/matrix_swarm.h"
#include "cli/swarm_view.h"
#include "cli/user_files.h"
#include "gguf/shard.h"
#include "matrix/judge_group.h"
#include "matrix/row_status.h"
#include "reference/model_oracle.h"
#include "synth/plan.h"
#include "synth/write.h"

namespace linkcpp {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kDecodedRows = 80;   // of austen-moe, 4 experts each in 4 layers: 1,280 pairs
constexpr std::uint32_t kSyntheticRows = 4;  // of the 122B's shape, 8 experts each
constexpr std::uint32_t kDefaultRows = 8;
constexpr int kMostWorkerDeadlineS = 120;

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

ContenderOptions WhereRowsAre(const MatrixOptions& options) {
  return {.row_program = ProgramBeside("linkcpp-matrix-row"),
          .arm64_program = FromEnvironment(
              "LINKCPP_ARM64_ROW",
              fs::path(ProgramBeside("../../arm64/bin/linkcpp-matrix-row")).lexically_normal().string()),
          .arm64_root = FromEnvironment("LINKCPP_ARM64_ROOT", "/opt/arm64"),
          .n_threads = options.n_threads,
          .timeout_s = options.timeout_s,
          .added = options.added};
}

CaseOptions CasesFor(const MatrixOptions& options, const std::string& scratch) {
  return {.layers = options.layers,
          .experts = options.experts,
          .n_rows = options.n_rows == 0 ? kDefaultRows : options.n_rows,
          .rows_from = options.rows_from.empty() ? "gaussian" : options.rows_from,
          .text = options.text.empty() ? Asset("austen-moe-val.txt") : options.text,
          .capture_program = ProgramBeside("capture_rows"),
          .scratch = scratch,
          .seed = options.seed,
          .holders = {}};
}

// ---- what is computed

Result<void> AddDefaults(MatrixInput& input, const MatrixOptions& options, CaseOptions cases) {
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

Result<MatrixInput> MakeInput(const MatrixOptions& options, const std::string& scratch,
                              const std::vector<WorkerContender>& workers) {
  MatrixInput input;
  CaseOptions cases = CasesFor(options, scratch);
  for (const WorkerContender& worker : workers) cases.holders.push_back(worker.holds);
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

// ---- who computes it

std::string IdsOf(const std::vector<Contender>& contenders) {
  std::string ids;
  for (const Contender& contender : contenders) ids += (ids.empty() ? "" : ", ") + contender.id;
  return ids;
}

// ---- running it

struct Row {
  Contender contender;
  BackendReport report;
  std::optional<MatrixAnswer> answer;
};

Row RowFor(const Contender& contender) {
  Row row{.contender = contender, .report = {}, .answer = {}};
  row.report.id = contender.id;
  row.report.name = contender.name;
  row.report.state = "skipped";
  row.report.reason = contender.missing;
  return row;
}

void Take(Row& row, MatrixAnswer answer) {
  row.report.state = "ran";
  row.report.reason.clear();
  row.report.kernel_class = answer.kernel_class;
  row.report.device = answer.device;
  row.report.features = answer.features;
  row.answer = std::move(answer);
}

void RunChildRow(Row& row, const MatrixJob& job, const std::string& scratch) {
  BackendReport& report = row.report;
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
    if (std::string wrong = WrongFeatures(row.contender, read->features); !wrong.empty()) {
      report.kernel_class = read->kernel_class;
      report.device = read->device;
      report.features = read->features;
      report.reason = std::move(wrong);
      return;
    }
    Take(row, std::move(*read));
    return;
  }
}

// The workers' side of the swarm, once it is needed: a link that idles while this machine is busy with its own rows
// would be cut.
class SwarmSide {
 public:
  SwarmSide(const MatrixOptions& options, LogSink& log) : options_(options), log_(log) {}

  void Run(Row& row, const WorkerContender& worker, const MatrixInput& input) {
    const auto start = std::chrono::steady_clock::now();
    row.report.node_id = worker.node.node_id;
    row.report.kernel_class = PlainText(worker.node.kernel_class);
    if (!worker.contender.missing.empty()) return;
    auto answer = Ask(worker, input);
    row.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (answer.has_value()) return Take(row, std::move(*answer));
    row.report.state = answer.error().code == FaultCode::kRefused ? "skipped" : "failed";
    row.report.reason = answer.error().text;
  }

 private:
  Result<MatrixAnswer> Ask(const WorkerContender& worker, const MatrixInput& input) {
    if (!probe_.has_value()) probe_ = Attach();
    if (!probe_->has_value()) return Fail(FaultCode::kGone, "{}", probe_->error().text);
    return RunJobOnWorker(input, worker, ***probe_, options_.timeout_s);
  }

  Result<std::unique_ptr<WorkerProbe>> Attach() {
    ::signal(SIGPIPE, SIG_IGN);  // a peer that is gone is an error, not our end
    ASSIGN_OR_RETURN(model_, ModelFile::Open(options_.models.at(0)));
    WorkerProbeOptions probe;
    ASSIGN_OR_RETURN(probe.coordinator, VisitorEndpoint(options_.swarm, options_.token_file));
    probe.program = "linkcpp matrix";
    probe.data_listen = options_.data_listen;
    probe.deadline = std::chrono::seconds(std::min(options_.timeout_s, kMostWorkerDeadlineS));
    probe.keep_going = InterruptGuard::KeepGoing;
    return WorkerProbe::Attach(probe, *model_, log_);
  }

  const MatrixOptions& options_;
  LogSink& log_;
  std::optional<ModelFile> model_;  // outlives the probe
  std::optional<Result<std::unique_ptr<WorkerProbe>>> probe_;
};

template <class... Args>
void Say(const MatrixOptions& options, std::format_string<Args...> format, Args&&... args) {
  if (options.json && ::isatty(STDERR_FILENO) == 0) return;
  std::println(stderr, "{}", std::format(format, std::forward<Args>(args)...));
}

// ---- before anything is computed

Result<void> CheckAdded(const std::vector<std::string>& added) {
  for (const std::string& one : added) {
    const std::size_t equals = one.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == one.size()) {
      return Fail(FaultCode::kRefused, "--add {}: give NAME=PATH, e.g. zen4=/usr/lib/…/libggml-cpu-zen4.so", one);
    }
    if (const auto there = CanBeRead(one.substr(equals + 1)); !there) return Wrap(there.error(), "--add " + one);
  }
  return {};
}

Result<void> CheckModel(const ModelFile& model, const MatrixOptions& options) {
  RETURN_IF_FAULT(model.RequireExperts());
  std::vector<std::uint32_t> layers = options.layers;
  if (layers.empty()) layers = LayersFor(model, {});
  for (const std::uint32_t layer : layers) {
    ASSIGN_OR_RETURN(const LayerPlan plan, PlanLayer(model, layer));
    if (options.experts.empty()) {
      if (layer == layers.front()) RETURN_IF_FAULT(LoadRouter(model, plan));
    } else if (const auto experts = ParseRanges(options.experts, plan.layer->n_experts); !experts) {
      return Wrap(experts.error(), "--experts " + options.experts);
    }
  }
  return {};
}

}  // namespace

Result<void> CheckMatrixOptions(const MatrixOptions& options) {
  if (!options.svg.empty()) {
    if (const auto can = CanBeWritten(options.svg); !can) return Wrap(can.error(), "--svg");
  }
  RETURN_IF_FAULT(CheckAdded(options.added));
  const std::string& from = options.rows_from;
  if (!from.empty() && from != "gaussian" && from != "embeddings" && from != "decode") {
    if (const auto can = CanBeRead(from); !can) {
      return Wrap(can.error(), "--rows-from is gaussian, embeddings, decode or a file");
    }
  }
  if (!options.text.empty()) {
    if (const auto can = CanBeRead(options.text); !can) return Wrap(can.error(), "--text");
  }
  if (!options.swarm.empty()) {
    if (options.models.size() != 1) {
      return Fail(FaultCode::kRefused, "--swarm needs -m, once: the file that the swarm serves");
    }
    RETURN_IF_FAULT(VisitorEndpoint(options.swarm, options.token_file));
  }
  for (const std::string& path : options.models) {
    ASSIGN_OR_RETURN(const ModelFile model, ModelFile::Open(path));
    RETURN_IF_FAULT(CheckModel(model, options));
  }
  return {};
}

Result<std::vector<Contender>> MatrixBackends(const MatrixOptions& options) {
  ASSIGN_OR_RETURN(std::vector<Contender> all, FindContenders(WhereRowsAre(options), InterruptGuard::KeepGoing));
  const auto is_there = [&all](const std::string& id) { return std::ranges::contains(all, id, &Contender::id); };
  for (const std::string& name : options.backends) {
    if (!is_there(name)) return Fail(FaultCode::kRefused, "no backend called \"{}\"; there are: {}", name, IdsOf(all));
  }
  for (const std::string& name : options.require) {
    if (is_there(name) || !options.swarm.empty()) continue;  // a worker's name may turn up later
    return Fail(FaultCode::kRefused, "no backend called \"{}\"; there are: {}", name, IdsOf(all));
  }
  if (!options.backends.empty()) {
    std::erase_if(all, [&](const Contender& one) { return !std::ranges::contains(options.backends, one.id); });
  }
  return all;
}

Result<std::vector<WorkerContender>> MatrixWorkers(const MatrixOptions& options,
                                                   const std::vector<Contender>& backends) {
  if (options.swarm.empty()) return std::vector<WorkerContender>{};
  std::vector<std::string> taken;
  for (const Contender& backend : backends) taken.push_back(backend.id);
  ASSIGN_OR_RETURN(const HttpEndpoint endpoint, VisitorEndpoint(options.swarm, options.token_file));
  ASSIGN_OR_RETURN(const ModelFile model, ModelFile::Open(options.models.at(0)));
  return FindWorkers(endpoint, model, options.nodes, taken);
}

Result<MatrixReport> RunMatrix(const MatrixOptions& options, const std::vector<Contender>& backends,
                               const std::vector<WorkerContender>& workers, LogSink& log) {
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  ASSIGN_OR_RETURN(const MatrixInput input, MakeInput(options, scratch.path(), workers));
  RETURN_IF_FAULT(WriteJob(input.job, scratch.path() + "/job"));

  MatrixReport report{.machine = {}, .seconds = 0, .inside = true, .backends = {}, .groups = {}};
  std::vector<Row> rows;
  const auto done = [&] {
    const BackendReport& last = rows.back().report;
    Say(options, "[{}/{}] {}: {}", rows.size(), backends.size() + workers.size(), last.name,
        rows.back().answer ? std::format("{:.1f} s", last.seconds) : last.state + ": " + last.reason);
    if (last.state == "failed") report.inside = false;
    report.backends.push_back(last);
    return InterruptGuard::KeepGoing();
  };
  for (const Contender& contender : backends) {
    RunChildRow(rows.emplace_back(RowFor(contender)), input.job, scratch.path());
    if (!done()) return Fail(FaultCode::kGone, "interrupted");
  }
  {
    SwarmSide swarm(options, log);
    for (const WorkerContender& worker : workers) {
      swarm.Run(rows.emplace_back(RowFor(worker.contender)), worker, input);
      if (!done()) return Fail(FaultCode::kGone, "interrupted");
    }
  }
  std::vector<AnsweredRow> answered;
  for (const Row& row : rows) {
    if (row.answer.has_value()) answered.push_back({row.contender.id, row.contender.kind, &*row.answer});
  }
  const int n_threads =
      options.n_threads > 0 ? options.n_threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Judge judge(input.job, input.groups, n_threads, InterruptGuard::KeepGoing);
  for (std::size_t g = 0; g < input.groups.size(); ++g) {
    ASSIGN_OR_RETURN(report.groups.emplace_back(), JudgeGroup(judge, input.job, input.groups, g, answered));
    report.inside = report.inside && report.groups.back().Inside();
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace linkcpp
