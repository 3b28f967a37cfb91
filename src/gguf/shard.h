// A shard: a mini-GGUF with the slices of some layers × some experts, byte for byte as in the model.
//
// Tensor names are kept, ne[2] (biases ne[1], scales ne[0]) becomes the number of experts taken. Keys under "linkcpp."
// say what was taken from which model (docs/slice.md). A shard is described first and read by range, so a file, an
// HTTP range and a pipe are all served by the same few lines and no tensor is ever held in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/result.h"
#include "gguf/manifest.h"
#include "gguf/model.h"

namespace linkcpp {

// ---- "0:16,40"

// Half-open ranges and single numbers, commas between: "0:16,40" is 0..15 and 40; "all" or "" is 0..limit-1.
// Sorted, without doubles. kMalformed: not that notation. kRefused: a number >= limit (the text names both).
Result<std::vector<std::uint16_t>> ParseRanges(std::string_view text, std::uint32_t limit);
std::string FormatRanges(std::span<const std::uint16_t> numbers);  // sorted -> a short text that parses back

// The same for a model: "all" layers are those with routed experts, "all" experts those of the layer that has most.
// kRefused also for a dense model.
Result<std::vector<std::uint16_t>> ParseLayers(std::string_view text, const ModelFile& model);
Result<std::vector<std::uint16_t>> ParseExperts(std::string_view text, const ModelFile& model);

// ---- cutting one

inline constexpr std::uint32_t kShardFormat = 1;  // key linkcpp.format

class Shard {
 public:
  // `layers`, `experts`: ascending, not empty. The model must outlive the shard; the manifest need not.
  // kRefused: a layer without routed experts or an expert that a layer does not have (named, with what there is), a
  // manifest of another model, a model that is itself a shard.
  static Result<Shard> Plan(const ModelFile& model, const Manifest& manifest, std::span<const std::uint16_t> layers,
                            std::span<const std::uint16_t> experts);

  std::uint64_t size_bytes() const { return size_bytes_; }
  std::uint64_t header_bytes() const { return header_.size(); }
  std::uint64_t n_slices() const { return n_slices_; }
  std::string etag() const;  // quoted; depends on the model id and what was taken

  // Fills `bytes` from `offset` of the shard as if it were a file. Any thread. kLocal on a read error; kRefused past
  // the end.
  Result<void> Read(std::uint64_t offset, std::span<std::byte> bytes) const;

  // Copies the whole shard to `path` (written as path.part, then renamed; on a fault no .part is left), by
  // copy_file_range or reads of a few MB. Progress (may be empty) is called every few tens of MB.
  // kRefused: `path` is one of the model's own files, or not a plain file. kLocal: cannot write, disk full.
  Result<void> WriteTo(const std::string& path, const Manifest::Progress& progress) const;

 private:
  struct Piece {
    std::uint64_t offset;  // in the shard
    std::uint64_t size_bytes;
    std::uint16_t file;
    std::uint64_t source_offset;
  };
  const ModelFile* model_ = nullptr;
  std::string header_;         // includes padding up to the data section
  std::vector<Piece> pieces_;  // ascending; what lies between and after them is zero
  std::uint64_t size_bytes_ = 0;
  std::uint64_t n_slices_ = 0;
};

// ---- reading one: a shard opens as a ModelFile whose experts are numbered from 0 (the local index)

struct ShardInfo {
  Hash model_id;     // of the model it was cut from
  Hash header_hash;  // of that model
  std::vector<std::uint16_t> layers;
  std::vector<std::uint16_t> experts;  // local index -> the model's expert; ascending

  std::optional<std::uint32_t> LocalIndex(ExpertId expert) const;  // nullopt: not in the shard
};

bool IsShard(const ModelFile& file);

// kRefused: not a shard, or of a format this program does not know. kMalformed: its keys and tensors do not agree.
Result<ShardInfo> ReadShardInfo(const ModelFile& shard);

// What the shard says the hash of one of its slabs is. kMalformed: it does not say.
Result<Hash> ShardSlabHash(const ModelFile& shard, const ExpertTensor& tensor, std::uint32_t local_index);

// Reads every slab and compares it with the hash the shard gives for it. kMalformed: the first that differs.
Result<void> VerifyShard(const ModelFile& shard, int n_threads, const Manifest::Progress& progress);

}  // namespace linkcpp
