// What `linkcpp join` and `linkcpp-expert-worker` share: options, signals, progress on the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace linkcpp {

// Adds the options to `app` and makes it run a worker until it is stopped; `status` gets the exit status: 0 stopped
// cleanly, 1 failed, 2 wrong usage.
void AddWorkerProgram(CLI::App& app, int& status);

}  // namespace linkcpp
