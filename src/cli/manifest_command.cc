// linkcpp manifest: the model's id and the hash of every expert slab, from the cache or computed now.
#include <CLI/CLI.hpp>
#include <glaze/glaze.hpp>
#include <map>
#include <memory>
#include <print>

#include "base/write_json.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "gguf/manifest.h"
#include "gguf/model.h"
#include "gguf/shard.h"
#include "gguf/tensor_type.h"

namespace linkcpp {
namespace {

struct Options {
  std::string model;
  std::string cache_dir;
  bool slabs = false;
  bool json = false;
};

// ---- what --json prints

struct TensorReport {
  std::string name;
  std::string type;
  std::uint64_t slab_bytes = 0;
  std::vector<std::string> slab_hashes;  // one an expert, with --slabs only
};
struct LayerReport {
  std::uint32_t layer = 0;
  std::uint32_t experts = 0;
  std::uint64_t slice_bytes = 0;
  std::vector<TensorReport> tensors;
};
struct Report {
  std::string name;
  std::string architecture;
  std::string model_id;
  std::string header_hash;
  std::uint64_t slices = 0;
  std::uint64_t expert_bytes = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t files = 0;
  std::vector<LayerReport> layers;
};

Result<Report> MakeReport(const Options& options, const ModelFile& model) {
  ProgressBar bar("hashing " + model.name());
  ASSIGN_OR_RETURN(const auto manifest,
                   Manifest::LoadOrCompute(model, options.cache_dir,
                                           [&](std::uint64_t done, std::uint64_t total) { bar.Show(done, total); }));
  Report report{.name = model.name(),
                .architecture = model.architecture(),
                .model_id = manifest.model_id().Hex(),
                .header_hash = manifest.header_hash().Hex(),
                .slices = manifest.n_slices(),
                .expert_bytes = model.total_expert_bytes(),
                .file_bytes = model.total_bytes(),
                .files = model.paths().size(),
                .layers = {}};
  for (const MoeLayer& layer : model.moe_layers()) {
    LayerReport& row = report.layers.emplace_back(layer.layer.value, layer.n_experts, layer.slice_bytes);
    for (std::size_t slab = 0; slab < layer.tensors.size(); ++slab) {
      const TensorInfo& tensor = *layer.tensors[slab].tensor;
      TensorReport& cell =
          row.tensors.emplace_back(tensor.name, TensorTypeName(tensor.type), layer.tensors[slab].slab_bytes);
      for (std::uint32_t expert = 0; options.slabs && expert < layer.n_experts; ++expert) {
        const auto* slabs = manifest.Find({layer.layer, ExpertId(static_cast<std::uint16_t>(expert))});
        cell.slab_hashes.push_back(slabs == nullptr ? "" : (*slabs)[slab].hash.Hex());
      }
    }
  }
  return report;
}

// "gate Q4_K, up Q4_K, down Q6_K" -> how many layers are like that.
void PrintLayers(const Report& report) {
  std::map<std::string, std::vector<std::uint16_t>> alike;
  for (const LayerReport& layer : report.layers) {
    std::string text = std::format("{} experts of {}:", layer.experts, SizeText(layer.slice_bytes));
    for (const TensorReport& tensor : layer.tensors) {
      const std::string_view name = tensor.name;
      text += std::format(" {} {},", name.substr(name.find(".ffn_") + 5), tensor.type);
    }
    text.pop_back();
    alike[text].push_back(static_cast<std::uint16_t>(layer.layer));
  }
  for (const auto& [text, layers] : alike) std::println("layers {}: {}", FormatRanges(layers), text);
}

void PrintSlabs(const Report& report) {
  for (const LayerReport& layer : report.layers) {
    for (const TensorReport& tensor : layer.tensors) {
      for (std::size_t expert = 0; expert < tensor.slab_hashes.size(); ++expert) {
        std::println("{}  {} {}", tensor.slab_hashes[expert], tensor.name, expert);
      }
    }
  }
}

void Run(const Options& options, CommandContext& context) {
  const auto model = ModelFile::Open(options.model);
  if (!model) return ReportUsage(context, model.error(), options.json);
  if (IsShard(*model)) {
    return ReportUsage(
        context,
        {FaultCode::kRefused, model->name() + " is a shard: check it with linkcpp shard --verify " + options.model},
        options.json);
  }
  const auto report = MakeReport(options, *model);
  if (!report) return ReportFault(context, report.error(), options.json);
  if (options.json) {
    std::println("{}", WriteJson<JsonLayout::kIndented>(*report));
    return;
  }
  std::println("model     {} ({}, {} in {} file{})", report->name, report->architecture, SizeText(report->file_bytes),
               report->files, report->files == 1 ? "" : "s");
  std::println("model id  {}", report->model_id);
  std::println("header    {}", report->header_hash);
  std::println("slices    {}, {} of experts ({:.1f} % of the model)", report->slices, SizeText(report->expert_bytes),
               100.0 * static_cast<double>(report->expert_bytes) / static_cast<double>(report->file_bytes));
  PrintLayers(*report);
  PrintSlabs(*report);
}

}  // namespace

void AddManifestCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  options->cache_dir = DefaultCacheDir();
  CLI::App* command = app.add_subcommand("manifest", "show a model's id, slices and slab hashes");
  command->add_option("-m,--model", options->model, "the model: a GGUF file, or any of its splits")->required();
  command->add_flag("--slabs", options->slabs, "also the hash of every slab");
  command->add_option("--cache-dir", options->cache_dir, "where the manifest is kept if not beside the model")
      ->capture_default_str();
  command->add_flag("--json", options->json, "print the result as JSON");
  command->footer("example:\n  linkcpp manifest -m MODEL.gguf");
  command->callback([options, &context] { Run(*options, context); });
}

}  // namespace linkcpp
