// Who should hold which slice: every slice once before any slice twice, and nothing moves that need not.
//
// A pure function of the model's geometry and of what the nodes give and have; the coordinator calls it whenever a node
// comes or goes. Knows nothing of sockets, clocks or files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace linkcpp {

struct LayerGeometry {
  LayerId layer;
  std::uint32_t n_experts = 0;
  std::uint64_t slice_bytes = 0;  // of one expert
};

// What a slice takes of a node's memory: its bytes and 1/32 for stacking, graphs and buffers' padding.
constexpr std::uint64_t SliceCost(std::uint64_t slice_bytes) {
  return slice_bytes + slice_bytes / 32;
}

struct NodeShare {
  std::string id;                  // ties go to the smaller one
  std::uint64_t memory_bytes = 0;  // what it gives
  std::vector<SliceId> assigned;   // what it was told to hold, or brings with it
  std::vector<SliceId> ready;      // of those: verified and loaded
  bool by_hand = false;            // its owner chose: only slices of `chosen`, and of those all that fit
  std::vector<SliceId> chosen;
};

// The slices each node should hold, in the order of `nodes`, each list sorted and without doubles.
//
// A node keeps what it was assigned as long as it fits. Free memory is filled: by-hand nodes first with their own
// choice, then the others with the slices that have the fewest holders, each layer shared between nodes in proportion
// to their memory. When a slice has no holder and no memory is free for it, spare copies (at least two holders, one of
// them ready elsewhere) make room. Slices outside the geometry are dropped. Same input, same output.
std::vector<std::vector<SliceId>> AssignSlices(std::span<const LayerGeometry> layers, std::span<const NodeShare> nodes);

}  // namespace linkcpp
