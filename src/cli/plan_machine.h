// The machine a plan is for, as the command line says it or as it is found here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"
#include "planner/machine.h"
#include "planner/model_sizes.h"

namespace linkcpp {

// A coordinator on loopback: its workers are on this machine too.
bool IsHere(std::string_view url);

struct MachineWish {
  std::string vram;  // sizes with commas between, or NAME=size for a device here; "none"; "": what is free
  std::optional<double> vram_rate, ram_rate;
  std::string ram, disk;              // "": what is available now; no disk
  bool measure_again = false;         // what was measured within the last hour
  std::uint32_t n_batch = 0;          // rows of a prompt at once, to be measured; 0: prompts do not matter
  std::string nodes;                  // path of nodes.json
  std::string swarm_url, token_file;  // a running coordinator instead; "": the token is in LINKCPP_TOKEN
};

// Everything assumed or measured is said in `assumptions`, one line each. kRefused: a size, rate or nodes file that can
// not be used; kLocal, kGone: a file or coordinator that can not be read.
Result<Machine> ReadMachine(const MachineWish& wish, const ModelFile& model, const ModelSizes& sizes,
                            std::vector<std::string>& assumptions);

}  // namespace linkcpp
