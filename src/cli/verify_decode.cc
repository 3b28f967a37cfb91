#include "cli/verify_decode.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cli/beside.h"
#include "cli/count_text.h"
#include "cli/decode_run.h"
#include "cli/decode_tokens.h"
#include "cli/decode_verdict.h"
#include "cli/local_swarm.h"
#include "cli/logit_compare.h"
#include "cli/progress.h"
#include "cli/steps.h"
#include "cli/swarm_view.h"
#include "cli/user_files.h"
#include "coordinator/host_process.h"
#include "gguf/manifest.h"
#include "gguf/model.h"
#include "gguf/shard.h"
#include "kernel/device.h"

namespace linkcpp {
namespace {

using std::chrono::steady_clock;

constexpr std::uint64_t kSpareDisk = 16u << 20;
constexpr std::chrono::seconds kReportPatience{8};  // backbones report every second

double Seconds(steady_clock::time_point since) {
  return std::chrono::duration<double>(steady_clock::now() - since).count();
}

std::optional<double> FiniteOnly(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

class Run {
 public:
  Run(const VerifyDecodeOptions& options, LogSink& log) : options_(options), log_(log), steps_("verify decode") {}

  Result<VerifyDecodeReport> Do() {
    RETURN_IF_FAULT(LookAtThisMachine());
    ASSIGN_OR_RETURN(const ModelFile model, ModelFile::Open(options_.model));
    report_.model = model.name();
    model_path_ = model.paths().front();  // libllama wants the first split
    if (options_.swarm.empty()) {
      ProgressBar bar("hashing " + model.name());
      const auto show = [&](std::uint64_t done, std::uint64_t total) { bar.Show(done, total); };
      ASSIGN_OR_RETURN(served_, ServedModel::Load(options_.model, DefaultCacheDir(), show));
    } else {
      RETURN_IF_FAULT(LookAtSwarm(model));
    }
    const StopSignals signals;
    signals_ = &signals;
    ASSIGN_OR_RETURN(ScratchFolder scratch, ScratchFolder::Make());
    scratch_.emplace(std::move(scratch));
    folder_ = scratch_->path();
    RETURN_IF_FAULT(MakeTokens(model));
    RETURN_IF_FAULT(Alone());
    if (options_.swarm.empty()) {
      const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
      ASSIGN_OR_RETURN(local_, LocalSwarm::Start({.folder = folder_,
                                                  .worker_binary = ProgramBeside("linkcpp-expert-worker"),
                                                  .n_workers = options_.n_workers,
                                                  .device = options_.worker_device,
                                                  .n_threads = std::max(1, cores / options_.n_workers)},
                                                 *served_, log_));
      endpoint_ = local_->endpoint();
    }
    RETURN_IF_FAULT(WaitForCoverage());
    RETURN_IF_FAULT(WithWorkers());
    local_.reset();
    RETURN_IF_FAULT(
        JudgeDecode(model, [this](double noise, std::uint64_t seed) { return Shaken(noise, seed); }, report_));
    return std::move(report_);
  }

 private:
  // Before there are other threads: opening a device and changing the environment want that.
  Result<void> LookAtThisMachine() {
    ::unsetenv("GGML_BACKEND_PATH");  // the run alone is to be alone; the other one gets its own
    n_threads_ = options_.n_threads > 0 ? options_.n_threads
                                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    program_ = ProgramBeside("linkcpp-decode");
    if (!FindProgram(program_)) {
      return Fail(FaultCode::kLocal,
                  "{} is not there: it is built where libllama's headers are installed (libllama-dev), and belongs "
                  "beside linkcpp",
                  program_);
    }
    for (const char* library : {"libggml-linkcpp.so", "liblinkcpp-plugin.so"}) {
      if (std::filesystem::exists(LibraryBeside(library))) continue;
      return Fail(FaultCode::kLocal, "the plug-in {} is not there: build it", LibraryBeside(library));
    }
    ASSIGN_OR_RETURN(const auto device, Device::Open({.name = "cpu", .n_threads = 1}, log_));
    report_.host_kernel_class = device->kernel_class();
    return {};
  }

  Result<void> LookAtSwarm(const ModelFile& model) {
    ASSIGN_OR_RETURN(endpoint_, VisitorEndpoint(options_.swarm, options_.token_file));
    SwarmView view(endpoint_);
    ASSIGN_OR_RETURN(const StatusReply status, view.Status());
    RETURN_IF_FAULT(view.RequireModel(model));
    if (status.nodes.empty()) {
      return Fail(FaultCode::kRefused, "the swarm at {} has no workers: start one with `linkcpp join {}`",
                  endpoint_.url, endpoint_.url);
    }
    return {};
  }

  // ---------------------------------------------------------------- tokens

  DecodeJob Job(const std::string& name) const {
    DecodeJob job{.program = program_,
                  .model = model_path_,
                  .folder = folder_,
                  .name = name,
                  .tokens_file = folder_ + "/tokens",
                  .n_batch = options_.n_batch,
                  .n_steps = report_.one_by_one,
                  .n_threads = n_threads_,
                  .noise = 0,
                  .seed = 1,
                  .environment = {}};
    // As `linkcpp serve` does: a long spin of OpenMP's threads starves whoever else has work.
    if (std::getenv("GOMP_SPINCOUNT") == nullptr) job.environment["GOMP_SPINCOUNT"] = "1000";
    return job;
  }

  Result<void> MakeTokens(const ModelFile& model) {
    steps_.Begin("reading the model's vocabulary");
    ASSIGN_OR_RETURN(const ChosenTokens tokens, ChooseTokens(options_, model, Job("tokens"), *signals_));
    report_.text = tokens.text;
    report_.tokens = tokens.ids.size();
    report_.vocabulary = tokens.n_vocab;
    report_.one_by_one = std::max<std::uint64_t>(1, report_.tokens / 4);
    report_.in_batches = report_.tokens - report_.one_by_one;
    report_.batch = options_.n_batch;
    steps_.End(CountText(report_.tokens, "token"));
    if (tokens.wanted > report_.tokens) {
      log_.Warning("the text has {}, fewer than {}", CountText(report_.tokens, "token"), tokens.wanted);
    }
    return {};
  }

  // ---------------------------------------------------------------- the runs

  std::string Count(std::uint64_t done) const { return std::format("{} of {}", done, report_.tokens); }

  Result<void> Alone() {
    const std::uint64_t bytes = report_.tokens * report_.vocabulary * sizeof(float);
    std::error_code error;
    if (const auto disk = std::filesystem::space(folder_, error); !error && disk.available < bytes + kSpareDisk) {
      return Fail(FaultCode::kLocal, "the logits take {} in {} and {} are free: set TMPDIR, or give fewer --tokens",
                  SizeText(bytes), folder_, SizeText(disk.available));
    }
    steps_.Begin("libllama alone");
    const auto begin = steady_clock::now();
    std::ofstream kept(AlonePath(), std::ios::binary);
    DecodeEvents events;
    events.on_position = [&](std::uint32_t position, std::span<const float> logits) -> Result<void> {
      kept.write(reinterpret_cast<const char*>(logits.data()), static_cast<std::streamsize>(logits.size_bytes()));
      steps_.Show(Count(position + 1));
      if (!kept) return Fail(FaultCode::kLocal, "cannot write to {}: is the disk full?", AlonePath());
      return {};
    };
    RETURN_IF_FAULT(RunDecoder(Job("alone"), report_.tokens, events, *signals_));
    kept.close();
    if (!kept) return Fail(FaultCode::kLocal, "cannot write to {}: is the disk full?", AlonePath());
    report_.seconds_alone = Seconds(begin);
    steps_.End();
    return {};
  }

  std::string AlonePath() const { return folder_ + "/alone.kept"; }

  // Compares a run with the one alone, position by position.
  class Against {
   public:
    explicit Against(const std::string& path) : file_(path, std::ios::binary) {}
    Result<void> Add(std::span<const float> logits) {
      expected_.resize(logits.size());
      file_.read(reinterpret_cast<char*>(expected_.data()), static_cast<std::streamsize>(logits.size_bytes()));
      if (!file_) return Fail(FaultCode::kLocal, "the logits of the run alone can not be read back");
      comparison_.Add(expected_, logits);
      return {};
    }
    const LogitComparison& comparison() const { return comparison_; }

   private:
    std::ifstream file_;
    std::vector<float> expected_;
    LogitComparison comparison_;
  };

  Result<void> CheckWorkers() { return local_ == nullptr ? Result<void>() : local_->Check(); }

  Result<void> WaitForCoverage() {
    steps_.Begin(options_.swarm.empty() ? "workers load their slices" : "waiting for coverage");
    SwarmView view(endpoint_);
    std::uint64_t most_ready = 0;
    auto deadline = steady_clock::now() + std::chrono::seconds(options_.wait_s);
    while (true) {
      RETURN_IF_FAULT(CheckWorkers());
      ASSIGN_OR_RETURN(const StatusReply status, view.Status());
      Remember(status);
      std::uint64_t ready = 0;
      for (const NodeStatus& node : status.nodes) ready += node.slices_ready;
      if (ready > most_ready) deadline = steady_clock::now() + std::chrono::seconds(options_.wait_s);
      most_ready = std::max(most_ready, ready);
      steps_.Show(std::format("{} of {} slices", status.slices_covered, status.n_slices));
      const bool all = status.slices_covered == status.n_slices;
      if (all || steady_clock::now() > deadline) {
        std::string errors;
        for (const NodeStatus& node : status.nodes) {
          if (!node.error.empty()) errors += std::format("\n  {}: {}", node.name, node.error);
          if (!node.admitted) errors += std::format("\n  {} is not admitted: {}", node.name, node.refusal);
        }
        if (status.slices_covered == 0 || (!all && options_.swarm.empty())) {
          return Fail(FaultCode::kGone, "workers hold {1} of {2} slices, no more for {0} s{3}", options_.wait_s,
                      status.slices_covered, status.n_slices, errors);
        }
        if (!all) log_.Warning("workers hold {} of {} slices{}", status.slices_covered, status.n_slices, errors);
        steps_.End(std::format("{} of {} slices on {}", status.slices_covered, status.n_slices,
                               CountText(status.nodes.size(), "worker")));
        return {};
      }
      if (signals_->Wait(std::chrono::milliseconds(50))) return Fail(FaultCode::kGone, "interrupted");
    }
  }

  Result<void> WithWorkers() {
    // A name of its own, by which it is found in the coordinator's status.
    const std::string name = "linkcpp-decode." + std::filesystem::path(folder_).filename().string().substr(8);
    std::error_code error;
    std::filesystem::create_symlink(program_, folder_ + "/" + name, error);
    if (error) return Fail(FaultCode::kLocal, "cannot make a link in {}: {}", folder_, error.message());

    DecodeJob job = Job("with workers");
    job.program = folder_ + "/" + name;
    std::string local = options_.local;
    if (local.empty()) local = options_.swarm.empty() ? "deny" : "allow";
    const std::string listen = options_.data_listen.empty() ? DataListenFor(endpoint_) : options_.data_listen;
    std::string coordinator = endpoint_.url;
    if (!endpoint_.fingerprint.empty()) coordinator += "#sha256=" + endpoint_.fingerprint;
    auto& set = job.environment;
    set["GGML_BACKEND_PATH"] = LibraryBeside("libggml-linkcpp.so");
    set["LINKCPP_COORDINATOR"] = coordinator;
    set["LINKCPP_TOKEN"] = endpoint_.token;
    set["LINKCPP_DATA_LISTEN"] = listen;
    set["LINKCPP_LOCAL"] = local;
    set["LINKCPP_WAIT_S"] = std::to_string(options_.wait_s);
    set["LINKCPP_LOG"] = "warning";
    // No hurry here: a GPU's first dispatch may compile shaders for half a minute.
    if (std::getenv("LINKCPP_DEADLINE_MS") == nullptr) set["LINKCPP_DEADLINE_MS"] = "120000";
    if (const std::string preload = LibraryBeside("liblinkcpp-preload.so"); std::filesystem::exists(preload)) {
      const char* before = std::getenv("LD_PRELOAD");
      set["LD_PRELOAD"] = before == nullptr || *before == '\0' ? preload : preload + ":" + before;
    }

    steps_.Begin("experts on workers");
    const auto begin = steady_clock::now();
    Against against(AlonePath());
    DecodeEvents events;
    events.on_position = [&](std::uint32_t position, std::span<const float> logits) {
      steps_.Show(Count(position + 1));
      return against.Add(logits);
    };
    events.tick = [&] { return CheckWorkers(); };
    events.still_attached = [&]() -> Result<void> {
      report_.seconds_with_workers = Seconds(begin);
      return CountPairs(name);
    };
    if (auto done = RunDecoder(job, report_.tokens, events, *signals_); !done) {
      // A worker that has died says more than a host that could not go on without it.
      RETURN_IF_FAULT(CheckWorkers());
      return done;
    }
    steps_.End();
    const LogitComparison& all = against.comparison();
    report_.bit_identical = all.BitIdentical();
    report_.positions_differing = all.n_differing();
    report_.first_differing_position = all.first_differing();
    report_.nmse = all.Nmse();
    report_.max_abs = all.MaxAbs();
    report_.kl_mean = FiniteOnly(all.KlMean());
    report_.kl_max = FiniteOnly(all.KlMax());
    report_.kl_max_position = all.kl_max_at();
    report_.top1_agree = all.top1_agree();
    report_.top1_agreement = static_cast<double>(all.top1_agree()) / static_cast<double>(all.n_positions());
    report_.not_finite = all.n_not_finite();
    return {};
  }

  // Workers may leave before they are counted.
  void Remember(const StatusReply& status) {
    for (const NodeStatus& node : status.nodes) nodes_[node.node_id] = node;
  }

  // From the first report that our backbone made after its last position.
  Result<void> CountPairs(const std::string& program) {
    SwarmView view(endpoint_);
    const auto begin = steady_clock::now();
    while (steady_clock::now() - begin < kReportPatience) {
      const double waited = Seconds(begin);
      ASSIGN_OR_RETURN(const StatusReply status, view.Status());
      Remember(status);
      for (const BackboneStatus& backbone : status.backbones) {
        if (backbone.program != program || backbone.seconds_since_seen >= waited - 0.05) continue;
        const BackboneReport& counted = backbone.report;
        report_.pairs = counted.pairs;
        report_.pairs_local = counted.pairs_local;
        report_.pairs_by_workers = counted.pairs - std::min(counted.pairs, counted.pairs_local);
        report_.pairs_asked_again = counted.pairs_retried;
        for (const LinkReport& link : counted.links) {
          const NodeStatus& node = nodes_[link.node_id];
          VerifyDecodeWorker worker{.node_id = link.node_id,
                                    .name = node.name.empty() ? "unknown" : node.name,
                                    .device = node.device,
                                    .kernel_class = node.kernel_class};
          worker.same_class = worker.kernel_class == report_.host_kernel_class;
          worker.pairs = link.pairs;
          worker.faults = link.faults;
          report_.workers.push_back(worker);
        }
        std::ranges::sort(report_.workers, {}, &VerifyDecodeWorker::name);
        return {};
      }
      if (signals_->Wait(std::chrono::milliseconds(50))) return Fail(FaultCode::kGone, "interrupted");
    }
    return Fail(FaultCode::kGone,
                "the coordinator does not know how many pairs the workers computed: it has heard "
                "nothing from libllama's plug-in; was the plug-in loaded?");
  }

  // For the verdict.
  Result<LogitComparison> Shaken(double noise, std::uint64_t seed) {
    steps_.Begin(std::format("the bound, run {}: libllama alone, experts shaken", seed));
    DecodeJob job = Job(std::format("shaken{}", seed));
    job.noise = noise;
    job.seed = seed;
    Against against(AlonePath());
    DecodeEvents events;
    events.on_position = [&](std::uint32_t position, std::span<const float> logits) {
      steps_.Show(Count(position + 1));
      return against.Add(logits);
    };
    RETURN_IF_FAULT(RunDecoder(job, report_.tokens, events, *signals_));
    steps_.End();
    return against.comparison();
  }

  const VerifyDecodeOptions& options_;
  LogSink& log_;
  Steps steps_;
  VerifyDecodeReport report_;
  int n_threads_ = 1;
  std::string program_, model_path_, folder_;
  std::optional<ScratchFolder> scratch_;  // outlives whoever writes there
  const StopSignals* signals_ = nullptr;
  HttpEndpoint endpoint_;
  std::map<std::string, NodeStatus> nodes_;  // every worker seen, by id
  std::unique_ptr<ServedModel> served_;
  std::unique_ptr<LocalSwarm> local_;  // after what it borrows
};

}  // namespace

Result<void> CheckVerifyDecode(const VerifyDecodeOptions& options) {
  ASSIGN_OR_RETURN(const ModelFile model, ModelFile::Open(options.model));
  RETURN_IF_FAULT(model.RequireExperts());
  if (IsShard(model)) return Fail(FaultCode::kRefused, "{} is a shard, not a whole model", model.name());
  const std::uint64_t context = model.ArchInteger("context_length").value_or(0);
  if (context != 0 && options.n_tokens > context) {
    return Fail(FaultCode::kRefused, "--tokens {}: {} has a context of {}", options.n_tokens, model.name(), context);
  }
  if (options.text && options.text->empty()) {
    return Fail(FaultCode::kRefused, "--text: no text has no tokens: nothing to compare");
  }
  if (!options.prompt_file.empty()) {
    if (const auto can = CanBeRead(options.prompt_file); !can) return Wrap(can.error(), "--prompt-file");
  }
  if (!options.swarm.empty()) {
    RETURN_IF_FAULT(VisitorEndpoint(options.swarm, options.token_file));
  } else if (const auto device = Device::Find(options.worker_device); !device) {
    return Wrap(device.error(), "--worker-device");
  }
  return {};
}

Result<VerifyDecodeReport> VerifyDecode(const VerifyDecodeOptions& options, LogSink& log) {
  return Run(options, log).Do();
}

}  // namespace linkcpp
