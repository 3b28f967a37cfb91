// How fast a placement should run, and what bounds it. Every formula is in docs/planner.md.
//
// Bandwidths, round trips, uplinks, and what a step of a graph and a wake-up cost on this machine: all of them measured
// beforehand or given, none fitted to a measured speed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/machine.h"
#include "planner/memory.h"
#include "planner/model_sizes.h"
#include "planner/placement.h"

namespace linkcpp {

// Tokens a second when every layer waits for one round trip and nothing else costs anything.
double RoundTripCeiling(std::uint32_t n_layers, double rtt_ms);
// Tokens a second that an uplink lets through: `row_bytes` to each of `n_workers` a layer.
double UplinkCeiling(std::uint32_t n_layers, double n_workers, std::uint64_t row_bytes, double up_mbits);
// The round trip at which sending a layer away costs what computing it here does: reading `local_bytes` at `local_gbs`
// here, `remote_bytes` at `remote_gbs` on the slowest worker. Negative: here is faster even with none.
double BreakEvenRttMs(std::uint64_t local_bytes, double local_gbs, std::uint64_t remote_bytes, double remote_gbs);
// How many of a layer's experts a batch touches when routing is uniform.
double DistinctExperts(std::uint32_t n_experts, std::uint32_t n_used, double n_tokens);

// One layer's experts computed by nodes, one token. Slices lie on nodes in proportion to their memory, and each of the
// token's experts is drawn anew: the expectation over that of the slowest node, exactly.
struct SwarmLayer {
  double seconds = 0;         // round trip, rows both ways, wake-ups, and the kernel
  double kernel_seconds = 0;  // of it the slowest node's reading (round trips and rows at zero)
  double hop_seconds = 0;     // of it waking threads and starting graphs
  double workers = 0;         // distinct nodes
};
SwarmLayer PredictSwarmLayer(const LayerSizes& layer, const Machine& machine, std::uint64_t row_bytes);

// Where a step's time goes.
struct Share {
  std::string what;   // "VRAM", "RAM", "swarm", "disk", "copying to the device"
  std::string bound;  // "bandwidth", "computing", "steps", "round trip", "wake-ups", "uplink", "worker"
  double seconds = 0;
};
struct Speed {
  double tokens_per_second = 0;
  std::vector<Share> shares;  // the slowest first
};

struct Prediction {
  Speed decode;                                       // one sequence, an empty context
  Speed decode_full;                                  // the same with the context full
  Speed prefill;                                      // per token of a batch
  double uplink_ceiling = 0, round_trip_ceiling = 0;  // decode; 0: no swarm
};

Prediction Predict(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                   const Placement& placement);

}  // namespace linkcpp
