#include "worker/catalog.h"

#include <algorithm>
#include <optional>

#include "gguf/tensor_type.h"

namespace linkcpp {
namespace {

std::optional<Projection> ProjectionFrom(std::string_view name) {
  for (int i = 0; i < kProjections; ++i) {
    if (name == ProjectionName(static_cast<Projection>(i))) return static_cast<Projection>(i);
  }
  return std::nullopt;
}

std::optional<SlabKind> KindFrom(std::string_view name) {
  if (name == "weight") return SlabKind::kWeight;
  if (name == "bias") return SlabKind::kBias;
  if (name == "scale") return SlabKind::kScale;
  if (name == "input_scale") return SlabKind::kInputScale;
  return std::nullopt;
}

constexpr std::uint64_t kMaxSide = 1u << 20;  // of one expert matrix
constexpr std::uint64_t kMaxSlabBytes = 4ull << 30;

Result<CatalogTensor> ReadTensor(const TensorDetail& detail, std::uint32_t n_experts, ExpertShape& shape) {
  CatalogTensor tensor;
  const auto projection = ProjectionFrom(detail.projection);
  const auto kind = KindFrom(detail.kind);
  if (!projection || !kind)
    return Fail(FaultCode::kMalformed, "unknown tensor '{}.{}'", detail.projection, detail.kind);
  tensor.projection = *projection;
  tensor.kind = *kind;
  tensor.slab_bytes = detail.slab_bytes;
  if (detail.slab_bytes == 0 || detail.slab_bytes > kMaxSlabBytes || detail.hashes.size() != n_experts) {
    return Fail(FaultCode::kMalformed, "{}.{}: slabs of {} bytes with {} hashes for {} experts", detail.projection,
                detail.kind, detail.slab_bytes, detail.hashes.size(), n_experts);
  }
  tensor.hashes.reserve(detail.hashes.size());
  for (const std::string& hex : detail.hashes) {
    ASSIGN_OR_RETURN(const Hash hash, Hash::FromHex(hex));
    tensor.hashes.push_back(hash);
  }
  auto& entry = shape.projections[static_cast<std::size_t>(*projection)];
  if (*kind == SlabKind::kWeight) {
    const auto type = TensorTypeNumber(detail.type);
    if (!type)
      return Fail(FaultCode::kMalformed, "{}: this build's ggml has no type '{}'", detail.projection, detail.type);
    if (detail.ne.size() < 2 || detail.ne[0] == 0 || detail.ne[1] == 0 || detail.ne[0] > kMaxSide ||
        detail.ne[1] > kMaxSide) {
      return Fail(FaultCode::kMalformed, "{}: not the shape of an expert matrix", detail.projection);
    }
    entry = ProjectionShape{.type = *type,
                            .n_in = static_cast<std::uint32_t>(detail.ne[0]),
                            .n_out = static_cast<std::uint32_t>(detail.ne[1])};
  } else if (entry) {  // weights come first (ReadLayer sorts)
    if (*kind == SlabKind::kBias) entry->has_bias = true;
    if (*kind == SlabKind::kScale) entry->has_scale = true;
  } else {
    return Fail(FaultCode::kMalformed, "{}.{} without its weight", detail.projection, detail.kind);
  }
  return tensor;
}

Result<CatalogLayer> ReadLayer(const LayerDetail& detail) {
  CatalogLayer layer;
  layer.layer = LayerId(detail.layer);
  layer.n_experts = detail.n_experts;
  if (detail.n_experts == 0 || detail.n_experts > 65536 || detail.tensors.empty()) {
    return Fail(FaultCode::kMalformed, "{} experts in {} tensors", detail.n_experts, detail.tensors.size());
  }
  std::vector<const TensorDetail*> order;
  for (const TensorDetail& tensor : detail.tensors) order.push_back(&tensor);
  std::ranges::stable_partition(order, [](const TensorDetail* tensor) { return tensor->kind == "weight"; });
  for (const TensorDetail* tensor : order) {
    ASSIGN_OR_RETURN(CatalogTensor read, ReadTensor(*tensor, detail.n_experts, layer.shape));
    layer.slice_bytes += read.slab_bytes;
    layer.tensors.push_back(std::move(read));
  }
  return layer;
}

}  // namespace

Result<Catalog> Catalog::Make(const ModelDetail& detail) {
  Catalog catalog;
  catalog.model_name_ = detail.summary.name;
  catalog.model_id_ = detail.summary.model_id;
  for (const LayerDetail& layer_detail : detail.layers) {
    auto layer = ReadLayer(layer_detail);
    if (!layer) return Wrap(layer.error(), std::format("model {}, layer {}", detail.summary.name, layer_detail.layer));
    catalog.layers_.insert_or_assign(layer->layer, std::move(*layer));
  }
  if (catalog.layers_.empty()) return Fail(FaultCode::kMalformed, "model {} has no experts", detail.summary.name);
  return catalog;
}

const CatalogLayer* Catalog::Find(LayerId layer) const {
  const auto it = layers_.find(layer);
  return it == layers_.end() ? nullptr : &it->second;
}

ExpertSlabs SlabsOf(const CatalogLayer& layer, std::span<const std::byte> slice) {
  ExpertSlabs slabs;
  for (const CatalogTensor& tensor : layer.tensors) {
    const auto bytes = slice.first(tensor.slab_bytes);
    slice = slice.subspan(tensor.slab_bytes);
    auto& entry = slabs.projections[static_cast<std::size_t>(tensor.projection)];
    if (tensor.kind == SlabKind::kWeight) entry.weight = bytes;
    if (tensor.kind == SlabKind::kBias) entry.bias = bytes;
    if (tensor.kind == SlabKind::kScale) entry.scale = bytes;
  }
  return slabs;
}

}  // namespace linkcpp
