// The manifest of a model: a BLAKE3 hash for every expert slab, and the model id that follows from them.
//
// Computed once per file (reads every expert byte), then cached as a small file beside the model or in the cache
// folder. Layout and id are defined in docs/slice.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
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
  friend bool operator==(const SlabHash&, const SlabHash&) = default;
};

class Manifest {
 public:
  using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;
  using Slices = std::vector<std::pair<SliceId, std::vector<SlabHash>>>;

  // Reads all slabs with `n_threads` readers of 2 MB at a time. Progress (may be empty) is called from the calling
  // thread, a few times a second and once at the end. A dense model has a manifest without slices.
  // kLocal: a read error, or the model's files changed meanwhile.
  static Result<Manifest> Compute(const ModelFile& model, int n_threads, const Progress& progress);

  // From the cache if it is there and fits the model (header hash, file sizes and modification times), else computed
  // and stored: beside the model as "<file>.linkcpp-manifest", or under `cache_dir` if that cannot be written ("": not
  // at all). A cache that is stale or broken, or that cannot be written, is no fault.
  static Result<Manifest> LoadOrCompute(const ModelFile& model, const std::string& cache_dir, const Progress& progress);

  // Any bytes give a manifest whose model id follows from its hashes, or kMalformed.
  static Result<Manifest> Decode(std::string_view bytes);
  std::string Encode() const;

  const Hash& model_id() const { return model_id_; }  // BLAKE3 over header hash and all slab hashes
  const Hash& header_hash() const { return header_hash_; }
  std::size_t n_slices() const { return slices_.size(); }
  const Slices& slices() const { return slices_; }  // sorted by slice

  // In MoeLayer::tensors order. nullptr: no such slice.
  const std::vector<SlabHash>* Find(SliceId slice) const;

 private:
  Manifest(Hash header_hash, Slices slices);  // sets the model id

  Hash model_id_;
  Hash header_hash_;
  Slices slices_;
};

// Where LoadOrCompute keeps the manifests that it cannot keep beside the model: $XDG_CACHE_HOME/linkcpp or
// ~/.cache/linkcpp; "" when the environment names neither.
std::string DefaultCacheDir();

// Does the slab have the hash that the manifest gives it? kMalformed if not, with slice and tensor in the text.
Result<void> VerifySlab(SliceId slice, const SlabHash& expected, std::span<const std::byte> bytes);

}  // namespace linkcpp
