// Which tensors are routed experts, and whether they fit together.
#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "gguf/model.h"
#include "gguf/tensor_type.h"

namespace linkcpp {
namespace {

struct Name {
  std::string_view text;
  int value;
};
constexpr Name kProjectionNames[] = {{"gate", static_cast<int>(Projection::kGate)},
                                     {"up", static_cast<int>(Projection::kUp)},
                                     {"down", static_cast<int>(Projection::kDown)},
                                     {"gate_up", static_cast<int>(Projection::kGateUp)}};
constexpr Name kKindNames[] = {{"weight", static_cast<int>(SlabKind::kWeight)},
                               {"bias", static_cast<int>(SlabKind::kBias)},
                               {"scale", static_cast<int>(SlabKind::kScale)},
                               {"input_scale", static_cast<int>(SlabKind::kInputScale)}};

bool Eat(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

// The dimension that counts experts: 2 for weights, 1 for biases, 0 for scales. All beyond it are 1.
std::size_t ExpertDimension(SlabKind kind) {
  switch (kind) {
    case SlabKind::kWeight: return 2;
    case SlabKind::kBias: return 1;
    case SlabKind::kScale:
    case SlabKind::kInputScale: return 0;
  }
  return 0;
}

std::optional<ExpertTensorName> ParseExpertTensorName(std::string_view name) {
  if (!Eat(name, "blk.")) return std::nullopt;
  ExpertTensorName parsed;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), parsed.layer.value);
  if (error != std::errc() || (name[0] == '0' && end != name.data() + 1)) return std::nullopt;
  name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  if (!Eat(name, ".ffn_")) return std::nullopt;
  const std::size_t middle = name.find("_exps.");
  if (middle == std::string_view::npos) return std::nullopt;
  const std::string_view projection = name.substr(0, middle);
  const std::string_view kind = name.substr(middle + std::string_view("_exps.").size());
  const auto* found_projection = std::ranges::find(kProjectionNames, projection, &Name::text);
  const auto* found_kind = std::ranges::find(kKindNames, kind, &Name::text);
  if (found_projection == std::end(kProjectionNames) || found_kind == std::end(kKindNames)) return std::nullopt;
  parsed.projection = static_cast<Projection>(found_projection->value);
  parsed.kind = static_cast<SlabKind>(found_kind->value);
  return parsed;
}

const char* SlabKindName(SlabKind kind) {
  for (const Name& name : kKindNames) {
    if (name.value == static_cast<int>(kind)) return name.text.data();
  }
  return "?";
}

const ExpertTensor* MoeLayer::Find(Projection projection, SlabKind kind) const {
  for (const ExpertTensor& tensor : tensors) {
    if (tensor.projection == projection && tensor.kind == kind) return &tensor;
  }
  return nullptr;
}

Result<std::vector<MoeLayer>> FindMoeLayers(std::span<const TensorInfo> tensors) {
  std::map<LayerId, MoeLayer> layers;
  for (const TensorInfo& tensor : tensors) {
    const auto name = ParseExpertTensorName(tensor.name);
    if (!name) continue;
    const std::size_t dimension = ExpertDimension(name->kind);
    const std::uint64_t n_experts = tensor.ne[dimension];
    bool fits = n_experts >= 1 && n_experts <= 65536 && tensor.size_bytes > 0;
    for (std::size_t i = dimension + 1; i < tensor.ne.size(); ++i) fits = fits && tensor.ne[i] == 1;
    // One scale an expert must be a whole number of blocks.
    fits = fits && (dimension > 0 || TensorTypeBlock(tensor.type).value_or(TensorBlock{}).n_elements == 1);
    if (!fits) {
      return Fail(FaultCode::kMalformed,
                  "expert tensor '{}' has the shape [{}, {}, {}, {}] {}, which is not one {} per expert", tensor.name,
                  tensor.ne[0], tensor.ne[1], tensor.ne[2], tensor.ne[3], TensorTypeName(tensor.type),
                  SlabKindName(name->kind));
    }
    MoeLayer& layer = layers[name->layer];
    layer.layer = name->layer;
    if (layer.tensors.empty()) layer.n_experts = static_cast<std::uint32_t>(n_experts);
    if (layer.n_experts != n_experts) {
      return Fail(FaultCode::kMalformed, "expert tensor '{}' has {} experts, '{}' has {}", tensor.name, n_experts,
                  layer.tensors.front().tensor->name, layer.n_experts);
    }
    layer.tensors.push_back({name->projection, name->kind, &tensor, tensor.size_bytes / n_experts});
  }
  std::vector<MoeLayer> sorted;
  for (auto& [id, layer] : layers) {
    std::ranges::sort(layer.tensors, {},
                      [](const ExpertTensor& tensor) { return std::tuple(tensor.kind, tensor.projection); });
    for (const ExpertTensor& tensor : layer.tensors) {
      layer.slice_bytes += tensor.slab_bytes;
      if (tensor.kind != SlabKind::kWeight && layer.Find(tensor.projection, SlabKind::kWeight) == nullptr) {
        return Fail(FaultCode::kMalformed, "'{}' belongs to no expert weight of layer {}", tensor.tensor->name,
                    id.value);
      }
    }
    sorted.push_back(std::move(layer));
  }
  return sorted;
}

}  // namespace linkcpp
