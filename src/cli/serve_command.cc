// linkcpp serve: the coordinator, and llama-server as its backbone.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <glaze/json.hpp>
#include <memory>
#include <optional>
#include <print>
#include <thread>

#include "base/write_json.h"
#include "cli/beside.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/serve_auto.h"
#include "cli/stop_signals.h"
#include "cli/usage.h"
#include "coordinator/host_command.h"
#include "coordinator/host_process.h"
#include "coordinator/kept.h"
#include "coordinator/reach.h"
#include "coordinator/registry.h"
#include "coordinator/served_model.h"
#include "coordinator/server.h"
#include "coordinator/state_folder.h"
#include "coordinator/status_text.h"
#include "coordinator/token_store.h"
#include "gguf/manifest.h"
#include "gguf/shard.h"
#include "net/http_client.h"
#include "net/tcp.h"

extern char** environ;

namespace linkcpp {
namespace {

constexpr std::chrono::milliseconds kTick{200};
constexpr std::chrono::seconds kStopPatience{10};
constexpr std::chrono::seconds kCoverageEvery{1};  // at most
constexpr std::chrono::seconds kListPatience{20};  // for llama-server --list-devices

struct Options {
  std::string model;
  std::string listen = "127.0.0.1:8090";
  std::string api = "127.0.0.1:8080";
  std::string data_listen;  // "": loopback, or all interfaces when the control plane is off loopback
  std::string state;
  std::string cache_dir;
  std::string local = "allow";
  std::string plugin;
  std::string host_binary = "llama-server";
  int wait_coverage_s = -1;
  bool no_backbone = false;
  bool automatic = false;  // plan for this machine, see cli/serve_auto.h
  bool experts_are_planned = false;
  std::string nodes;  // nodes.json for that plan
  bool json = false;
  std::string program;  // argv[0], for the join line
  std::vector<std::string> host_arguments;
};

// ---- what is said, as lines or as JSON lines

struct StartEvent {
  std::string event = "started";
  std::string model, model_id, url, join, token;
  std::uint64_t slices = 0, expert_bytes = 0;
};
struct PlanEvent {
  std::string event = "plan";
  std::string summary;
  std::vector<std::string> arguments, environment;
};
struct ReadyEvent {
  std::string event = "ready";
  std::string api;
};
struct CoverageEvent {
  std::string event = "coverage";
  std::uint64_t slices_covered = 0, slices = 0, nodes = 0, backbones = 0;
};
struct StopEvent {
  std::string event = "stopped";
};

template <class Event, class... Args>
void Say(bool json, const Event& event, std::format_string<Args...> format, Args&&... args) {
  if (json) {
    std::println("{}", WriteJson(event));
  } else {
    std::println(format, std::forward<Args>(args)...);
  }
  std::fflush(stdout);
}

// ---- the parts

// Asked of llama-server itself, which knows its backends and the variables that hide devices.
bool HasGpu(const std::string& host_binary) {
  const auto host = HostProcess::Start({{host_binary, "--list-devices"}, {}}, "/dev/null");
  const auto deadline = std::chrono::steady_clock::now() + kListPatience;
  while (host && std::chrono::steady_clock::now() < deadline) {
    if ((*host)->Ended()) return ListsGpu((*host)->LastLines());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

Result<HostOptions> PlanHost(const Options& options) {
  HostOptions host;
  const auto binary = FindProgram(options.host_binary);
  if (!binary) {
    return Fail(FaultCode::kLocal,
                "{} was not found: install llama.cpp, name it with --host-binary, or use --no-backbone",
                options.host_binary);
  }
  host.binary = *binary;
  host.experts_are_planned = options.experts_are_planned;
  host.plugin = options.plugin.empty() ? LibraryBeside("libggml-linkcpp.so") : options.plugin;
  if (!std::filesystem::exists(host.plugin)) {
    return Fail(FaultCode::kLocal, "the plug-in {} is not there: build it, or name it with --plugin", host.plugin);
  }
  host.plugin = std::filesystem::absolute(host.plugin).string();
  if (const std::string preload = LibraryBeside("liblinkcpp-preload.so"); std::filesystem::exists(preload)) {
    host.preload = preload;
  }
  const auto api = ParseHostPort(options.api);
  if (!api) return std::unexpected(api.error());
  if (const auto free = CheckPortIsFree(*api); !free) return Wrap(free.error(), "llama-server's API, --api");
  host.api_host = api->host;
  host.api_port = api->port;
  host.local = options.local;
  host.wait_s = options.wait_coverage_s;
  host.user_arguments = options.host_arguments;
  host.has_gpu = HasGpu(host.binary);
  return host;
}

class Serve {
 public:
  Serve(const Options& options, LogSink& log) : options_(options), log_(log) {}

  Result<void> Run() {
    ASSIGN_OR_RETURN(state_, OpenStateFolder(options_.state));
    ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(state_));
    std::optional<HostOptions> host;
    if (!options_.no_backbone) {
      ASSIGN_OR_RETURN(host, PlanHost(options_));
    }
    {
      ProgressBar bar("hashing " + std::filesystem::path(options_.model).filename().string());
      const auto show = [&](std::uint64_t done, std::uint64_t total) { bar.Show(done, total); };
      ASSIGN_OR_RETURN(served_, ServedModel::Load(options_.model, options_.cache_dir, show));
    }
    const StopSignals signals;
    RETURN_IF_FAULT(StartControl());
    if (host) RETURN_IF_FAULT(StartHost(*std::move(host)));
    const Result<void> outcome = Watch(signals);
    StopHost(signals);
    server_.reset();
    if (outcome) Say(options_.json, StopEvent{}, "stopped");
    return outcome;
  }

 private:
  Result<void> StartControl() {
    ASSIGN_OR_RETURN(tokens_, TokenStore::Open(state_ + "/" + kTokenStoreFile));
    ASSIGN_OR_RETURN(join_token_, KeepToken(*tokens_, state_, "join-token", "join (made by serve)"));
    ASSIGN_OR_RETURN(own_token_, KeepToken(*tokens_, state_, "own-token", "serve's own backbone and status"));
    ASSIGN_OR_RETURN(TicketKeys keys, KeepTicketKeys(state_));
    ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options_.listen));
    ServerOptions server_options;
    server_options.listen = options_.listen;
    server_options.version = LINKCPP_VERSION;
    std::string fingerprint;
    off_loopback_ = !IsLoopback(listen.host);
    if (off_loopback_) {
      ASSIGN_OR_RETURN(server_options.certificate, LoadOrMakeCertificate(state_, "linkcpp coordinator"));
      fingerprint = server_options.certificate->fingerprint;
    }
    registry_ = std::make_unique<Registry>(*served_, std::move(keys), RegistryOptions{}, clock_, log_);
    ASSIGN_OR_RETURN(server_, CoordinatorServer::Start(server_options, *served_, *registry_, *tokens_, log_));
    own_url_ = ControlUrl(OwnHost(listen.host), server_->port(), fingerprint);
    const std::string join_url = ControlUrl(ReachableHost(listen.host), server_->port(), fingerprint);

    StartEvent event;
    event.model = served_->name();
    event.model_id = served_->model_id();
    event.url = join_url;
    event.token = join_token_;
    // On this machine as we were started; on others the program has a place of its own.
    const std::string program = off_loopback_ ? "linkcpp" : AsStarted(options_.program);
    event.join = std::format("LINKCPP_TOKEN={} {} join '{}'", join_token_, program, join_url);
    event.slices = served_->manifest().n_slices();
    event.expert_bytes = served_->summary().expert_bytes;
    Say(options_.json, event, "model     {}: {} of experts in {}\ncontrol   {}\njoin      {}", event.model,
        BytesText(event.expert_bytes), CountText(event.slices, "slice"), event.url, event.join);
    return SaveRecord("");
  }

  Result<void> SaveRecord(const std::string& api) {
    std::error_code error;
    const std::string model = std::filesystem::absolute(options_.model, error).string();
    return SaveServeRecord(state_, {own_url_, own_token_, api, model, ::getpid()});
  }

  Result<void> StartHost(HostOptions host) {
    host.model = options_.model;
    host.coordinator = own_url_;
    host.token = own_token_;
    host.data_listen = options_.data_listen;
    if (host.data_listen.empty()) host.data_listen = off_loopback_ ? "0.0.0.0:0" : "127.0.0.1:0";
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    if (!IsLoopback(host.api_host)) {
      log_.Warning("--api {}: llama-server's API is plain HTTP there, for everyone who can reach it", options_.api);
    }
    api_url_ = std::format("http://{}:{}", UrlHost(OwnHost(host.api_host)), host.api_port);
    ASSIGN_OR_RETURN(host_, HostProcess::Start(MakeHostCommand(host, environment), state_ + "/llama-server.log"));
    health_ = HttpClient::Create({api_url_, "", ""});
    return SaveRecord(api_url_);
  }

  // Until a signal comes, or llama-server ends.
  Result<void> Watch(const StopSignals& signals) {
    while (!signals.Wait(kTick)) {
      if (host_ != nullptr) {
        if (const auto how = host_->Ended()) return HostEnded(*how);
        if (!healthy_) AskHealth();
      }
      SayCoverage();
    }
    return {};
  }

  std::unexpected<Fault> HostEnded(const std::string& how) {
    std::string text =
        std::format("llama-server ended {}; its last words (all of them: {}/llama-server.log):", how, state_);
    for (const std::string& line : host_->LastLines()) text += "\n  " + line;
    return Fail(FaultCode::kLocal, "{}", text);
  }

  void AskHealth() {
    const auto reply = health_->Call("GET", "/health", "", std::chrono::milliseconds(500));
    if (!reply || reply->status != 200) return;
    healthy_ = true;
    Say(options_.json, ReadyEvent{.api = api_url_}, "ready     {}", api_url_);
  }

  void SayCoverage() {
    if (clock_.Now() - said_at_ < kCoverageEvery) return;
    const StatusReply status = registry_->Status();
    CoverageEvent now;
    now.slices_covered = status.slices_covered;
    now.slices = status.n_slices;
    now.nodes = status.nodes.size();
    now.backbones = status.backbones.size();
    if (said_ && said_->slices_covered == now.slices_covered && said_->nodes == now.nodes &&
        said_->backbones == now.backbones) {
      return;
    }
    said_ = now;
    said_at_ = clock_.Now();
    Say(options_.json, now, "coverage  {} of {}, {}, {}", now.slices_covered, CountText(now.slices, "slice"),
        CountText(now.nodes, "node"), CountText(now.backbones, "backbone"));
  }

  // A second signal does not wait.
  void StopHost(const StopSignals& signals) {
    if (host_ == nullptr || host_->Ended()) return;
    host_->Terminate();
    const auto deadline = std::chrono::steady_clock::now() + kStopPatience;
    while (!host_->Ended()) {
      if (signals.Wait(std::chrono::milliseconds(50)) || std::chrono::steady_clock::now() > deadline) {
        host_->Kill();
        break;
      }
    }
    host_.reset();
  }

  const Options& options_;
  LogSink& log_;
  const SteadyClock clock_;
  std::string state_, join_token_, own_token_, own_url_, api_url_;
  bool off_loopback_ = false;
  std::unique_ptr<ServedModel> served_;
  std::unique_ptr<TokenStore> tokens_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<HostProcess> host_;
  std::unique_ptr<HttpClient> health_;
  bool healthy_ = false;
  std::optional<CoverageEvent> said_;
  TimePoint said_at_{};
};

void ApplyPlan(Options& options, const AutoPlan& plan) {
  PlanEvent event{.summary = plan.summary, .arguments = plan.arguments, .environment = {}};
  std::string words;
  for (const auto& [name, value] : plan.environment) {
    if (std::getenv(name.c_str()) != nullptr) continue;  // the user's own wins
    ::setenv(name.c_str(), value.c_str(), 1);
    event.environment.push_back(name + "=" + value);
    words += std::format("{}={} ", name, value);
  }
  for (const std::string& argument : plan.arguments) words += argument + " ";
  options.experts_are_planned =
      std::ranges::contains(plan.arguments, "-ngl");  // else the user chose what is on devices
  options.host_arguments.insert(options.host_arguments.begin(), plan.arguments.begin(), plan.arguments.end());
  Say(options.json, event, "plan      {}\nuses      {}", plan.summary, words);
}

// What cannot be right whatever the machine is like.
Result<void> CheckUsage(const Options& options) {
  ASSIGN_OR_RETURN(const ModelFile model, ModelFile::Open(options.model));
  if (IsShard(model)) {
    return Fail(FaultCode::kRefused, "--model: {} is a shard, a part of a model: serve the model it was cut from",
                model.name());
  }
  if (!options.plugin.empty() && !options.no_backbone && !std::filesystem::exists(options.plugin)) {
    return Fail(FaultCode::kRefused, "--plugin: {} is not there", options.plugin);
  }
  return {};
}

void RunServe(Options& options, CommandContext& context) {
  if (const auto usable = CheckUsage(options); !usable) return ReportUsage(context, usable.error(), options.json);
  if (options.automatic) {  // before anything else: planning may start the program anew
    const auto plan = PlanForServe(options.model, options.nodes, options.host_arguments);
    if (!plan) return ReportUsage(context, plan.error(), options.json);
    if (!plan->missing.empty()) return ReportFault(context, {FaultCode::kLocal, plan->missing}, options.json);
    ApplyPlan(options, *plan);
  }
  options.program = context.program;
  const auto log = MakeStderrLog("serve");
  if (const auto outcome = Serve(options, *log).Run(); !outcome) ReportFault(context, outcome.error(), options.json);
}

}  // namespace

void AddServeCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  options->cache_dir = DefaultCacheDir();
  CLI::App* command = app.add_subcommand("serve", "serve a model: the coordinator, with llama-server as its backbone");
  command->add_option("-m,--model", options->model, "the model: a GGUF file, or the first of its splits")->required();
  command->add_option("--listen", options->listen, "where workers reach the coordinator; off loopback it speaks TLS")
      ->check(IsHostPort(true))
      ->capture_default_str();
  command->add_option("--api", options->api, "where llama-server offers its API")
      ->check(IsHostPort(false))
      ->capture_default_str();
  command
      ->add_option("--data-listen", options->data_listen,
                   "where workers reach the backbone (default 127.0.0.1:0, or 0.0.0.0:0 when --listen is off "
                   "loopback)")
      ->check(IsHostPort(true));
  command->add_option("--state", options->state, "folder for tokens and keys (default ~/.local/state/linkcpp)");
  command->add_option("--cache-dir", options->cache_dir, "where the manifest is kept if not beside the model")
      ->capture_default_str();
  command->add_flag("--no-backbone", options->no_backbone, "the coordinator alone, for backbones started elsewhere");
  command
      ->add_option("--wait-coverage", options->wait_coverage_s,
                   "seconds the backbone waits for full coverage before it computes experts itself")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--local", options->local, "may the backbone compute experts that no worker holds?")
      ->check(CLI::IsMember({"allow", "deny"}))
      ->capture_default_str();
  command->add_option("--plugin", options->plugin, "libggml-linkcpp.so (default: ../lib beside this program)");
  command->add_option("--host-binary", options->host_binary, "llama-server")->capture_default_str();
  command
      ->add_flag(
          "--auto", options->automatic,
          "plan for this machine as `linkcpp plan` does, and start llama-server with that; arguments after -- win")
      ->excludes("--no-backbone");
  command
      ->add_option("--nodes", options->nodes, "with --auto: nodes.json of the workers that will join (docs/planner.md)")
      ->needs("--auto");
  command->add_flag("--json", options->json, "print events as JSON, one a line");
  command->add_option("host-arguments", options->host_arguments, "after --: arguments for llama-server");
  command->footer("example:\n  linkcpp serve -m MODEL.gguf -- -c 4096 -np 4");
  command->callback([options, &context] { RunServe(*options, context); });
}

}  // namespace linkcpp
