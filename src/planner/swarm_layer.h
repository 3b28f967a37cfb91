// What the prediction of decode and of prefill share about nodes: links, shares of slices, cores that workers share.
// Private to predict.cc; PredictSwarmLayer is declared in predict.h.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "planner/machine.h"

namespace linkcpp {

double Seconds(double bytes, double gbs);        // 0 where the rate is not known
double MbitSeconds(double bytes, double mbits);  // likewise
// A row's way to a node or back: its link, or loopback.
double LinkSeconds(const Node& node, const Machine& machine, double bytes, double mbits);
// Slices lie on nodes in proportion to their memory.
std::vector<double> NodeShares(std::span<const Node> nodes);

// When the last of these is over: (seconds, threads) of workers on this machine, which all begin at once. As many
// threads run as there are cores, and one that has run for a slice goes to the end of the queue while others wait.
double Makespan(std::span<const std::pair<double, std::uint32_t>> jobs, std::uint32_t n_cores, double slice_seconds);

}  // namespace linkcpp
