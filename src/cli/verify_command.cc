// linkcpp verify: is what a device computes what the oracle computes? `verify expert` asks it of experts of one layer.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <glaze/glaze.hpp>
#include <print>
#include <thread>

#include "base/log.h"
#include "base/write_json.h"
#include "cli/commands.h"
#include "cli/expert_computer.h"
#include "cli/swarm_view.h"
#include "cli/usage.h"
#include "cli/user_files.h"
#include "gguf/shard.h"
#include "oracle/bound.h"
#include "reference/model_oracle.h"

namespace linkcpp {
namespace {

constexpr double kTolerance = 1e-3;

struct Options {
  std::string model;
  std::uint32_t layer = 0;
  std::string experts = "0:4";
  std::string device;
  std::string backend_path;
  std::string swarm, node, token_file, data_listen;  // swarm "": on a device of this machine
  int n_threads = 0;
  std::uint32_t n_rows = 4;
  std::string rows_from = "gaussian";
  std::uint64_t seed = 1;
  bool routed = false;
  bool json = false;
};

std::string DeviceName(const Options& options) {
  return options.device.empty() ? "cpu" : options.device;
}

// ---- what --json prints

struct JsonMeasure {
  std::uint64_t pairs = 0;
  double cosine = 0;
  double worst_pair_cosine = 1;
  double nmse = 0;
  double explained_worst_pair_cosine = 1;
  double explained_nmse = 0;  // what turning rows into the kernel's format does by itself
  double max_abs = 0;
  bool allclose = true;      // to 1e-3
  double over_bound = 0;     // largest |Δ| / derived bound
  double over_worst = 0;     // largest |Δ| / worst case
  double replayed_nmse = 0;  // against the oracle fed with rows in the kernel's format
  double over_likely = 0;    // largest |Δ| against that one / its bound
  bool inside = true;
};
struct JsonExpert {
  std::uint32_t expert = 0;
  JsonMeasure measure;
};
struct JsonReport {
  std::string model;
  std::uint32_t layer = 0;
  std::string recipe;
  std::string types;
  std::string rows;
  std::string device;
  std::string kernel_class;
  std::string kernel_model;
  std::vector<JsonExpert> experts;
  JsonMeasure all;
};

// Sums over pairs: those of one expert, or of all.
struct Measure {
  BoundCheck check;
  std::uint64_t pairs = 0;
  double worst_pair_cosine = 1, explained_worst_pair_cosine = 1;
  bool allclose = true;

  void Add(const BoundedResult& reference, std::span<const float> y) {
    ++pairs;
    check.Add(reference, y);
    Comparison pair, explained;
    pair.Add(std::span<const double>(reference.exact), y);
    explained.Add(std::span<const double>(reference.exact), std::span<const double>(reference.replayed));
    worst_pair_cosine = std::min(worst_pair_cosine, pair.Cosine());
    explained_worst_pair_cosine = std::min(explained_worst_pair_cosine, explained.Cosine());
    allclose = allclose && AllClose(std::span<const double>(reference.exact), y, kTolerance);
  }
  JsonMeasure Json() const {
    return {.pairs = pairs,
            .cosine = check.exact().Cosine(),
            .worst_pair_cosine = worst_pair_cosine,
            .nmse = check.exact().Nmse(),
            .explained_worst_pair_cosine = explained_worst_pair_cosine,
            .explained_nmse = check.explained().Nmse(),
            .max_abs = check.exact().MaxAbs(),
            .allclose = allclose,
            .over_bound = check.over_bound(),
            .over_worst = check.over_worst(),
            .replayed_nmse = check.replayed().Nmse(),
            .over_likely = check.over_likely(),
            .inside = check.Holds()};
  }
};

// The same pairs under every model a kernel on this device may follow; the one that explains them best is reported.
struct Candidates {
  std::span<const KernelModel> models;
  std::vector<Measure> all;                   // by model
  std::vector<std::vector<Measure>> experts;  // by model, by expert

  std::size_t Best() const {
    const auto rank = [&](std::size_t m) { return std::pair(!all[m].check.Holds(), all[m].check.replayed().Nmse()); };
    std::size_t best = 0;
    for (std::size_t m = 1; m < models.size(); ++m) best = rank(m) < rank(best) ? m : best;
    return best;
  }
};

Result<std::vector<std::vector<float>>> RowsFor(const ModelFile& model, const LayerPlan& plan, const Options& options) {
  if (options.rows_from == "gaussian" || options.rows_from == "embeddings") {
    const RowSource source = options.rows_from == "gaussian" ? RowSource::kGaussian : RowSource::kEmbeddings;
    return MakeRows(model, plan, source, options.n_rows, options.seed);
  }
  return ReadRows(options.rows_from, plan.n_in, options.n_rows);
}

// For every expert the rows it is to compute: all, or those that the model's own router sends to it.
Result<std::vector<std::vector<std::vector<float>>>> ChosenRows(const ModelFile& model, const LayerPlan& plan,
                                                                const std::vector<std::vector<float>>& rows,
                                                                bool routed) {
  std::vector<std::vector<std::vector<float>>> chosen(plan.layer->n_experts,
                                                      routed ? std::vector<std::vector<float>>{} : rows);
  if (!routed) return chosen;
  ASSIGN_OR_RETURN(const Router router, LoadRouter(model, plan));
  for (const auto& row : rows) {
    ASSIGN_OR_RETURN(const auto choices, Route(router, std::vector<double>(row.begin(), row.end())));
    for (const Choice& choice : choices) chosen[choice.expert].push_back(row);
  }
  return chosen;
}

std::string TypesOf(const LayerPlan& plan) {
  std::string text;
  for (const ExpertTensor& tensor : plan.layer->tensors) {
    if (tensor.kind != SlabKind::kWeight) continue;
    text += std::format("{}{} {}", text.empty() ? "" : ", ", ProjectionName(tensor.projection),
                        WeightTypeName(tensor.tensor->type));
  }
  return text;
}

// The references of every row, several rows at a time: this is where the time goes.
Result<std::vector<BoundedResult>> ReferencesFor(const LayerPlan& plan, const OracleExpert& expert,
                                                 std::span<const std::vector<float>> rows, const KernelModel& model,
                                                 int n_threads) {
  std::vector<Result<BoundedResult>> results(rows.size());
  std::atomic<std::size_t> next = 0;
  {
    const auto work = [&] {
      for (std::size_t r = next++; r < rows.size(); r = next++) {
        results[r] = BoundExpert(plan.recipe, expert, rows[r], model);
      }
    };
    std::vector<std::jthread> threads;
    for (int t = 1; t < n_threads; ++t) threads.emplace_back(work);
    work();
  }
  std::vector<BoundedResult> out;
  for (auto& result : results) {
    ASSIGN_OR_RETURN(out.emplace_back(), result);
  }
  return out;
}

// What the options mean.
struct Case {
  ModelFile model;
  LayerPlan plan;
  std::vector<std::uint16_t> experts;
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<std::vector<float>>> chosen;  // rows by expert
};

Result<Case> Read(const Options& options) {
  ASSIGN_OR_RETURN(ModelFile model, ModelFile::Open(options.model));
  ASSIGN_OR_RETURN(LayerPlan plan, PlanLayer(model, options.layer));
  ASSIGN_OR_RETURN(auto experts, ParseRanges(options.experts, plan.layer->n_experts));
  ASSIGN_OR_RETURN(auto rows, RowsFor(model, plan, options));
  ASSIGN_OR_RETURN(auto chosen, ChosenRows(model, plan, rows, options.routed));
  if (std::ranges::all_of(experts, [&](std::uint16_t expert) { return chosen[expert].empty(); })) {
    return Fail(FaultCode::kRefused, "the router sends none of these rows to experts {}", options.experts);
  }
  if (!options.swarm.empty()) {
    RETURN_IF_FAULT(VisitorEndpoint(options.swarm, options.token_file));
  } else if (!options.backend_path.empty()) {
    if (const auto can = CanBeRead(options.backend_path); !can) return Wrap(can.error(), "--backend");
  } else {
    RETURN_IF_FAULT(Device::Find(DeviceName(options)));
  }
  return Case{std::move(model), std::move(plan), std::move(experts), std::move(rows), std::move(chosen)};
}

Result<std::unique_ptr<ExpertComputer>> ComputerFor(const Options& options, const ModelFile& model,
                                                    const LayerPlan& plan, const std::vector<std::uint16_t>& experts,
                                                    LogSink& log) {
  if (options.swarm.empty()) {
    return ComputeOnDevice(
        model, plan,
        {.name = DeviceName(options), .n_threads = options.n_threads, .backend_path = options.backend_path}, log);
  }
  WorkerProbeOptions probe;
  ASSIGN_OR_RETURN(probe.coordinator, VisitorEndpoint(options.swarm, options.token_file));
  probe.data_listen = options.data_listen;
  return ComputeOnWorker(model, plan, probe, options.node, experts, log);
}

Result<JsonReport> Run(const Options& options, const Case& given, LogSink& log) {
  const auto& [model, plan, experts, rows, chosen] = given;
  ASSIGN_OR_RETURN(const auto computer, ComputerFor(options, model, plan, experts, log));
  const int n_threads =
      options.n_threads > 0 ? options.n_threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));

  JsonReport report{.model = model.name(),
                    .layer = options.layer,
                    .recipe = plan.recipe.Describe(),
                    .types = TypesOf(plan),
                    .rows = std::format("{} {}", rows.size(), options.rows_from),
                    .device = computer->name(),
                    .kernel_class = computer->kernel_class(),
                    .kernel_model = {},
                    .experts = {},
                    .all = {}};
  const bool f16_weights = std::ranges::any_of(plan.layer->tensors, [](const ExpertTensor& tensor) {
    return tensor.tensor->type == static_cast<std::uint32_t>(WeightType::kF16);
  });
  Candidates candidates{.models = KernelModels(computer->is_gpu(), f16_weights), .all = {}, .experts = {}};
  candidates.all.resize(candidates.models.size());
  candidates.experts.resize(candidates.models.size());
  std::vector<std::uint16_t> computed;
  for (const std::uint16_t expert : experts) {
    const std::vector<std::vector<float>>& own = chosen[expert];
    if (own.empty()) continue;
    computed.push_back(expert);
    std::vector<float> x;
    for (const auto& row : own) x.insert(x.end(), row.begin(), row.end());
    std::vector<float> y(own.size() * plan.n_out);
    RETURN_IF_FAULT(computer->Compute(expert, x, y));

    ASSIGN_OR_RETURN(const OracleExpert oracle, LoadOracleExpert(model, plan, expert));
    for (std::size_t m = 0; m < candidates.models.size(); ++m) {
      ASSIGN_OR_RETURN(const auto references, ReferencesFor(plan, oracle, own, candidates.models[m], n_threads));
      Measure& one = candidates.experts[m].emplace_back();
      for (std::size_t r = 0; r < own.size(); ++r) {
        const auto result = std::span<const float>(y).subspan(r * plan.n_out, plan.n_out);
        one.Add(references[r], result);
        candidates.all[m].Add(references[r], result);
      }
    }
  }
  const std::size_t best = candidates.Best();
  report.kernel_model = candidates.models[best].name;
  report.all = candidates.all[best].Json();
  for (std::size_t e = 0; e < computed.size(); ++e)
    report.experts.push_back({computed[e], candidates.experts[best][e].Json()});
  return report;
}

void PrintLine(std::string_view name, const JsonMeasure& m) {
  std::println(
      "{:>6} {:>6} {:>10.7f} {:>10.7f} {:>9.2e} {:>9.2e} {:>9.2e} {:>5} {:>14.3f} {:>8.4f} {:>9.2e} {:>9.3f}  {}", name,
      m.pairs, m.cosine, m.worst_pair_cosine, m.nmse, m.explained_nmse, m.max_abs, m.allclose ? "yes" : "no",
      m.over_bound, m.over_worst, m.replayed_nmse, m.over_likely, m.inside ? "inside" : "OUTSIDE");
}

void Print(const JsonReport& report) {
  std::println("{}, layer {}: {}; recipe {}", report.model, report.layer, report.types, report.recipe);
  std::println("kernel {} on {}; rows: {}", report.kernel_class, report.device, report.rows);
  std::println("{:>6} {:>6} {:>10} {:>10} {:>9} {:>9} {:>9} {:>5} {:>14} {:>8} {:>9} {:>9}", "expert", "pairs",
               "cosine", "worst pair", "NMSE", "explained", "max|Δ|", "1e-3", "share of bound", "of worst", "replayed",
               "of likely");
  for (const JsonExpert& expert : report.experts) PrintLine(std::to_string(expert.expert), expert.measure);
  PrintLine("all", report.all);
  if (report.all.inside) {
    std::println("every element is inside its derived bound (kernel model: {})", report.kernel_model);
  } else {
    std::println("OUTSIDE the derived bound: this kernel does not compute these experts (nearest kernel model: {})",
                 report.kernel_model);
  }
}

void AddVerifyExpert(CLI::App& verify, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = verify.add_subcommand(
      "expert", "experts of one layer on a device or a worker, against the oracle and its bounds");
  command->footer(
      "explained: NMSE of what the row format does by itself; replayed: NMSE against the oracle fed with rows in that\n"
      "format; 1e-3: allclose(1e-3). share of bound: the largest |Δ| of an element as a share of the bound derived "
      "for\n"
      "it, 1 at most; of worst, of likely: the same of its worst case and of the narrow bound around a replay with "
      "rows\n"
      "in the kernel's format (docs/numerics.md).\n"
      "Exit status 0: inside the bounds; 1: outside, or it could not be computed; 2: an option or the model can not "
      "be\n"
      "used.\n"
      "Example: linkcpp verify expert -m assets/austen-moe-q4km.gguf --layer 0 --experts 0:4 --rows 8\n"
      "         LINKCPP_TOKEN=… linkcpp verify expert -m MODEL --swarm http://127.0.0.1:8090 --node laptop");
  command->add_option("-m,--model", options->model, "model file (GGUF; the first split of several)")->required();
  command->add_option("--layer", options->layer, "which layer")->capture_default_str();
  command->add_option("--experts", options->experts, "which experts: 0:16,40 or all")->capture_default_str();
  auto* device =
      command->add_option("--device", options->device, "cpu, auto, or a ggml device name")->default_str("cpu");
  auto* backend = command->add_option("--backend", options->backend_path,
                                      "ggml backend library to load instead of all, e.g. a CPU variant");
  auto* swarm =
      command
          ->add_option("--swarm", options->swarm, "let a worker of this running swarm compute: the coordinator's URL")
          ->excludes(device)
          ->excludes(backend);
  command->add_option("--node", options->node, "which worker: its id or name (default: one that holds the experts)")
      ->needs(swarm);
  command->add_option("--token-file", options->token_file, "a file with the swarm's token (default: LINKCPP_TOKEN)")
      ->needs(swarm);
  command
      ->add_option("--data-listen", options->data_listen,
                   "where the worker dials this machine (default: loopback, or all interfaces)")
      ->needs(swarm)
      ->check(IsHostPort(true));
  command->add_option("--threads", options->n_threads, "threads of a CPU device and of the oracle; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--rows", options->n_rows, "rows per expert")->check(CLI::Range(1, 65536))->capture_default_str();
  command
      ->add_option("--rows-from", options->rows_from, "gaussian, embeddings, or a file of little-endian float32 rows")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "seed of the rows")->capture_default_str();
  command->add_flag("--routed", options->routed, "give an expert only the rows that the model's router sends to it");
  command->add_flag("--json", options->json, "print a JSON object");
  command->callback([options, &context] {
    const auto log = MakeStderrLog("verify", LogLevel::kWarning);
    const auto given = Read(*options);
    if (!given.has_value()) return ReportUsage(context, given.error(), options->json);
    const auto report = Run(*options, *given, *log);
    if (!report.has_value()) return ReportFault(context, report.error(), options->json);
    if (options->json) {
      std::println("{}", WriteJson(*report));
    } else {
      Print(*report);
    }
    if (!report->all.inside) context.status = 1;
  });
}

}  // namespace

void AddVerifyCommand(CLI::App& app, CommandContext& context) {
  CLI::App* verify = app.add_subcommand("verify", "compare what a device or a swarm computes with a reference");
  verify->require_subcommand(1);
  AddVerifyExpert(*verify, context);
  AddVerifyDecode(*verify, context);
}

}  // namespace linkcpp
