#include "coordinator/served_model.h"

#include <algorithm>
#include <filesystem>
#include <format>
#include <new>
#include <optional>

#include "gguf/slab_hash.h"
#include "gguf/tensor_type.h"

namespace linkcpp {
namespace {

constexpr std::size_t kPlannedShards = 16;

// "/models/a-00001-of-00003.gguf" -> "a". What is left goes into URLs, so odd characters become dashes.
std::string NameOf(const std::string& path) {
  std::string name = std::filesystem::path(path).stem().string();
  constexpr std::size_t kSplitLength = 15;  // "-00001-of-00003"
  if (name.size() > kSplitLength) {
    const std::string_view tail = std::string_view(name).substr(name.size() - kSplitLength);
    const auto digits = [](std::string_view text) {
      return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
    };
    if (tail[0] == '-' && digits(tail.substr(1, 5)) && tail.substr(6, 4) == "-of-" && digits(tail.substr(10))) {
      name.resize(name.size() - kSplitLength);
    }
  }
  for (char& c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!plain) c = '-';
  }
  return name.empty() ? "model" : name;
}

bool Everything(std::string_view text) {
  return text.empty() || text == "all";
}

}  // namespace

Result<std::unique_ptr<ServedModel>> ServedModel::Load(const std::string& model_path, const std::string& cache_dir,
                                                       const Manifest::Progress& progress) {
  ASSIGN_OR_RETURN(ModelFile model, ModelFile::Open(model_path));
  RETURN_IF_FAULT(model.RequireExperts());
  if (IsShard(model)) {
    return Fail(FaultCode::kRefused, "{} is a shard, a part of a model: serve the model it was cut from", model.name());
  }
  ASSIGN_OR_RETURN(Manifest manifest, Manifest::LoadOrCompute(model, cache_dir, progress));
  return std::unique_ptr<ServedModel>(new ServedModel(std::move(model), std::move(manifest)));
}

ServedModel::ServedModel(ModelFile model, Manifest manifest)
    : model_(std::move(model)), manifest_(std::move(manifest)) {
  summary_.name = NameOf(model_.paths().front());
  summary_.model_id = manifest_.model_id().Hex();
  summary_.header_hash = model_.header_hash().Hex();
  summary_.architecture = model_.architecture();
  summary_.n_moe_layers = model_.moe_layers().size();
  summary_.n_experts_used = model_.ArchInteger("expert_used_count").value_or(0);
  summary_.n_embd = model_.ArchInteger("embedding_length").value_or(0);
  summary_.expert_bytes = model_.total_expert_bytes();
  for (const MoeLayer& layer : model_.moe_layers()) {
    summary_.n_experts = std::max<std::uint64_t>(summary_.n_experts, layer.n_experts);
    geometry_.push_back({layer.layer, layer.n_experts, layer.slice_bytes});
  }
  detail_json_ = ToJson(MakeDetail());
}

ModelDetail ServedModel::MakeDetail() const {
  ModelDetail detail;
  detail.summary = summary_;
  for (const MoeLayer& layer : model_.moe_layers()) {
    LayerDetail& out = detail.layers.emplace_back();
    out.layer = layer.layer.value;
    out.n_experts = layer.n_experts;
    out.slice_bytes = layer.slice_bytes;
    for (const ExpertTensor& tensor : layer.tensors) {
      TensorDetail& row = out.tensors.emplace_back();
      row.projection = ProjectionName(tensor.projection);
      row.kind = SlabKindName(tensor.kind);
      row.type = TensorTypeName(tensor.tensor->type);
      row.ne.assign(tensor.tensor->ne.begin(), tensor.tensor->ne.end());
      row.slab_bytes = tensor.slab_bytes;
    }
    for (std::uint32_t expert = 0; expert < layer.n_experts; ++expert) {
      const auto* hashes = manifest_.Find({layer.layer, ExpertId(static_cast<std::uint16_t>(expert))});
      if (hashes == nullptr) continue;
      for (std::size_t i = 0; i < hashes->size() && i < out.tensors.size(); ++i) {
        out.tensors[i].hashes.push_back((*hashes)[i].hash.Hex());
      }
    }
  }
  return detail;
}

bool ServedModel::Is(std::string_view wanted) const {
  return wanted.empty() || wanted == summary_.name || wanted == summary_.model_id;
}

Result<std::vector<std::uint16_t>> ServedModel::ParseLayers(std::string_view text) const {
  std::vector<std::uint16_t> all;
  for (const LayerGeometry& layer : geometry_) all.push_back(layer.layer.value);
  if (Everything(text)) return all;
  ASSIGN_OR_RETURN(std::vector<std::uint16_t> layers, ParseRanges(text, all.back() + 1u));
  for (const std::uint16_t layer : layers) {
    if (!std::ranges::binary_search(all, layer)) {
      return Fail(FaultCode::kRefused, "layer {} has no routed experts; those that have: {}", layer, FormatRanges(all));
    }
  }
  return layers;
}

Result<std::vector<std::uint16_t>> ServedModel::ParseExperts(std::string_view text,
                                                             std::span<const std::uint16_t> layers) const {
  std::uint32_t limit = 0;
  for (const std::uint16_t layer : layers) {
    if (const MoeLayer* found = model_.FindMoeLayer(LayerId(layer))) limit = std::max(limit, found->n_experts);
  }
  return ParseRanges(text, limit);
}

std::vector<LayerHoldings> ServedModel::ToHoldings(std::span<const SliceId> sorted_slices) const {
  std::vector<LayerHoldings> holdings;
  for (std::size_t i = 0; i < sorted_slices.size();) {
    const LayerId layer = sorted_slices[i].layer;
    std::vector<std::uint16_t> experts;
    for (; i < sorted_slices.size() && sorted_slices[i].layer == layer; ++i) {
      experts.push_back(sorted_slices[i].expert.value);
    }
    holdings.push_back({layer.value, FormatRanges(experts)});
  }
  return holdings;
}

Result<std::vector<SliceId>> ServedModel::FromHoldings(std::span<const LayerHoldings> holdings) const {
  std::vector<SliceId> slices;
  if (holdings.size() > geometry_.size()) {
    return Fail(FaultCode::kMalformed, "holdings name {} layers, the model has {} with experts", holdings.size(),
                geometry_.size());
  }
  for (const LayerHoldings& holding : holdings) {
    const MoeLayer* layer = model_.FindMoeLayer(LayerId(holding.layer));
    if (layer == nullptr) return Fail(FaultCode::kMalformed, "holdings: layer {} has no experts", holding.layer);
    if (holding.experts.empty()) continue;  // here "" is none, not all
    const auto experts = ParseRanges(holding.experts, layer->n_experts);
    if (!experts) return Fail(FaultCode::kMalformed, "holdings of layer {}: {}", holding.layer, experts.error().text);
    for (const std::uint16_t expert : *experts) slices.push_back({layer->layer, ExpertId(expert)});
  }
  std::ranges::sort(slices);
  const auto doubles = std::ranges::unique(slices);
  slices.erase(doubles.begin(), doubles.end());
  return slices;
}

Result<std::shared_ptr<const Shard>> ServedModel::PlanShard(const std::string& layers,
                                                            const std::string& experts) const {
  const std::string key = layers + "&" + experts;
  {
    const std::lock_guard lock(planned_mutex_);
    const auto found = std::ranges::find(planned_, key, &Planned::key);
    if (found != planned_.end()) {
      planned_.splice(planned_.begin(), planned_, found);
      return found->shard;
    }
  }
  ASSIGN_OR_RETURN(const std::vector<std::uint16_t> layer_list, ParseLayers(layers));
  ASSIGN_OR_RETURN(const std::vector<std::uint16_t> expert_list, ParseExperts(experts, layer_list));
  ASSIGN_OR_RETURN(Shard planned, Shard::Plan(model_, manifest_, layer_list, expert_list));
  auto shard = std::make_shared<const Shard>(std::move(planned));
  const std::lock_guard lock(planned_mutex_);
  planned_.push_front({key, shard});
  if (planned_.size() > kPlannedShards) planned_.pop_back();
  return shard;
}

Result<std::string> ServedModel::SlabHashOf(std::uint16_t layer, std::uint16_t expert, std::string_view tensor) const {
  if (const auto* hashes = manifest_.Find({LayerId(layer), ExpertId(expert)})) {
    for (const SlabHash& slab : *hashes) {
      if (SlabName(slab.projection, slab.kind) == tensor) return slab.hash.Hex();
    }
  }
  return Fail(FaultCode::kRefused, "the model has no tensor {} in layer {} expert {}", tensor, layer, expert);
}

}  // namespace linkcpp
