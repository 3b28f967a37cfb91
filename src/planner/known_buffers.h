// Compute buffers that llama.cpp itself was asked about, beside those only estimated.
//
// Which buffers a run needs depends on how it is laid out: how many layers are on devices, which experts lie outside
// them, and the run's context, sequences, batch and cache type. What is known of a layout is exact for it, and a good
// estimate for one like it.
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
  bool offloads = false;             // of layers on devices some experts lie elsewhere
  std::uint64_t device_experts = 0;  // bytes of experts on devices, which tell layouts with the same layers apart
  std::uint64_t split = 0;           // Placement::SplitHash, which tells apart those with the same bytes
  friend auto operator<=>(const LayoutKey&, const LayoutKey&) = default;
};
LayoutKey KeyOf(const ModelSizes& sizes, const RunOptions& options, std::uint32_t n_gpu_layers, bool offloads,
                std::uint64_t device_experts, std::uint64_t split);

struct ComputeBuffers {
  std::uint32_t n_gpu_layers = 0;  // of the layout they are of
  std::vector<std::uint64_t> devices;
  std::uint64_t host = 0;
};

class KnownBuffers {
 public:
  void Add(const LayoutKey& key, ComputeBuffers buffers);
  const ComputeBuffers* Find(const LayoutKey& key) const;  // nullptr: was not asked about
  // The same but for n_gpu_layers (0 is near to 0 only) and, next, device_experts, however split.
  const ComputeBuffers* Nearest(const LayoutKey& key) const;
  // Of all that differ from `key` in their device_experts and split at most, each buffer where it is smallest; such a
  // one must have been added.
  ComputeBuffers LeastLike(const LayoutKey& key) const;
  // While someone is asked, what is not known is taken to be small, so that no layout that fits is left out unasked.
  bool optimistic = false;
  std::uint64_t margin_bytes = 0;  // kept free on every device: what an answer was larger than the one before it

 private:
  std::map<LayoutKey, ComputeBuffers> known_;
};

}  // namespace linkcpp
