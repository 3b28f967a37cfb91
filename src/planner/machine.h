// The machine a plan is for: its devices, memory, disk, and the nodes that would hold experts for it.
//
// Figures only, each with where it came from left to whoever fills it in. GB/s are 10^9 bytes a second.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "planner/model_sizes.h"

namespace linkcpp {

struct FastDevice {
  std::string name;
  std::uint64_t memory_bytes = 0;
  double read_gbs = 0;
  double tflops = 0;                     // of matrix products in a prompt
  bool here = false;                     // a device of this machine, under ggml's name; else one that is only planned
  bool left_out = false;                 // holds nothing, and llama.cpp is told not to use it (WithoutUselessDevices)
  std::vector<WeightKind> refuses = {};  // that it does not compute with, so that llama.cpp would leave them in RAM

  bool Takes(const WeightKind& kind) const { return !std::ranges::contains(refuses, kind); }
  std::uint64_t RefusedBytes(const LayerSizes& layer) const;  // of all but its experts
  std::uint64_t RefusedOutputBytes(const ModelSizes& sizes) const;
};

struct Node {
  std::string name;
  std::uint64_t memory_bytes = 0;  // for slices
  double read_gbs = 0;             // how fast it reads them
  double rtt_ms = 0;               // one small request and its answer, without computing
  double up_mbits = 0;             // from the backbone to the node; 0 for a node here: as fast as loopback
  double down_mbits = 0;           // from the node to the backbone
  double tflops = 0.2;
  double batch_gbs = 0;  // as BatchRates::expert_gbs, measured for a node here; 0: by tflops
  bool here = false;     // a worker on this machine: its kernel shares our memory and cores, rtt_ms is what is added
  std::uint32_t threads = 0;  // of a worker here; 0: one a core
  bool joined = false;        // runs, and has joined the coordinator that the plan is for
};

// What a batch of a prompt takes on the CPU, all of its rows at once.
struct BatchRates {
  std::uint32_t n_rows = 0;  // that it is of; 0: nothing was measured or assumed
  double dense_gbs = 0;      // weights times rows, 10^9 bytes a second; 0: by cpu_tflops
  double expert_gbs = 0;     // likewise, of experts that are drawn evenly; 0: by cpu_tflops
  double worker_gbs = 0;     // likewise of a worker here with all cores, with what it does around the products
  double attention_seconds = 0, router_seconds = 0, step_seconds = 0;  // of a layer, all rows
  double delta_net_seconds = 0;                                        // of a layer's recurrence; 0: only its steps
};

struct Machine {
  bool has_other_devices = false;   // beside `devices`, here, which llama.cpp has to be told not to use
  std::vector<FastDevice> devices;  // in llama.cpp's order; empty: the CPU does everything
  std::uint64_t ram_bytes = 0;      // what the plan may use
  double ram_gbs = 0;               // plain reading
  double dense_gbs = 0;             // reading as the CPU's kernels do it: matrices every token needs; 0: as ram_gbs
  double expert_gbs = 0;            // chosen experts
  double attention_gbs = 0;         // K and V; 0: as ram_gbs
  double attention_seconds = 0, router_seconds = 0;  // of a layer, beside matrices and what depends on the context
  double delta_net_seconds = 0;  // of a layer, likewise, with its state copied out and back; 0: by ram_gbs and steps
  double step_seconds = 0;       // any other step of a graph, on one row
  double graph_seconds = 0;      // starting and ending a graph
  double token_seconds = 0;      // llama.cpp's own work for a token, between two graphs
  double wake_seconds = 0;       // waking a sleeping thread, half a round trip on loopback
  BatchRates batch;
  double loopback_gbs = 0;      // a long message between two threads here, copied at both ends; 0: links cost nothing
  double loopback_row_gbs = 0;  // likewise one token's rows, which are in no cache; 0: as loopback_gbs
  double cpu_tflops = 0;
  std::uint32_t n_cores = 0;     // 0: not known, workers here share nothing
  double slice_seconds = 0.003;  // that the scheduler lets a thread run while another waits for its core
  double link_gbs = 0;           // between RAM and devices
  bool amx = false;              // ggml packs the CPU's matrices for AMX, which makes some of them larger
  double disk_gbs = 0;           // 0: experts may not stay on disk
  std::vector<Node> nodes;
};

// nodes.json, docs/planner.md: [{"name": "pc1", "memory": "8GiB", "read_gbs": 20, "rtt_ms": 0.3, "up_mbits": 1000,
// "down_mbits": 1000, "tflops": 0.2}, ...]; tflops may be left out. {"here": true, "threads": 1} is a worker on this
// machine: read_gbs, rtt_ms and the link may be left out then (read_gbs 0: to be measured). `name`: of the file, for
// messages. kRefused: not JSON, a field that is missing, unknown, or out of its range; one line that says which.
Result<std::vector<Node>> ParseNodes(std::string_view json, std::string_view name);

// Takes out the nodes that do not hold even one slice of `slice_bytes`; one line that names them, "" for none.
std::string DropUselessNodes(std::vector<Node>& nodes, std::uint64_t slice_bytes);

}  // namespace linkcpp
