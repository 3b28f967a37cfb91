// What a run needs beside the weights: the KV cache, recurrent state, the compute buffer, a reserve.
//
// KV and state follow llama.cpp's rules exactly. The compute buffer is an estimate of what ggml's allocator arrives at
// (docs/planner.md says how good); the reserve is a margin, and is called that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "planner/model_sizes.h"

namespace linkcpp {

enum class KvType : std::uint8_t { kF16, kQ8_0, kQ4_0 };
const char* KvTypeName(KvType type);  // "f16", "q8_0", "q4_0", as llama.cpp's -ctk takes it
std::optional<KvType> KvTypeFromName(std::string_view name);
std::uint64_t KvRowBytes(KvType type, std::uint64_t n_elements);
// Whether llama.cpp keeps this model's cache in that type; "" or why not.
std::string WhyNotKv(const ModelSizes& sizes, KvType type);

// May some of a layer's expert tensors be on a device and the others in RAM? Whole layers leave room on the device, up
// to one layer's worth.
enum class SplitLayers : std::uint8_t {
  kByDevice,  // one that is here is filled; one that is planned when whole layers leave more than kLargeRest of it free
  kNever,
  kAlways
};
inline constexpr std::uint64_t kLargeRest = 32;  // one in so many bytes

struct RunOptions {
  std::uint32_t context = 0;  // cells of all sequences together, llama.cpp's -c; 0: the model's own
  std::uint32_t n_parallel = 1;
  KvType kv = KvType::kF16;
  std::uint32_t n_batch = 512;                       // tokens computed at once, llama.cpp's -ub
  std::optional<std::uint32_t> max_gpu_layers = {};  // llama.cpp's -ngl; default: as many as fit
  SplitLayers split_layers = SplitLayers::kByDevice;
};

// How many cells one sequence gets: a share of the context, both rounded up to 256.
std::uint32_t CellsPerSequence(const ModelSizes& sizes, const RunOptions& options);
// Of all sequences, as -c is printed.
std::uint32_t ContextCells(const ModelSizes& sizes, const RunOptions& options);

// K and V of one layer for all sequences; state of one layer for all sequences.
std::uint64_t KvBytes(const ModelSizes& sizes, const LayerSizes& layer, const RunOptions& options);
std::uint64_t StateBytes(const LayerSizes& layer, const RunOptions& options);
std::uint64_t TotalKvBytes(const ModelSizes& sizes, const RunOptions& options);
std::uint64_t TotalStateBytes(const ModelSizes& sizes, const RunOptions& options);
// Bytes of cache one more token of context costs, over all layers that see everything.
std::uint64_t KvBytesPerToken(const ModelSizes& sizes, KvType type);

// The buffer that whatever runs layers needs for a batch. `has_output`: it computes the logits too.
std::uint64_t CpuComputeBytes(const ModelSizes& sizes, const RunOptions& options, bool has_output);
// The same on a GPU. `copies_experts`: some of its layers' experts lie in plain RAM, and prompts copy them to it, a
// tensor at a time.
std::uint64_t GpuComputeBytes(const ModelSizes& sizes, const RunOptions& options, bool has_output, bool copies_experts);
// The host's own buffers while a GPU computes: masks, ids, embeddings of a batch.
std::uint64_t HostBufferBytes(const ModelSizes& sizes, const RunOptions& options);

// What is left free on a device for its driver, its context and fragments: the margin llama.cpp's own fitting keeps.
inline constexpr std::uint64_t kDeviceReserveBytes = 1ull << 30;

}  // namespace linkcpp
