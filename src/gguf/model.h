// A model on disk as linkcpp sees it: the directory of one GGUF file or of all its splits, and the expert slabs in it.
//
// Reads headers only; tensor bytes are read by offset when someone asks. Knows nothing of ggml graphs or of who wants
// the bytes. Format: GGUF version 2 and 3, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/recipe.h"
#include "base/result.h"
#include "gguf/header.h"
#include "gguf/source.h"

namespace linkcpp {

// ---- experts

enum class SlabKind : std::uint8_t {
  kWeight = 0,
  kBias = 1,
  kScale = 2,
  kInputScale = 3
};  // in manifests: do not renumber

// One expert tensor of a layer: [ne0, ne1, n_experts] weights, [ne0, n_experts] biases, [n_experts] scales.
struct ExpertTensor {
  Projection projection = Projection::kGate;
  SlabKind kind = SlabKind::kWeight;
  const TensorInfo* tensor = nullptr;  // owned by the ModelFile
  std::uint64_t slab_bytes = 0;        // bytes of one expert
};

struct MoeLayer {
  LayerId layer;
  std::uint32_t n_experts = 0;
  std::vector<ExpertTensor> tensors;  // sorted by (kind, projection): weights first
  std::uint64_t slice_bytes = 0;      // all slabs of one expert

  const ExpertTensor* Find(Projection projection, SlabKind kind) const;  // nullptr: the model has none
};

// Where the bytes of one slab are.
struct SlabRef {
  Projection projection = Projection::kGate;
  SlabKind kind = SlabKind::kWeight;
  std::uint16_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

class ModelFile {
 public:
  // `path`: the only file, or any of the splits (NAME-0000i-of-0000N.gguf); every split is opened.
  // kMalformed: not GGUF, truncated, sizes that do not add up (file, offset and reason in the text).
  // kLocal: not there, not readable, a split missing.
  static Result<ModelFile> Open(const std::string& path);

  // The same from bytes: the files in split order, with names for messages. For tests and fuzzers.
  static Result<ModelFile> FromSources(std::vector<std::string> names,
                                       std::vector<std::unique_ptr<ByteSource>> sources);

  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;
  ~ModelFile();

  const std::vector<std::string>& paths() const { return paths_; }
  std::string name() const;                                            // file name of the first path, for messages
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // of all splits
  const GgufKeys& keys() const { return keys_; }  // of the first split, and what only a later one has
  const TensorInfo* FindTensor(std::string_view name) const;

  std::string architecture() const;                                  // "" when the key is missing
  std::optional<std::uint64_t> Integer(std::string_view key) const;  // any integer type, not negative; arrays: nullopt
  std::optional<double> Number(std::string_view key) const;          // floats and integers
  std::optional<bool> Flag(std::string_view key) const;
  std::optional<std::string> Text(std::string_view key) const;
  const GgufArray* Array(std::string_view key) const;  // nullptr: no such array
  // "<architecture>.<suffix>"; a per-layer array gives its element at `layer`.
  std::optional<std::uint64_t> ArchInteger(std::string_view suffix, std::size_t layer = 0) const;

  // Layers with routed experts, ascending. Empty for a dense model.
  const std::vector<MoeLayer>& moe_layers() const { return moe_layers_; }
  const MoeLayer* FindMoeLayer(LayerId layer) const;  // nullptr: not a MoE layer
  std::uint64_t total_expert_bytes() const;
  std::uint64_t n_slices() const;
  std::uint32_t max_experts() const;  // of any layer; 0 for a dense model

  // For commands that need experts. kRefused: "NAME is a dense model: it has no routed experts".
  Result<void> RequireExperts() const;

  // The slabs of one slice, in MoeLayer::tensors order. kRefused: no such layer or expert.
  Result<std::vector<SlabRef>> Slabs(SliceId slice) const;

  // Reads exactly bytes.size() bytes at `offset` of split `file`. Any thread. kLocal: I/O error or past the end.
  Result<void> ReadAt(std::uint16_t file, std::uint64_t offset, std::span<std::byte> bytes) const;

  // One of paths() as a source of bytes: its size, its modification time, its file descriptor.
  const ByteSource& source(std::uint16_t file) const { return *sources_[file]; }
  std::uint64_t data_offset(std::uint16_t file) const { return data_offsets_[file]; }  // where the header ends
  std::uint64_t total_bytes() const;                                                   // of all files

  // BLAKE3 over the headers of all splits (everything before tensor data), in split order. Cheap: no weights read.
  const Hash& header_hash() const { return header_hash_; }

 private:
  ModelFile();
  static Result<ModelFile> Assemble(std::vector<std::string> names, std::vector<std::unique_ptr<ByteSource>> sources,
                                    std::vector<GgufHeader> headers, const Hash& header_hash);

  std::vector<std::unique_ptr<ByteSource>> sources_;
  std::vector<std::uint64_t> data_offsets_;
  std::vector<std::string> paths_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;  // views into tensors_
  GgufKeys keys_;
  std::vector<MoeLayer> moe_layers_;
  Hash header_hash_;
};

// "blk.7.ffn_down_exps.weight" -> layer 7, down, weight. nullopt: not an expert tensor (dense, shared, chexps, LoRA).
struct ExpertTensorName {
  LayerId layer;
  Projection projection = Projection::kGate;
  SlabKind kind = SlabKind::kWeight;
};
std::optional<ExpertTensorName> ParseExpertTensorName(std::string_view name);
const char* SlabKindName(SlabKind kind);     // "weight", "bias", "scale", "input_scale"
std::size_t ExpertDimension(SlabKind kind);  // index in ne that counts experts: weights 2, biases 1, scales 0

// The MoE layers in a tensor directory. kMalformed: tensors of one layer that disagree on the number of experts, have
// the wrong number of dimensions, or biases and scales without weights.
Result<std::vector<MoeLayer>> FindMoeLayers(std::span<const TensorInfo> tensors);

}  // namespace linkcpp
