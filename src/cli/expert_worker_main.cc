// linkcpp-expert-worker: a worker by itself. Needs libggml, not libllama, and nothing of the coordinator.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <print>

#include "cli/usage.h"
#include "cli/worker_program.h"

int main(int argc, char** argv) {
  try {
    CLI::App app("linkcpp-expert-worker: give this machine's memory to a swarm: hold expert slices and compute them",
                 "linkcpp-expert-worker");
    app.set_version_flag("--version", "linkcpp-expert-worker " LINKCPP_VERSION);
    int status = 0;
    linkcpp::AddWorkerProgram(app, status);
    return linkcpp::RunCommandLine(app, argc, argv, status);
  } catch (const std::exception& error) {
    std::println(stderr, "linkcpp-expert-worker: unexpected failure: {}", error.what());
    return 1;
  }
}
