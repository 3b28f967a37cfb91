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

struct Wiring {
  std::vector<std::string> arguments;                            // llama-server's, without -m
  std::vector<std::string> overrides;                            // the -ot values among them
  std::vector<std::pair<std::string, std::string>> environment;  // the plug-in's; empty without a swarm
  std::string command;                                           // complete, quoted for a shell
  std::vector<std::string> workers;                              // one command for each node
};

// "(3[89]|4[0-7])" for 38 to 47: a regular expression of exactly these numbers. No commas: -ot splits there.
std::string NumberPattern(std::span<const std::uint32_t> ascending);

// `model_path` as the user wrote it. The placement must be feasible.
Wiring WirePlacement(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                     const Placement& placement, const std::string& model_path);

// The question what llama.cpp would allocate for it. Experts on the swarm count as outside the devices, like those in RAM.
LayoutRequest LayoutRequestOf(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                              const Placement& placement, const Wiring& wiring, const std::string& model_path);

}  // namespace linkcpp
