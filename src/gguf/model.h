// A model on disk as linkcpp sees it: the directory of one GGUF file or of all its splits, and the expert slabs in it.
//
// Reads headers only; tensor bytes are read by offset when someone asks. Knows nothing of ggml graphs or of who wants
// the bytes. Format: GGUF version 2 and 3, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/recipe.h"
#include "base/result.h"

namespace linkcpp {

// ---- header values

// An array's elements are kept only for small arrays of numbers, bools and strings (<= 4096 elements); a tokenizer's
// tables are skipped over and only their count is known.
struct GgufArray {
  std::uint32_t element_type = 0;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> integers;  // integer and bool elements, sign-extended
  std::vector<double> numbers;          // float elements
  std::vector<std::string> strings;
};
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string, GgufArray>;

struct TensorInfo {
  std::string name;
  std::uint32_t type = 0;                    // ggml type number
  std::array<std::uint64_t, 4> ne{1, 1, 1, 1};
  std::uint16_t file = 0;                    // index into ModelFile::paths()
  std::uint64_t offset = 0;                  // of its first byte, from the start of that file
  std::uint64_t size_bytes = 0;
};

// ---- experts

enum class SlabKind : std::uint8_t { kWeight = 0, kBias = 1, kScale = 2, kInputScale = 3 };  // in manifests: do not renumber

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
  // `path`: the only file, or the first split (-00001-of-0000N). Every split is opened.
  // kMalformed: not GGUF, truncated, sizes that do not add up (file, offset and reason in the text).
  // kLocal: not there, not readable, a split missing.
  static Result<ModelFile> Open(const std::string& path);

  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;
  ~ModelFile();

  const std::vector<std::string>& paths() const { return paths_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, GgufValue, std::less<>>& keys() const { return keys_; }
  const TensorInfo* FindTensor(std::string_view name) const;

  std::string architecture() const;                                              // "" when the key is missing
  std::optional<std::uint64_t> Integer(std::string_view key) const;             // any integer type; arrays: nullopt
  std::optional<double> Number(std::string_view key) const;
  std::optional<std::string> Text(std::string_view key) const;
  // "<architecture>.<suffix>"; a per-layer array gives its element at `layer`.
  std::optional<std::uint64_t> ArchInteger(std::string_view suffix, std::size_t layer = 0) const;

  // Layers with routed experts, ascending. Empty for a dense model.
  const std::vector<MoeLayer>& moe_layers() const { return moe_layers_; }
  const MoeLayer* FindMoeLayer(LayerId layer) const;  // nullptr: not a MoE layer
  std::uint64_t total_expert_bytes() const;

  // The slabs of one slice, in MoeLayer::tensors order. kRefused: no such layer or expert.
  Result<std::vector<SlabRef>> Slabs(SliceId slice) const;

  // Reads exactly bytes.size() bytes at `offset` of split `file`. Any thread. kLocal: I/O error or past the end.
  Result<void> ReadAt(std::uint16_t file, std::uint64_t offset, std::span<std::byte> bytes) const;

  // BLAKE3 over the headers of all splits (everything before tensor data), in split order. Cheap: no weights read.
  const Hash& header_hash() const { return header_hash_; }

 private:
  ModelFile();
  struct Files;
  std::unique_ptr<Files> files_;
  std::vector<std::string> paths_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, GgufValue, std::less<>> keys_;
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

}  // namespace linkcpp
