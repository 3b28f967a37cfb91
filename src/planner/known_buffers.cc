#include "planner/known_buffers.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace linkcpp {

LayoutKey KeyOf(const ModelSizes& sizes, const RunOptions& options, std::uint32_t n_gpu_layers, bool offloads,
                std::uint64_t device_experts, std::uint64_t split) {
  return {.context_cells = ContextCells(sizes, options),
          .n_parallel = options.n_parallel,
          .n_batch = options.n_batch,
          .kv = options.kv,
          .n_gpu_layers = n_gpu_layers,
          .offloads = offloads,
          .device_experts = device_experts,
          .split = split};
}

void KnownBuffers::Add(const LayoutKey& key, ComputeBuffers buffers) {
  buffers.n_gpu_layers = key.n_gpu_layers;
  known_[key] = std::move(buffers);
}

const ComputeBuffers* KnownBuffers::Find(const LayoutKey& key) const {
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : &found->second;
}

ComputeBuffers KnownBuffers::LeastLike(const LayoutKey& key) const {
  std::optional<ComputeBuffers> least;
  for (const auto& [other, buffers] : known_) {
    LayoutKey same = other;
    same.device_experts = key.device_experts;
    same.split = key.split;
    if (same != key) continue;
    if (!least) least = buffers;
    least->host = std::min(least->host, buffers.host);
    for (std::size_t d = 0; d < buffers.devices.size(); ++d)
      least->devices[d] = std::min(least->devices[d], buffers.devices[d]);
  }
  return least.value_or(ComputeBuffers{});
}

const ComputeBuffers* KnownBuffers::Nearest(const LayoutKey& key) const {
  const ComputeBuffers* nearest = nullptr;
  std::pair<std::uint64_t, std::uint64_t> least;
  const auto apart = [](std::uint64_t a, std::uint64_t b) { return a > b ? a - b : b - a; };
  for (const auto& [other, buffers] : known_) {
    LayoutKey same = other;
    same.n_gpu_layers = key.n_gpu_layers;
    same.device_experts = key.device_experts;
    same.split = key.split;
    if (same != key || (other.n_gpu_layers == 0) != (key.n_gpu_layers == 0)) continue;
    const std::pair distance(apart(other.n_gpu_layers, key.n_gpu_layers),
                             apart(other.device_experts, key.device_experts));
    if (nearest != nullptr && distance >= least) continue;
    nearest = &buffers;
    least = distance;
  }
  return nearest;
}

}  // namespace linkcpp
