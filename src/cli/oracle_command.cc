// linkcpp oracle: one MoE layer of a model in plain double arithmetic, in one piece and in shards computed apart.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <glaze/glaze.hpp>
#include <iostream>
#include <iterator>
#include <print>

#include "base/write_json.h"
#include "cli/commands.h"
#include "oracle/dequantise.h"
#include "oracle/metrics.h"
#include "reference/model_oracle.h"

namespace linkcpp {
namespace {

constexpr double kTolerance = 1e-5;

struct Options {
  std::string model;
  std::uint32_t layer = 0;
  std::vector<std::uint32_t> shards{4};
  std::uint32_t n_tokens = 4;
  std::uint64_t seed = 1;
  std::string rows = "gaussian";
  std::string split = "even";
  bool json = false;
  bool values = false;
  std::string dequantise;
};

// ---- what --json prints

struct JsonChoice {
  std::uint32_t expert = 0;
  double weight = 0;
};
struct JsonRow {
  std::vector<float> x;
  std::vector<JsonChoice> choices;
  std::vector<double> y;
};
struct JsonSplit {
  std::uint32_t shards = 0;
  double max_abs = 0;
  double relative = 0;
  bool allclose = false;
};
struct JsonReport {
  std::string model;
  std::uint32_t layer = 0;
  std::string recipe;
  std::uint32_t n_in = 0;
  std::uint32_t n_out = 0;
  std::uint32_t tokens = 0;
  std::uint32_t experts_per_token = 0;
  std::uint32_t experts_touched = 0;
  std::uint32_t experts = 0;
  double max_abs_value = 0;
  std::string split;
  std::vector<JsonSplit> splits;
  std::vector<JsonRow> rows;  // with --values only
};

// What the options mean.
struct Case {
  ModelFile model;
  LayerPlan plan;
  Router router;
  std::vector<std::vector<float>> inputs;
};

Result<Case> Read(const Options& options) {
  ASSIGN_OR_RETURN(ModelFile model, ModelFile::Open(options.model));
  ASSIGN_OR_RETURN(LayerPlan plan, PlanLayer(model, options.layer));
  ASSIGN_OR_RETURN(Router router, LoadRouter(model, plan));
  const RowSource source = options.rows == "embeddings" ? RowSource::kEmbeddings : RowSource::kGaussian;
  ASSIGN_OR_RETURN(auto inputs, MakeRows(model, plan, source, options.n_tokens, options.seed));
  return Case{std::move(model), std::move(plan), std::move(router), std::move(inputs)};
}

Result<JsonReport> Run(const Options& options, const Case& given) {
  const auto& [model, plan, router, inputs] = given;

  std::vector<RoutedRow> rows;
  for (const auto& input : inputs) {
    RoutedRow row{.x = std::vector<double>(input.begin(), input.end()), .choices = {}};
    ASSIGN_OR_RETURN(row.choices, Route(router, row.x));
    rows.push_back(std::move(row));
  }
  const ExpertSource load = [&given](std::uint32_t expert) {
    return LoadOracleExpert(given.model, given.plan, expert);
  };
  const bool weigh_input = router.rule.weigh_input;
  const Split all = EvenSplit(plan.layer->n_experts, 1);
  ASSIGN_OR_RETURN(const auto whole, RunLayer(plan.recipe, load, rows, weigh_input, all[0], plan.n_out));

  JsonReport report{.model = model.name(),
                    .layer = options.layer,
                    .recipe = plan.recipe.Describe(),
                    .n_in = plan.n_in,
                    .n_out = plan.n_out,
                    .tokens = options.n_tokens,
                    .experts_per_token = router.rule.n_used,
                    .experts_touched = static_cast<std::uint32_t>(ExpertsTouched(rows).size()),
                    .experts = plan.layer->n_experts,
                    .max_abs_value = 0,
                    .split = options.split,
                    .splits = {},
                    .rows = {}};
  Rng rng(options.seed);
  for (const std::uint32_t n_shards : options.shards) {
    const Split split = options.split == "random" ? RandomSplit(plan.layer->n_experts, n_shards, rng)
                                                  : EvenSplit(plan.layer->n_experts, n_shards);
    ASSIGN_OR_RETURN(const auto combined, RunSplitLayer(plan.recipe, load, rows, weigh_input, split, plan.n_out));
    Comparison comparison;
    bool close = true;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      comparison.Add(std::span<const double>(whole[r]), std::span<const double>(combined[r]));
      close = close && AllClose(std::span<const double>(whole[r]), std::span<const double>(combined[r]), kTolerance);
    }
    report.max_abs_value = comparison.ReferenceMaxAbs();
    report.splits.push_back({n_shards, comparison.MaxAbs(), comparison.RelativeError(), close});
  }
  for (std::size_t r = 0; options.values && r < rows.size(); ++r) {
    JsonRow& row = report.rows.emplace_back(JsonRow{.x = inputs[r], .choices = {}, .y = whole[r]});
    for (const Choice& choice : rows[r].choices) row.choices.push_back({choice.expert, choice.weight});
  }
  return report;
}

void Print(const JsonReport& report) {
  std::println("{}, layer {}: {} -> {}, recipe {}", report.model, report.layer, report.n_in, report.n_out,
               report.recipe);
  std::println("{} tokens, {} experts each: {} of {} experts touched; largest |y| {:.4g}", report.tokens,
               report.experts_per_token, report.experts_touched, report.experts, report.max_abs_value);
  std::println("the layer in one piece against shards computed apart ({} split) and combined:", report.split);
  std::println("{:>8} {:>12} {:>12}  {}", "shards", "max|Δ|", "relative", "allclose(1e-5)");
  for (const JsonSplit& split : report.splits) {
    std::println("{:>8} {:>12.3g} {:>12.3g}  {}", split.shards, split.max_abs, split.relative,
                 split.allclose ? "yes" : "NO");
  }
}

// Blocks on standard input to float32 on standard output: what tests compare with other implementations.
Result<void> DequantiseStream(const WeightLayout& layout) {
  const std::string in{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  std::vector<float> out(in.size() / layout.block_bytes * layout.block_elements);
  RETURN_IF_FAULT(Dequantise(layout, std::as_bytes(std::span(in.data(), in.size())), out));
  if (std::fwrite(out.data(), sizeof(float), out.size(), stdout) != out.size()) {
    return Fail(FaultCode::kLocal, "writing to standard output failed");
  }
  return {};
}

}  // namespace

void AddOracleCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("oracle", "compute a MoE layer in plain double loops, whole and in shards");
  command->footer(
      "Exit status 0: every split agrees with the layer in one piece; 1: it does not, or something failed; 2: an "
      "option\n"
      "or the model can not be used.\n"
      "Example: linkcpp oracle -m assets/austen-moe-q4km.gguf --layer 0 --shards 2,4,16 --tokens 4");
  auto* model = command->add_option("-m,--model", options->model, "model file (GGUF; the first split of several)");
  command->add_option("--layer", options->layer, "which layer")->capture_default_str();
  command->add_option("--shards", options->shards, "into how many shards to split, one or several numbers")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--split", options->split, "which experts share a shard: even ranges, or at random from the seed")
      ->check(CLI::IsMember({"even", "random"}))
      ->capture_default_str();
  command->add_option("--tokens", options->n_tokens, "how many rows")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--rows", options->rows, "where rows come from: normal numbers, or the model's token embeddings")
      ->check(CLI::IsMember({"gaussian", "embeddings"}))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "seed of rows and random splits")->capture_default_str();
  command->add_flag("--json", options->json, "print a JSON object");
  command->add_flag("--values", options->values,
                    "with --json: also every row, its experts and weights, and its result");
  auto* dequantise = command->add_option("--dequantise", options->dequantise,
                                         "instead: read blocks of this type on standard input, write float32");
  dequantise->excludes(model);
  command->callback([options, &context, model, dequantise] {
    if (dequantise->count() > 0) {
      const auto layout = LayoutNamed(options->dequantise);
      if (!layout.has_value()) return ReportUsage(context, layout.error());
      if (const auto done = DequantiseStream(*layout); !done.has_value()) ReportFault(context, done.error());
      return;
    }
    if (model->count() == 0) throw CLI::RequiredError("linkcpp oracle: -m MODEL");
    const auto given = Read(*options);
    if (!given.has_value()) return ReportUsage(context, given.error(), options->json);
    const auto report = Run(*options, *given);
    if (!report.has_value()) return ReportFault(context, report.error(), options->json);
    if (options->json) {
      std::println("{}", WriteJson(*report));
    } else {
      Print(*report);
    }
    if (!std::ranges::all_of(report->splits, &JsonSplit::allclose)) context.status = 1;
  });
}

}  // namespace linkcpp
