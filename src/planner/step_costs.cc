#include "planner/step_costs.h"

#include <algorithm>
#include <format>

namespace linkcpp {
namespace {

// A step on one row: 0.45 us at 128 values, 1.0 at 1024, 1.7 at 2048, 2.2 at 2880, 2.35 at 3072.
constexpr double kStepSeconds = 0.35e-6, kStepSecondsAValue = 0.65e-9;
// Flash attention of one token, operations a second and core: 7 to 11 over 256 cells, 2 to 6 over the next 3840.
constexpr double kAttentionFlops = 8e9, kFarAttentionFlops = 5e9;
constexpr double kFewCells = 256, kFlopsAValue = 4;  // a product and a sum, with K and with V
// Steps of attention beside it (norm, two rotations, two rows of the cache, adding up), and those of a router.
constexpr double kAttentionSteps = 8, kNormSteps = 4, kRouterSteps = 11;
// Of a batch: attention among 512 rows in operations a second and core, a delta net's recurrence likewise (a value of
// its state is scaled, read, changed and read again for each token).
constexpr double kRows = 512, kBatchAttentionFlops = 35e9, kFlopsAStateValue = 8, kStateFlops = 12e9;
constexpr double kLoopbackGbs = 3;  // 2.4 to 4.1
constexpr double kGraphSeconds = 5e-6, kWakeSeconds = 8.5e-6;
constexpr double kBytesAValue = 4;  // K and V in f16

}  // namespace

void AssumeStepCosts(const ModelSizes& sizes, Machine& machine) {
  const double cores = std::max(1u, machine.n_cores);
  machine.step_seconds = kStepSeconds + kStepSecondsAValue * sizes.n_embd;
  const double values = static_cast<double>(sizes.n_head) * sizes.head_length;
  machine.attention_seconds = kFlopsAValue * values * kFewCells / (kAttentionFlops * cores) +
                              (kAttentionSteps + (sizes.qk_norms ? kNormSteps : 0)) * machine.step_seconds;
  const double kept = static_cast<double>(sizes.n_head_kv) * sizes.head_length;
  const double by_flops = values > 0 ? kBytesAValue * kept / (kFlopsAValue * values) * kFarAttentionFlops * cores : 0;
  machine.attention_gbs = std::min(machine.ram_gbs, by_flops / 1e9);
  std::uint32_t n_used = 0;
  for (const LayerSizes& layer : sizes.layers) n_used = std::max(n_used, layer.n_used);
  machine.router_seconds = (kRouterSteps + n_used) * machine.step_seconds;
  BatchRates& batch = machine.batch;
  batch.n_rows = kRows;
  batch.step_seconds = kStepSeconds + kStepSecondsAValue * sizes.n_embd * kRows;
  batch.attention_seconds = kFlopsAValue * values * kRows * kRows / (kBatchAttentionFlops * cores) +
                            (kAttentionSteps + (sizes.qk_norms ? kNormSteps : 0)) * batch.step_seconds;
  batch.router_seconds = (kRouterSteps + n_used) * batch.step_seconds;
  std::uint64_t state = 0;
  for (const LayerSizes& layer : sizes.layers) state = std::max(state, layer.recurrent_bytes / 4);
  batch.delta_net_seconds = static_cast<double>(state) * kFlopsAStateValue * kRows / (kStateFlops * cores);
  machine.loopback_gbs = kLoopbackGbs;
  machine.graph_seconds = kGraphSeconds;
  machine.wake_seconds = kWakeSeconds;
  machine.token_seconds = kTokenSeconds;
}

std::string StepCostsText(const Machine& machine) {
  std::string delta_net;
  if (machine.delta_net_seconds > 0)
    delta_net = std::format(", its delta net {:.0f} us", 1e6 * machine.delta_net_seconds);
  return std::format(
      "a layer's attention {:.1f} us, its router {:.1f} us{}, another step {:.2f} us; a graph {:.1f} us, a wake-up "
      "{:.1f} us",
      1e6 * machine.attention_seconds, 1e6 * machine.router_seconds, delta_net, 1e6 * machine.step_seconds,
      1e6 * machine.graph_seconds, 1e6 * machine.wake_seconds);
}

}  // namespace linkcpp
