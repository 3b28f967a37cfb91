// Compute buffers that llama.cpp itself was asked about, beside those only estimated.
//
// Which buffers a run needs depends on how it is laid out: how many layers are on devices, whether experts lie outside
// them, and the run's context, sequences, batch and cache type. What is known of one such layout stands for it; for
// another number of layers it is still the better estimate.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "planner/memory.h"

namespace linkcpp {

struct LayoutKey {
  std::uint32_t context_cells = 0, n_parallel = 1, n_batch = 512;
  KvType kv = KvType::kF16;
  std::uint32_t n_gpu_layers = 0;
  bool offloads = false;  // of layers on devices some experts lie elsewhere
  friend auto operator<=>(const LayoutKey&, const LayoutKey&) = default;
};
LayoutKey KeyOf(const ModelSizes& sizes, const RunOptions& options, std::uint32_t n_gpu_layers, bool offloads);

struct ComputeBuffers {
  std::vector<std::uint64_t> devices;
  std::uint64_t host = 0;
};

class KnownBuffers {
 public:
  void Add(const LayoutKey& key, ComputeBuffers buffers) { known_[key] = std::move(buffers); }
  const ComputeBuffers* Find(const LayoutKey& key) const;     // nullptr: was not asked about
  const ComputeBuffers* Nearest(const LayoutKey& key) const;  // the same but for n_gpu_layers (0 is near to 0 only)
  // While someone is asked, what is not known is taken to be small, so that no layout that fits is left out unasked.
  bool optimistic = false;

 private:
  std::map<LayoutKey, ComputeBuffers> known_;
};

}  // namespace linkcpp
