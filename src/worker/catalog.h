// A model's slices as a worker needs them: shapes to build stacks of, sizes to plan with, hashes to verify with.
//
// Made from the coordinator's ModelDetail; checks that it hangs together, since sizes and shapes come from the network.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/result.h"
#include "gguf/model.h"
#include "kernel/expert_stack.h"
#include "wire/control.h"

namespace linkcpp {

struct CatalogTensor {
  Projection projection = Projection::kGate;
  SlabKind kind = SlabKind::kWeight;
  std::uint64_t slab_bytes = 0;
  std::vector<Hash> hashes;  // by expert
};

struct CatalogLayer {
  LayerId layer;
  std::uint32_t n_experts = 0;
  std::uint64_t slice_bytes = 0;  // sum of slab_bytes
  std::vector<CatalogTensor> tensors;
  ExpertShape shape;
};

class Catalog {
 public:
  // kMalformed: a tensor type this build does not know, sizes or counts that contradict one another.
  static Result<Catalog> Make(const ModelDetail& detail);

  const CatalogLayer* Find(LayerId layer) const;  // nullptr: no such MoE layer
  const std::string& model_name() const { return model_name_; }
  const std::string& model_id() const { return model_id_; }

 private:
  std::string model_name_, model_id_;
  std::map<LayerId, CatalogLayer> layers_;
};

// Points `slabs` into `slice`, which holds the layer's slabs one after another in CatalogLayer::tensors order.
ExpertSlabs SlabsOf(const CatalogLayer& layer, std::span<const std::byte> slice);

}  // namespace linkcpp
