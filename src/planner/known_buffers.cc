#include "planner/known_buffers.h"

#include <cstdlib>

namespace linkcpp {

LayoutKey KeyOf(const ModelSizes& sizes, const RunOptions& options, std::uint32_t n_gpu_layers, bool offloads) {
  return {.context_cells = ContextCells(sizes, options),
          .n_parallel = options.n_parallel,
          .n_batch = options.n_batch,
          .kv = options.kv,
          .n_gpu_layers = n_gpu_layers,
          .offloads = offloads};
}

const ComputeBuffers* KnownBuffers::Find(const LayoutKey& key) const {
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : &found->second;
}

const ComputeBuffers* KnownBuffers::Nearest(const LayoutKey& key) const {
  if (key.n_gpu_layers == 0) return Find(key);
  const ComputeBuffers* nearest = nullptr;
  std::int64_t least = 0;
  for (const auto& [other, buffers] : known_) {
    LayoutKey same = other;
    same.n_gpu_layers = key.n_gpu_layers;
    const std::int64_t distance = std::abs(std::int64_t{other.n_gpu_layers} - std::int64_t{key.n_gpu_layers});
    if (other.n_gpu_layers == 0 || same != key || (nearest != nullptr && distance >= least)) continue;
    nearest = &buffers;
    least = distance;
  }
  return nearest;
}

}  // namespace linkcpp
