// A placement in llama.cpp's own words: the options of its command line, the plug-in's environment, the workers'
// commands.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "planner/layout.h"
#include "planner/machine.h"
#include "planner/memory.h"
#include "planner/model_sizes.h"
#include "planner/placement.h"

namespace linkcpp {

// How a plan that uses nodes is started.
struct SwarmStart {
  std::string coordinator;  // URL of the one that runs, as the user gave it; "": `linkcpp serve` starts one
  std::string token_file;   // of that one; "": its token is in LINKCPP_TOKEN
  std::string data_listen = "0.0.0.0:0";                        // where its workers dial us
  std::string plugin = "/path/to/libggml-linkcpp.so", preload;  // preload "": none
};

struct Wiring {
  std::vector<std::string> arguments;                            // llama-server's, without -m
  std::vector<std::string> overrides;                            // the -ot values among them
  std::vector<std::pair<std::string, std::string>> environment;  // the plug-in's; empty without a swarm
  std::string command;                                           // complete, quoted for a shell
  std::vector<std::string> workers;  // one command for each node that does not run yet; TOKEN and URL as serve says
};

// "(3[89]|4[0-7])" for 38 to 47: a regular expression of exactly these numbers. No commas: -ot splits there.
std::string NumberPattern(std::span<const std::uint32_t> ascending);

// `model_path` as the user wrote it. The placement must be feasible.
Wiring WirePlacement(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                     const Placement& placement, const std::string& model_path, const SwarmStart& start);

// The question what llama.cpp would allocate for it. Experts on the swarm count as outside the devices, like those in
// RAM.
LayoutRequest LayoutRequestOf(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                              const Placement& placement, const Wiring& wiring, const std::string& model_path);

}  // namespace linkcpp
