#include "planner/memory.h"

#include <algorithm>
#include <array>
#include <format>

namespace linkcpp {
namespace {

constexpr std::array kKvNames{"f16", "q8_0", "q4_0"};

std::uint64_t Pad256(std::uint64_t n) {
  return (n + 255) / 256 * 256;
}

std::uint64_t LayerCells(const ModelSizes& sizes, const LayerSizes& layer, const RunOptions& options) {
  const std::uint64_t cells = CellsPerSequence(sizes, options);
  if (!layer.sliding) return cells;
  return std::min(cells, Pad256(std::uint64_t{sizes.sliding_window} + options.n_batch));
}

template <class Cache>
std::uint64_t CellBytes(KvType type, const Cache& cache) {
  return KvRowBytes(type, cache.k_elements) + KvRowBytes(type, cache.v_elements);
}

// A compressed cache is rounded up to 256 cells of its own.
std::uint64_t SideCells(const ModelSizes& sizes, const SideCache& cache, const RunOptions& options) {
  const std::uint64_t cells = CellsPerSequence(sizes, options);
  return cache.tokens_per_cell <= 1 ? cells : Pad256((cells + cache.tokens_per_cell - 1) / cache.tokens_per_cell);
}

// One f32 vector of n elements for each token of a batch.
std::uint64_t BatchBytes(const RunOptions& options, std::uint64_t n) {
  return 4 * n * options.n_batch;
}

// The attention masks: two bytes for every pair of a batch's token and a cell, once for each kind of cache.
struct Masks {
  std::uint64_t full = 0, sliding = 0;
};
Masks MaskBytes(const ModelSizes& sizes, const RunOptions& options) {
  Masks masks;
  for (const LayerSizes& layer : sizes.layers) {
    if (layer.k_elements == 0) continue;
    (layer.sliding ? masks.sliding : masks.full) = 2 * LayerCells(sizes, layer, options) * options.n_batch;
  }
  return masks;
}

constexpr std::uint64_t kSmallInputs = 1ull << 20;  // positions, ids, padding between tensors

}  // namespace

const char* KvTypeName(KvType type) {
  return kKvNames[static_cast<std::size_t>(type)];
}

std::optional<KvType> KvTypeFromName(std::string_view name) {
  for (std::size_t i = 0; i < kKvNames.size(); ++i) {
    if (name == kKvNames[i]) return static_cast<KvType>(i);
  }
  return std::nullopt;
}

std::uint64_t KvRowBytes(KvType type, std::uint64_t n_elements) {
  switch (type) {
    case KvType::kF16: return 2 * n_elements;
    case KvType::kQ8_0: return (n_elements + 31) / 32 * 34;
    case KvType::kQ4_0: return (n_elements + 31) / 32 * 18;
  }
  return 0;
}

std::string WhyNotKv(const ModelSizes& sizes, KvType type) {
  if (type == KvType::kF16) return "";
  if (!sizes.flash_attention)
    return std::format("llama.cpp runs {} without flash attention, which a {} cache needs", sizes.architecture,
                       KvTypeName(type));
  if (sizes.head_gcd % 32 != 0)
    return std::format("{} has blocks of 32, and this model's heads are not a multiple of that", KvTypeName(type));
  return "";
}

std::uint32_t CellsPerSequence(const ModelSizes& sizes, const RunOptions& options) {
  const std::uint64_t context = options.context == 0 ? sizes.context_length : options.context;
  return static_cast<std::uint32_t>(Pad256(context / std::max(options.n_parallel, 1u)));
}

std::uint32_t ContextCells(const ModelSizes& sizes, const RunOptions& options) {
  return CellsPerSequence(sizes, options) * std::max(options.n_parallel, 1u);
}

std::uint64_t KvBytes(const ModelSizes& sizes, const LayerSizes& layer, const RunOptions& options) {
  std::uint64_t bytes = CellBytes(options.kv, layer) * LayerCells(sizes, layer, options);
  for (const SideCache& cache : layer.side_caches)
    bytes += CellBytes(options.kv, cache) * SideCells(sizes, cache, options);
  return bytes * options.n_parallel;
}

std::uint64_t StateBytes(const LayerSizes& layer, const RunOptions& options) {
  return layer.recurrent_bytes * options.n_parallel;
}

std::uint64_t TotalKvBytes(const ModelSizes& sizes, const RunOptions& options) {
  std::uint64_t sum = 0;
  for (const LayerSizes& layer : sizes.layers) sum += KvBytes(sizes, layer, options);
  return sum;
}

std::uint64_t TotalStateBytes(const ModelSizes& sizes, const RunOptions& options) {
  std::uint64_t sum = 0;
  for (const LayerSizes& layer : sizes.layers) sum += StateBytes(layer, options);
  return sum;
}

std::uint64_t KvBytesPerToken(const ModelSizes& sizes, KvType type) {
  std::uint64_t sum = 0;
  for (const LayerSizes& layer : sizes.layers) {
    if (!layer.sliding) sum += CellBytes(type, layer);
    for (const SideCache& cache : layer.side_caches) sum += CellBytes(type, cache) / cache.tokens_per_cell;
  }
  return sum;
}

std::uint64_t ComputeBytes(const ModelSizes& sizes, const RunOptions& options, bool has_output, bool copies_experts) {
  // Six rows of activations live at once (input, residual, norms, views of them), and the largest of what comes on top:
  // a layer's gate, up and their product, with a copy of the largest tensor they come from; queries and attention's
  // result; the logits. Logits that fit where a mask was take its place: attention is over by then.
  const Masks masks = MaskBytes(sizes, options);
  const std::uint64_t logits = has_output ? BatchBytes(options, sizes.n_vocab) : 0;
  std::uint64_t largest = logits > std::max(masks.full, masks.sliding) ? logits : 0;
  for (const LayerSizes& layer : sizes.layers) {
    largest = std::max(largest, BatchBytes(options, 3ull * layer.n_ff_exp * layer.n_used) +
                                    (copies_experts ? layer.largest_expert_tensor_bytes : 0));
    if (layer.v_elements == 0 && layer.k_elements > 0) {  // MLA: every head has a latent of its own
      largest = std::max(largest, BatchBytes(options, 2ull * sizes.n_head * layer.k_elements));
    }
  }
  return masks.full + masks.sliding + BatchBytes(options, 6ull * sizes.n_embd) + largest + kSmallInputs;
}

std::uint64_t HostBufferBytes(const ModelSizes& sizes, const RunOptions& options) {
  const Masks masks = MaskBytes(sizes, options);
  return masks.full + masks.sliding + BatchBytes(options, 2ull * sizes.n_embd) +
         4ull * sizes.n_vocab * options.n_parallel;
}

}  // namespace linkcpp
