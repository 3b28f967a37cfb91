// From a model file to the oracle's terms: one expert as slabs or dequantised, the layer's router, its recipe. The
// meeting point of gguf and oracle, which know nothing of each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "base/result.h"
#include "gguf/model.h"
#include "oracle/architecture.h"
#include "oracle/expert.h"
#include "oracle/layer.h"

namespace linkcpp {

// Everything a check needs to know about one MoE layer.
struct LayerPlan {
  const MoeLayer* layer = nullptr;  // owned by the model
  ArchitectureRules rules;
  Recipe recipe;
  std::uint32_t n_in = 0;   // row length the experts take
  std::uint32_t n_out = 0;  // row length they give
};

// kRefused: a dense model, a layer without experts, a type without an oracle, an architecture outside the vocabulary.
Result<LayerPlan> PlanLayer(const ModelFile& model, std::uint32_t layer);

// The same by rules that the caller gives, whatever the types: for who can do without an oracle. kRefused: the layer
// lacks tensors that make an expert.
Result<LayerPlan> PlanByRules(const MoeLayer& layer, const ArchitectureRules& rules);

// kRefused: no such expert, or no oracle for it. kLocal: reading failed.
Result<OracleExpert> LoadOracleExpert(const ModelFile& model, const LayerPlan& plan, std::uint32_t expert);

// The bytes of one expert as the file has them; empty where the model has no such tensor.
struct RawExpert {
  std::array<std::array<std::vector<std::byte>, 3>, kProjections> parts;  // [projection][weight, bias, scale]
};
// kRefused: no such expert. kLocal: reading failed.
Result<RawExpert> ReadSlabs(const ModelFile& model, const LayerPlan& plan, std::uint32_t expert);

// The model's own router of this layer. kRefused: the model has none under the usual name.
Result<Router> LoadRouter(const ModelFile& model, const LayerPlan& plan);

// `n` rows: Gaussian from a seed, or token embeddings of the model scaled to unit root mean square (what a norm does).
enum class RowSource { kGaussian, kEmbeddings };
Result<std::vector<std::vector<float>>> MakeRows(const ModelFile& model, const LayerPlan& plan, RowSource source,
                                                 std::uint32_t n, std::uint64_t seed);

// The first `n` rows of a file of little-endian float32. kRefused: not whole rows of `n_in`, or fewer than n.
Result<std::vector<std::vector<float>>> ReadRows(const std::string& path, std::uint32_t n_in, std::uint32_t n);

}  // namespace linkcpp
