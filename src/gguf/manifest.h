// The manifest of a model: a BLAKE3 hash for every expert slab, and the model id that follows from them.
//
// Computed once per file (reads every expert byte), then cached as a small file beside the model or in the cache folder.
// Layout and id are defined in docs/slice.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/result.h"
#include "gguf/model.h"

namespace linkcpp {

struct SlabHash {
  Projection projection = Projection::kGate;
  SlabKind kind = SlabKind::kWeight;
  Hash hash;
  std::uint64_t size_bytes = 0;
};

class Manifest {
 public:
  using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

  // Reads all slabs with `n_threads` readers. Progress is called from one thread, a few times a second.
  static Result<Manifest> Compute(const ModelFile& model, int n_threads, const Progress& progress);

  // From the cache if it is there and fits the model (header hash, file sizes and modification times), else computed
  // and stored: beside the model as "<file>.linkcpp-manifest", or under `cache_dir` if that cannot be written.
  static Result<Manifest> LoadOrCompute(const ModelFile& model, const std::string& cache_dir, const Progress& progress);

  static Result<Manifest> Decode(std::string_view bytes);  // kMalformed
  std::string Encode() const;

  const Hash& model_id() const { return model_id_; }        // BLAKE3 over header hash and all slab hashes
  const Hash& header_hash() const { return header_hash_; }
  std::size_t n_slices() const { return slices_.size(); }

  // In MoeLayer::tensors order. nullptr: no such slice.
  const std::vector<SlabHash>* Find(SliceId slice) const;

 private:
  Hash model_id_;
  Hash header_hash_;
  std::vector<std::pair<SliceId, std::vector<SlabHash>>> slices_;  // sorted by slice
};

}  // namespace linkcpp
