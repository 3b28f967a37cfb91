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
    (layer.sliding ? masks.sliding : masks.full) =
        (sizes.flash_attention ? 2 : 4) * LayerCells(sizes, layer, options) * options.n_batch;
  }
  return masks;
}

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
  return static_cast<std::uint32_t>(Pad256(Pad256(context) / std::max(options.n_parallel, 1u)));
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

namespace {

// Logits that fit where a mask was take its place: attention is over by then.
std::uint64_t LogitBytes(const ModelSizes& sizes, const RunOptions& options, const Masks& masks) {
  const std::uint64_t logits = BatchBytes(options, sizes.n_vocab);
  return logits > std::max(masks.full, masks.sliding) ? logits : 0;
}

// Rows a feed-forward needs at its peak, in elements a token. ggml's allocator puts the experts' results where gate and
// up were if they fit there; else they come on top. The shared expert and a dense one run beside the results, or alone.
std::uint64_t FeedForwardElements(const ModelSizes& sizes, const LayerSizes& layer) {
  const std::uint64_t inner = std::uint64_t{layer.n_ff_exp} * layer.n_used;
  const std::uint64_t results = layer.n_experts > 0 ? std::uint64_t{sizes.n_embd} * layer.n_used : 0;
  return std::max({3 * inner + (results > 2 * inner ? results : 0), results + 3 * std::uint64_t{layer.n_ff_shared},
                   3 * std::uint64_t{layer.n_ff_dense}});
}

// What attention needs at its peak beside masks and rows.
std::uint64_t AttentionBytes(const ModelSizes& sizes, const LayerSizes& layer, const RunOptions& options) {
  // A pooled indexer scores the cells of all sequences at once.
  const std::uint64_t cells = layer.indexer_pools ? ContextCells(sizes, options) : LayerCells(sizes, layer, options);
  const std::uint64_t pairs = cells * options.n_batch;
  std::uint64_t bytes = 0;
  if (layer.v_elements == 0) {  // MLA: the latent, and one for each head, in and out
    bytes = BatchBytes(options, (2ull * sizes.n_head + 1) * layer.k_elements);
  }
  if (!sizes.flash_attention) bytes += 4 * sizes.n_head * pairs + BatchBytes(options, 3ull * sizes.n_embd);
  if (layer.indexer_pair_bytes > 0) {
    bytes = std::max(bytes, static_cast<std::uint64_t>((layer.indexer_pair_bytes - 2) * static_cast<double>(pairs)) +
                                BatchBytes(options, sizes.indexer_row));
  }
  return bytes;
}

// The states of all sequences but one, gathered for a batch that has tokens of all; of one it fits beside the rest.
std::uint64_t GatheredStates(const ModelSizes& sizes, const RunOptions& options) {
  std::uint64_t most = 0;
  for (const LayerSizes& layer : sizes.layers) most = std::max(most, layer.recurrent_bytes);
  return most * 3 / 2 * (options.n_parallel - 1);
}

// `n` rows of activations live at once (input, residual, norms, views of them), one more where a shared expert needs
// the input as well.
std::uint64_t LiveRows(const ModelSizes& sizes, const RunOptions& options, std::uint64_t n) {
  const bool shared = std::ranges::any_of(sizes.layers, [](const LayerSizes& layer) { return layer.n_ff_shared > 0; });
  return BatchBytes(options, (n + (shared ? 1 : 0)) * sizes.n_embd);
}

std::uint64_t SaturatingMinus(std::uint64_t from, std::uint64_t what) {
  return from > what ? from - what : 0;
}

// Positions, ids, padding between tensors.
std::uint64_t WithSmallInputs(std::uint64_t bytes) {
  return bytes + bytes / 1000 + (192ull << 10);
}

}  // namespace

std::uint64_t CpuComputeBytes(const ModelSizes& sizes, const RunOptions& options, bool has_output) {
  constexpr std::uint64_t kRows = 6;
  const Masks masks = MaskBytes(sizes, options);
  std::uint64_t largest = has_output ? LogitBytes(sizes, options, masks) : 0;
  largest = SaturatingMinus(largest, LiveRows(sizes, options, 0));  // by then the shared expert is done
  for (const LayerSizes& layer : sizes.layers) {
    const bool last = &layer == &sizes.layers.back() && sizes.layers.size() > 1;  // it computes the outputs' rows only
    largest = std::max({largest, last ? 0 : BatchBytes(options, FeedForwardElements(sizes, layer)),
                        AttentionBytes(sizes, layer, options)});
  }
  return WithSmallInputs(masks.full + masks.sliding + LiveRows(sizes, options, kRows) + largest +
                         GatheredStates(sizes, options));
}

std::uint64_t GpuComputeBytes(const ModelSizes& sizes, const RunOptions& options, bool has_output,
                              bool copies_experts) {
  // Fewer rows than on a CPU: the embeddings are looked up on the host. An expert tensor copied for a prompt comes on
  // top of gate and up's product, the results, and one row more.
  constexpr std::uint64_t kRows = 4;
  const Masks masks = MaskBytes(sizes, options);
  std::uint64_t largest = has_output ? LogitBytes(sizes, options, masks) : 0;
  for (const LayerSizes& layer : sizes.layers) {
    const std::uint64_t beside = (std::uint64_t{layer.n_ff_exp} + sizes.n_embd) * layer.n_used + sizes.n_embd;
    largest = std::max({largest, BatchBytes(options, FeedForwardElements(sizes, layer)),
                        AttentionBytes(sizes, layer, options),
                        copies_experts ? BatchBytes(options, beside) + layer.largest_expert_tensor_bytes : 0});
  }
  return WithSmallInputs(masks.full + masks.sliding + LiveRows(sizes, options, kRows) + largest +
                         GatheredStates(sizes, options));
}

std::uint64_t HostBufferBytes(const ModelSizes& sizes, const RunOptions& options) {
  const Masks masks = MaskBytes(sizes, options);
  // A batch's embeddings, once looked up and once more where tokens and given embeddings are put together.
  return WithSmallInputs(masks.full + masks.sliding + BatchBytes(options, 4ull * sizes.n_embd));
}

}  // namespace linkcpp
