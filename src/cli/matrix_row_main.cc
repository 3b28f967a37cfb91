// linkcpp-matrix-row: one row of `linkcpp matrix`, in a process of its own because a process holds one variant of a
// backend. Needs libggml only, so it is also what gets built for other CPUs.
//
//   linkcpp-matrix-row [--device NAME] [--backend PATH] [--threads N] JOB ANSWER
//   linkcpp-matrix-row --list       devices, one a line: name, description, gpu|cpu, library, features (tab between)
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <print>

#include "base/log.h"
#include "kernel/device.h"
#include "matrix/job.h"
#include "matrix/row_status.h"
#include "matrix/run_job.h"

namespace linkcpp {
namespace {

struct Options {
  DeviceOptions device{.name = "cpu"};
  std::string job, answer;
  bool list = false;
};

int Fail(const Fault& fault, int status) {
  std::println(stderr, "linkcpp-matrix-row: {}", fault.text);
  return status;
}

int Run(const Options& options) {
  if (options.list) {
    for (const DeviceInfo& device : Device::List()) {
      std::println("{}\t{}\t{}\t{}\t{}", device.name, device.description, device.is_gpu ? "gpu" : "cpu", device.library,
                   device.features);
    }
    return 0;
  }
  const auto log = MakeStderrLog("matrix-row", LogLevel::kWarning);
  const auto device = Device::Open(options.device, *log);
  if (!device) return Fail(device.error(), kRowHasNoDevice);
  const auto job = ReadJob(options.job);
  if (!job) return Fail(job.error(), 1);
  if (const auto done = WriteAnswer(RunJob(*job, **device), options.answer); !done) return Fail(done.error(), 1);
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("linkcpp-matrix-row: computes one job of `linkcpp matrix` on one device", "linkcpp-matrix-row");
  Options options;
  app.add_option("job", options.job, "the job file that `linkcpp matrix` wrote");
  app.add_option("answer", options.answer, "where the answer goes");
  app.add_option("--device", options.device.name, "cpu, auto, or a ggml device name")->capture_default_str();
  app.add_option("--backend", options.device.backend_path, "ggml backend library to load instead of all");
  app.add_option("--threads", options.device.n_threads, "threads of a CPU device; 0: one per core")
      ->check(CLI::Range(0, 512));
  app.add_flag("--list", options.list, "list devices instead");
  app.footer(
      "Exit status: 0 done, 1 failed, 2 wrong usage, 3 the device or backend is not to be had here.\n"
      "Example: linkcpp-matrix-row --list");
  try {
    app.parse(argc, argv);
    if (!options.list && options.answer.empty()) throw CLI::RequiredError("JOB ANSWER");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Run(options);
}

}  // namespace
}  // namespace linkcpp

int main(int argc, char** argv) {
  try {
    return linkcpp::Main(argc, argv);
  } catch (const std::exception& error) {
    std::println(stderr, "linkcpp-matrix-row: unexpected failure: {}", error.what());
    return 1;
  }
}
