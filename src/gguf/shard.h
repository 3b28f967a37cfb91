// A shard: a mini-GGUF with the slices of some layers × some experts, byte for byte as in the model.
//
// Tensor names are kept, ne[2] (biases ne[1], scales ne[0]) becomes the number of experts taken. Keys under "linkcpp."
// say what was taken from which model (docs/slice.md). A shard is described first and read by range, so a file, an
// HTTP range and a pipe are all served by the same few lines and no tensor is ever held in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "gguf/manifest.h"
#include "gguf/model.h"

namespace linkcpp {

// "0:16,40" -> 0..15 and 40: half-open ranges and single numbers, commas between; "all" or "" -> 0..limit-1.
// Sorted, without doubles. kRefused: not a range, or a number >= limit (the text names it).
Result<std::vector<std::uint16_t>> ParseRanges(std::string_view text, std::uint32_t limit);
std::string FormatRanges(std::span<const std::uint16_t> numbers);  // the shortest text that parses back

class Shard {
 public:
  // `layers` that have no experts are refused by name. The model and manifest must outlive the shard.
  static Result<Shard> Plan(const ModelFile& model, const Manifest& manifest, std::span<const std::uint16_t> layers,
                            std::span<const std::uint16_t> experts);

  std::uint64_t size_bytes() const { return size_bytes_; }
  std::uint64_t header_bytes() const { return header_.size(); }
  std::uint64_t n_slices() const { return n_slices_; }
  std::string etag() const;  // quoted; depends on the model id and what was taken

  // Fills `bytes` from `offset` of the shard as if it were a file. kLocal on a read error; kRefused past the end.
  Result<void> Read(std::uint64_t offset, std::span<std::byte> bytes) const;

  // Copies the whole shard to `path` (written as path.part, then renamed), by copy_file_range or reads of a few MB.
  Result<void> WriteTo(const std::string& path, const Manifest::Progress& progress) const;

 private:
  struct Piece {
    std::uint64_t offset;  // in the shard
    std::uint64_t size_bytes;
    std::uint16_t file;
    std::uint64_t source_offset;
  };
  const ModelFile* model_ = nullptr;
  std::string header_;  // includes padding up to the data section
  std::vector<Piece> pieces_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t n_slices_ = 0;
  std::string identity_;
};

}  // namespace linkcpp
