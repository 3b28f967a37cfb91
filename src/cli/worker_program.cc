#include "cli/worker_program.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <print>
#include <string>
#include <vector>

#include "base/log.h"
#include "gguf/shard.h"
#include "kernel/openmp_spin.h"
#include "wire/control.h"
#include "worker/byte_size.h"
#include "worker/worker.h"

namespace linkcpp {
namespace {

struct Arguments {
  std::string url, token, token_file, memory, layers, experts, device, backend, name, cache, model;
  int threads = 0;
  bool json = false;
};

// ---------------------------------------------------------------- signals

std::atomic<Worker*> running_worker{nullptr};
std::atomic<int> signals_seen{0};

extern "C" void OnSignal(int signal) {
  if (signals_seen.fetch_add(1) > 0) _exit(128 + signal);  // the second one: at once
  if (Worker* worker = running_worker.load()) worker->Stop();
}

void StopOnSignals(Worker* worker) {
  running_worker = worker;
  struct sigaction action{};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

// ---------------------------------------------------------------- showing progress

std::string JsonText(std::string_view text) {
  std::string escaped = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      escaped += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      escaped += std::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      escaped += c;
    }
  }
  return escaped + "\"";
}

std::string Count(std::uint64_t n, std::string_view what) {
  return std::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

// One of: JSON lines, a bar that is redrawn on a terminal, plain lines when something changes.
class Display {
 public:
  explicit Display(bool json) : json_(json), terminal_(!json && ::isatty(STDOUT_FILENO) == 1) {}

  void Show(const WorkerProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    const bool news = progress.state != last_.state || progress.slices_ready != last_.slices_ready ||
                      progress.backbones != last_.backbones || progress.error != last_.error;
    const auto age = now - shown_at_;
    if (json_) {
      if (!news && age < std::chrono::seconds(5)) return;
      if (news && progress.state == last_.state && progress.error == last_.error &&
          age < std::chrono::milliseconds(500) && progress.slices_ready != progress.slices_wanted) {
        return;
      }
      ShowJson(progress);
    } else if (terminal_) {
      ShowBar(progress);
    } else if (progress.state != last_.state || progress.error != last_.error ||
               progress.backbones != last_.backbones ||
               (progress.state == "ready" && progress.slices_ready != last_.slices_ready) ||
               (progress.state == "downloading" && news && age > std::chrono::seconds(5))) {
      std::println("{}", Line(progress));
    } else {
      return;
    }
    std::fflush(stdout);
    last_ = progress;
    shown_at_ = now;
  }

  void End() {
    if (terminal_ && width_ > 0) std::println("");
  }

 private:
  static std::string Line(const WorkerProgress& p) {
    std::string text;
    if (p.state == "ready") {
      text = std::format("ready: {}, {}", Count(p.slices_ready, "slice"), FormatByteSize(p.memory_used_bytes));
    } else if (p.state == "downloading") {
      text = std::format("downloading: {} of {} slices, {} of {}", p.slices_ready, p.slices_wanted,
                         FormatByteSize(p.downloaded_bytes), FormatByteSize(p.downloaded_bytes + p.wanted_bytes));
    } else {
      text = p.state;
      if (p.slices_ready > 0) text += std::format(": {} held", Count(p.slices_ready, "slice"));
    }
    if (p.backbones > 0) text += ", " + Count(static_cast<std::uint64_t>(p.backbones), "backbone");
    if (p.pairs_computed > 0) text += std::format(", {} computed", Count(p.pairs_computed, "pair"));
    if (!p.error.empty()) text += std::format(" ({})", p.error);
    return text;
  }

  void ShowBar(const WorkerProgress& p) {
    std::string text = Line(p);
    const std::uint64_t total = p.downloaded_bytes + p.wanted_bytes;
    if (p.state == "downloading" && total > 0) {
      constexpr std::size_t kCells = 24;
      const auto full =
          static_cast<std::size_t>(static_cast<double>(p.downloaded_bytes) / static_cast<double>(total) * kCells);
      text = std::format("[{}{}] {}", std::string(full, '#'), std::string(kCells - full, '.'), text);
    }
    const std::size_t columns = 100;
    if (text.size() > columns) text.resize(columns);
    const std::size_t width = text.size();
    if (width < width_) text += std::string(width_ - width, ' ');
    std::print("\r{}", text);
    width_ = width;
  }

  static void ShowJson(const WorkerProgress& p) {
    std::println(
        R"({{"state": {}, "model": {}, "node_id": {}, "slices_ready": {}, "slices_wanted": {}, "downloaded_bytes": {}, )"
        R"("wanted_bytes": {}, "memory_used_bytes": {}, "memory_bytes": {}, "backbones": {}, "dispatches": {}, )"
        R"("pairs_computed": {}, "error": {}}})",
        JsonText(p.state), JsonText(p.model), JsonText(p.node_id), p.slices_ready, p.slices_wanted, p.downloaded_bytes,
        p.wanted_bytes, p.memory_used_bytes, p.memory_bytes, p.backbones, p.dispatches, p.pairs_computed,
        JsonText(p.error));
  }

  const bool json_, terminal_;
  WorkerProgress last_;
  std::chrono::steady_clock::time_point shown_at_;
  std::size_t width_ = 0;
};

// ---------------------------------------------------------------- arguments

Result<std::string> FindToken(const Arguments& arguments) {
  if (!arguments.token.empty()) {
    std::println(stderr,
                 "linkcpp: warning: a token on the command line can be seen in the process list; LINKCPP_TOKEN or "
                 "--token-file keep it private");
    return arguments.token;
  }
  if (!arguments.token_file.empty()) {
    std::ifstream file(arguments.token_file);
    std::string token;
    if (!(file >> token)) return Fail(FaultCode::kRefused, "there is no token in {}", arguments.token_file);
    return token;
  }
  const char* token = std::getenv("LINKCPP_TOKEN");
  if (token == nullptr || *token == '\0') {
    return Fail(FaultCode::kRefused,
                "which token? Set LINKCPP_TOKEN or give --token-file; `linkcpp serve` prints one and `linkcpp token "
                "new` makes more");
  }
  return std::string(token);
}

// kRefused: wrong usage.
Result<WorkerOptions> ToOptions(const Arguments& arguments) {
  WorkerOptions options;
  std::string url = arguments.url;
  if (url.empty()) {
    const char* from_environment = std::getenv("LINKCPP_COORDINATOR");
    if (from_environment == nullptr || *from_environment == '\0') {
      return Fail(
          FaultCode::kRefused,
          "which coordinator? Give its URL (the join line that `linkcpp serve` prints) or set LINKCPP_COORDINATOR");
    }
    url = from_environment;
  }
  ASSIGN_OR_RETURN(const std::string token, FindToken(arguments));
  auto endpoint = ParseEndpoint(url, token);
  if (!endpoint) return Fail(FaultCode::kRefused, "{}", endpoint.error().text);
  options.coordinator = *endpoint;
  if (!arguments.memory.empty()) {
    ASSIGN_OR_RETURN(options.memory_bytes, ParseByteSize(arguments.memory));
    if (options.memory_bytes == 0) return Fail(FaultCode::kRefused, "--memory {}: give some", arguments.memory);
  }
  for (const std::string* ranges : {&arguments.layers, &arguments.experts}) {
    if (auto parsed = ParseRanges(*ranges, 65535); !parsed) return std::unexpected(parsed.error());
  }
  options.layers = arguments.layers;
  options.experts = arguments.experts;
  options.name = arguments.name;
  options.model = arguments.model;
  options.cache_dir = arguments.cache;
  options.software = "linkcpp " LINKCPP_VERSION;
  options.device = {.name = arguments.device, .n_threads = arguments.threads, .backend_path = arguments.backend};
  return options;
}

void ShowFault(const Fault& fault, bool json) {
  std::println(stderr, "linkcpp: {}", fault.text);
  if (json) std::println("{}", ErrorJson(fault.code, fault.text));
}

int RunWorkerProgram(const Arguments& arguments) {
  RestartWithOpenMpSpin();
  const auto options = ToOptions(arguments);
  if (!options) {
    ShowFault(options.error(), arguments.json);
    return 2;
  }
  // The bar and the log share a terminal: only what needs a person's eye goes to the log then.
  const bool bar = !arguments.json && ::isatty(STDOUT_FILENO) == 1;
  const auto log = MakeStderrLog("worker", bar ? LogLevel::kError : LogLevel::kInfo);
  Display display(arguments.json);
  auto worker = Worker::Create(*options, *log, [&display](const WorkerProgress& progress) { display.Show(progress); });
  if (!worker) {
    ShowFault(worker.error(), arguments.json);
    return 1;
  }
  StopOnSignals(worker->get());
  const auto done = (*worker)->Run();
  running_worker = nullptr;
  display.End();
  if (!done) {
    ShowFault(done.error(), arguments.json);
    return 1;
  }
  return 0;
}

}  // namespace

void AddWorkerProgram(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  app.add_option("url", arguments->url,
                 "The coordinator: http://127.0.0.1:8090, or the join line https://host:8090#sha256=…\n(default: "
                 "LINKCPP_COORDINATOR)");
  app.add_option("--token", arguments->token,
                 "The join token. Better: LINKCPP_TOKEN or --token-file, which other users can not see");
  app.add_option("--token-file", arguments->token_file, "A file that holds the token");
  app.add_option("--memory", arguments->memory,
                 "How much memory to give: 512M, 4G, 1.5GiB (default: half of what is free)");
  app.add_option("--layers", arguments->layers,
                 "Hold slices of these layers, e.g. 0:2,5 (default: the coordinator chooses)");
  app.add_option("--experts", arguments->experts, "Hold these experts of the layers, e.g. 0:16,40");
  app.add_option("--device", arguments->device, "cpu, auto, or a ggml device name such as Vulkan0 (default: auto)");
  app.add_option("--backend", arguments->backend,
                 "Load this ggml backend library, e.g. a CPU variant, and use its device whatever --device says")
      ->check(CLI::ExistingFile);
  app.add_option("--threads", arguments->threads, "CPU threads (default: one per core)")->check(CLI::Range(0, 1024));
  app.add_option("--name", arguments->name, "A name for people, up to 64 bytes (default: the host name)")
      ->check(CLI::Validator(
          [](std::string& name) { return name.size() <= kMaxNameBytes ? "" : "longer than 64 bytes"; }, ""));
  app.add_option("--cache", arguments->cache, "Where slices are kept between runs (default: ~/.cache/linkcpp)");
  app.add_option("--model", arguments->model, "Which of the coordinator's models, by name or id");
  app.add_flag("--json", arguments->json, "Progress as JSON lines on standard output");
  app.footer(
      "Example: LINKCPP_TOKEN=… linkcpp join http://127.0.0.1:8090 --memory 4G\n"
      "Exit status: 0 stopped by Ctrl-C or SIGTERM, 1 failed, 2 wrong usage. A second Ctrl-C ends it at once.");
  app.callback([arguments, &status] { status = RunWorkerProgram(*arguments); });
}

}  // namespace linkcpp
