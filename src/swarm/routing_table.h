// Who holds what: for every slice, the workers that can be asked for it now.
//
// A worker that closed, was cut off or said goodbye is taken out, so whatever is listed may be asked. Numbers of
// workers are the swarm's own and are never used twice. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "wire/control.h"

namespace linkcpp {

using WorkerNumber = std::uint32_t;

// Caps on what one worker may claim to hold: a hostile one must not fill our memory with ranges.
inline constexpr std::uint32_t kMaxExpertsPerLayer = 4096;  // llama.cpp stops at 1024
inline constexpr std::uint64_t kMaxSlicesPerWorker = 1u << 18;

// A worker's holdings, spelled out: by layer, the experts in ascending order without doubles.
using SliceLists = std::map<std::uint16_t, std::vector<std::uint16_t>>;

// kMalformed: text that is not in the ranges notation, or more than the caps above. Layers named twice are merged.
Result<SliceLists> SpellOut(std::span<const LayerHoldings> ready);

class RoutingTable {
 public:
  // Everything this worker holds from now on; what it held before is forgotten.
  void Replace(WorkerNumber worker, SliceLists slices);
  void Drop(WorkerNumber worker, SliceId slice);
  void Remove(WorkerNumber worker) { Replace(worker, {}); }

  // Ascending numbers; valid until the next change.
  std::span<const WorkerNumber> Holders(LayerId layer, ExpertId expert) const;

  std::uint64_t covered_slices() const { return covered_; }  // with at least one holder

 private:
  void Add(WorkerNumber worker, SliceId slice);
  void Take(WorkerNumber worker, SliceId slice);

  std::unordered_map<std::uint16_t, std::vector<std::vector<WorkerNumber>>> holders_;  // [layer][expert]
  std::unordered_map<WorkerNumber, SliceLists> slices_;
  std::uint64_t covered_ = 0;
};

}  // namespace linkcpp
