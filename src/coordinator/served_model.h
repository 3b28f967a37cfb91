// The model a coordinator serves: its file, its manifest, and what the HTTP API says of it.
//
// Immutable after Load, so every thread may read it; planned shards are kept for a while because a download asks for
// the same one again and again (HEAD, ranges).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "gguf/manifest.h"
#include "gguf/model.h"
#include "gguf/shard.h"
#include "market/coverage.h"
#include "wire/control.h"

namespace linkcpp {

class ServedModel {
 public:
  // Opens the model and loads or computes its manifest. kRefused: a model without routed experts.
  static Result<std::unique_ptr<ServedModel>> Load(const std::string& model_path, const std::string& cache_dir,
                                                   const Manifest::Progress& progress);

  const ModelFile& model() const { return model_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& name() const { return summary_.name; }  // the file's name without ".gguf" and split number
  const std::string& model_id() const { return summary_.model_id; }
  const std::string& header_hash() const { return summary_.header_hash; }
  const ModelSummary& summary() const { return summary_; }
  const std::vector<LayerGeometry>& geometry() const { return geometry_; }
  const std::string& detail_json() const { return detail_json_; }  // ModelDetail

  // Whether `wanted` names this model: its name, its id, or "".
  bool Is(std::string_view wanted) const;

  // The ranges notation of gguf/shard.h, where "" is everything. kRefused: no such layer or expert, or one without
  // experts; the text names it.
  Result<std::vector<std::uint16_t>> ParseLayers(std::string_view text) const;
  Result<std::vector<std::uint16_t>> ParseExperts(std::string_view text, std::span<const std::uint16_t> layers) const;

  // Slices as the control plane writes them, and back. kMalformed: not ranges, or not of this model.
  std::vector<LayerHoldings> ToHoldings(std::span<const SliceId> sorted_slices) const;
  Result<std::vector<SliceId>> FromHoldings(std::span<const LayerHoldings> holdings) const;  // sorted, no doubles

  // As ParseLayers and ParseExperts, then Shard::Plan.
  Result<std::shared_ptr<const Shard>> PlanShard(const std::string& layers, const std::string& experts) const;

  // Hex hash of one slab ("down", "gate.bias", …); kRefused: the model has none of that name.
  Result<std::string> SlabHashOf(std::uint16_t layer, std::uint16_t expert, std::string_view tensor) const;

 private:
  ServedModel(ModelFile model, Manifest manifest);
  ModelDetail MakeDetail() const;

  ModelFile model_;
  Manifest manifest_;
  ModelSummary summary_;
  std::vector<LayerGeometry> geometry_;
  std::string detail_json_;

  struct Planned {
    std::string key;
    std::shared_ptr<const Shard> shard;
  };
  mutable std::mutex planned_mutex_;
  mutable std::list<Planned> planned_;  // guarded by planned_mutex_; the latest first
};

}  // namespace linkcpp
