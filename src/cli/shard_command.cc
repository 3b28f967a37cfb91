// linkcpp shard: cuts some experts of some layers out of a model, or checks a shard that was cut.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <glaze/glaze.hpp>
#include <memory>
#include <print>
#include <thread>

#include "base/write_json.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/progress.h"
#include "gguf/manifest.h"
#include "gguf/model.h"
#include "gguf/shard.h"

namespace linkcpp {
namespace {

struct Options {
  std::string model;
  std::string layers = "all";
  std::string experts = "all";
  std::string out;
  std::string verify;
  std::string cache_dir;
  bool json = false;
};

// ---- what --json prints

struct CutReport {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::uint64_t slices = 0;
  std::string layers;
  std::string experts;
  std::string model_id;
  std::string etag;
  double seconds = 0;
};
struct VerifyReport {
  std::string path;
  bool intact = true;
  std::uint64_t slices = 0;
  std::uint64_t expert_bytes = 0;
  std::string layers;
  std::string experts;
  std::string model_id;
};

// ---- Ctrl-C while writing leaves no half file behind

char part_path[4096];

extern "C" void RemovePartAndExit(int number) {
  ::unlink(part_path);
  ::_exit(128 + number);
}

class PartGuard {
 public:
  explicit PartGuard(const std::string& path) {
    if (path.size() >= sizeof part_path) return;
    std::ranges::copy(path, part_path);
    part_path[path.size()] = '\0';
    struct sigaction action{};
    action.sa_handler = RemovePartAndExit;
    ::sigaction(SIGINT, &action, &old_interrupt_);
    ::sigaction(SIGTERM, &action, &old_terminate_);
    armed_ = true;
  }
  ~PartGuard() {
    if (!armed_) return;
    ::sigaction(SIGINT, &old_interrupt_, nullptr);
    ::sigaction(SIGTERM, &old_terminate_, nullptr);
  }
  PartGuard(const PartGuard&) = delete;
  PartGuard& operator=(const PartGuard&) = delete;

 private:
  bool armed_ = false;
  struct sigaction old_interrupt_{};
  struct sigaction old_terminate_{};
};

// ---- the two jobs

Result<CutReport> Cut(const Options& options) {
  ASSIGN_OR_RETURN(const auto model, ModelFile::Open(options.model));
  ASSIGN_OR_RETURN(const auto layers, ParseLayers(options.layers, model));
  ASSIGN_OR_RETURN(const auto experts, ParseExperts(options.experts, model));
  ProgressBar hashing("hashing " + model.name());
  ASSIGN_OR_RETURN(const auto manifest,
                   Manifest::LoadOrCompute(model, options.cache_dir, [&](std::uint64_t done, std::uint64_t total) {
                     hashing.Show(done, total);
                   }));
  ASSIGN_OR_RETURN(const auto shard, Shard::Plan(model, manifest, layers, experts));
  const auto start = std::chrono::steady_clock::now();
  {
    const PartGuard guard(options.out + ".part");
    ProgressBar writing("writing " + options.out);
    RETURN_IF_FAULT(
        shard.WriteTo(options.out, [&](std::uint64_t done, std::uint64_t total) { writing.Show(done, total); }));
  }
  return CutReport{.path = options.out,
                   .size_bytes = shard.size_bytes(),
                   .slices = shard.n_slices(),
                   .layers = FormatRanges(layers),
                   .experts = FormatRanges(experts),
                   .model_id = manifest.model_id().Hex(),
                   .etag = shard.etag(),
                   .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

Result<VerifyReport> Verify(const Options& options) {
  ASSIGN_OR_RETURN(const auto shard, ModelFile::Open(options.verify));
  ASSIGN_OR_RETURN(const auto info, ReadShardInfo(shard));
  ProgressBar bar("verifying " + shard.name());
  RETURN_IF_FAULT(VerifyShard(shard, static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u)),
                              [&](std::uint64_t done, std::uint64_t total) { bar.Show(done, total); }));
  return VerifyReport{.path = options.verify,
                      .slices = shard.n_slices(),
                      .expert_bytes = shard.total_expert_bytes(),
                      .layers = FormatRanges(info.layers),
                      .experts = FormatRanges(info.experts),
                      .model_id = info.model_id.Hex()};
}

void Run(const Options& options, CommandContext& context) {
  if (!options.verify.empty()) {
    const auto report = Verify(options);
    if (!report) return ReportFault(context, report.error(), options.json);
    if (options.json) return std::println("{}", WriteJson<JsonLayout::kIndented>(*report));
    std::println("{}: intact, {} slices (layers {}, experts {}), {} of experts", report->path, report->slices,
                 report->layers, report->experts, SizeText(report->expert_bytes));
    return;
  }
  if (options.model.empty() || options.out.empty()) {
    return ReportUsage(context,
                       {FaultCode::kRefused, "shard needs -m MODEL.gguf and -o OUT.gguf, or --verify SHARD.gguf"},
                       options.json);
  }
  const auto report = Cut(options);
  if (!report) return ReportFault(context, report.error(), options.json);
  if (options.json) return std::println("{}", WriteJson<JsonLayout::kIndented>(*report));
  std::println("{}: {} slices (layers {}, experts {}), {} in {:.2f} s", report->path, report->slices, report->layers,
               report->experts, SizeText(report->size_bytes), report->seconds);
}

// The notation alone: what exists in the model is a question for the model, with another exit status.
std::string CheckRanges(const std::string& text) {
  const auto numbers = ParseRanges(text, 65536);
  return numbers || numbers.error().code != FaultCode::kMalformed ? "" : numbers.error().text;
}

}  // namespace

void AddShardCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  options->cache_dir = DefaultCacheDir();
  CLI::App* command = app.add_subcommand("shard", "cut some experts of some layers out of a model into a GGUF file");
  command->add_option("-m,--model", options->model, "the model: a GGUF file, or any of its splits");
  command->add_option("--layers", options->layers, "layers to take, as in 0:2,7 (ends excluded) or all")
      ->check(CLI::Validator(CheckRanges, "RANGES"))
      ->capture_default_str();
  command->add_option("--experts", options->experts, "experts to take of each layer, as in 0:16,40 or all")
      ->check(CLI::Validator(CheckRanges, "RANGES"))
      ->capture_default_str();
  command->add_option("-o,--output", options->out, "the shard to write");
  command->add_option("--verify", options->verify, "check a shard instead: every slab against its hash")
      ->check(IsGguf())
      ->excludes("-o");
  command->add_option("--cache-dir", options->cache_dir, "where the manifest goes if not beside the model")
      ->capture_default_str();
  command->add_flag("--json", options->json, "print the result as JSON");
  command->footer(
      "examples:\n"
      "  linkcpp shard -m MODEL.gguf --layers 0:2 --experts 0:16,40 -o OUT.gguf\n"
      "  linkcpp shard --verify OUT.gguf");
  command->callback([options, &context] { Run(*options, context); });
}

}  // namespace linkcpp
