#include "reference/model_oracle.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

#include "oracle/dequantise.h"

namespace linkcpp {
namespace {

// A whole tensor as float32.
Result<std::vector<float>> ReadFloats(const ModelFile& model, const TensorInfo& tensor) {
  auto layout = LayoutOf(tensor.type);
  if (!layout.has_value()) return Wrap(layout.error(), tensor.name);
  std::vector<std::byte> bytes(tensor.size_bytes);
  RETURN_IF_FAULT(model.ReadAt(tensor.file, tensor.offset, bytes));
  std::vector<float> values(tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3]);
  if (auto done = Dequantise(*layout, bytes, values); !done.has_value()) return Wrap(done.error(), tensor.name);
  return values;
}

std::string LayerTensor(const LayerPlan& plan, std::string_view suffix) {
  return std::format("blk.{}.{}", plan.layer->layer.value, suffix);
}

Result<std::vector<float>> AsFloats(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const WeightLayout f32, LayoutOf(std::to_underlying(WeightType::kF32)));
  std::vector<float> values(bytes.size() / f32.block_bytes);
  RETURN_IF_FAULT(Dequantise(f32, bytes, values));
  return values;
}

}  // namespace

Result<LayerPlan> PlanLayer(const ModelFile& model, std::uint32_t layer) {
  RETURN_IF_FAULT(model.RequireExperts());
  const MoeLayer* found = model.FindMoeLayer(LayerId(static_cast<std::uint16_t>(layer)));
  if (layer > 0xffff || found == nullptr) {
    std::string layers;
    for (const MoeLayer& moe : model.moe_layers())
      layers += std::format("{}{}", layers.empty() ? "" : ", ", moe.layer.value);
    return Fail(FaultCode::kRefused, "layer {} of {} has no routed experts; layers that have: {}", layer, model.name(),
                layers);
  }
  ASSIGN_OR_RETURN(const ArchitectureRules rules, RulesOf(model.architecture()));
  for (const ExpertTensor& tensor : found->tensors) {
    if (tensor.kind != SlabKind::kWeight) continue;
    if (const auto layout = LayoutOf(tensor.tensor->type); !layout) return Wrap(layout.error(), tensor.tensor->name);
  }
  return PlanByRules(*found, rules);
}

Result<LayerPlan> PlanByRules(const MoeLayer& layer, const ArchitectureRules& rules) {
  LayerPlan plan{.layer = &layer, .rules = rules, .recipe = {}};
  ExpertParts parts;
  for (const ExpertTensor& tensor : layer.tensors) {
    const auto index = static_cast<std::size_t>(tensor.projection);
    if (tensor.kind == SlabKind::kWeight) parts.weight[index] = true;
    if (tensor.kind == SlabKind::kBias) parts.bias[index] = true;
    if (tensor.kind == SlabKind::kScale) parts.scale[index] = true;
  }
  auto recipe = RecipeFor(rules, parts);
  if (!recipe.has_value()) return Wrap(recipe.error(), std::format("layer {}", layer.layer.value));
  plan.recipe = std::move(*recipe);
  const ExpertTensor* first = layer.Find(Projection::kUp, SlabKind::kWeight);
  if (first == nullptr) first = layer.Find(Projection::kGateUp, SlabKind::kWeight);
  plan.n_in = static_cast<std::uint32_t>(first->tensor->ne[0]);
  plan.n_out = static_cast<std::uint32_t>(layer.Find(Projection::kDown, SlabKind::kWeight)->tensor->ne[1]);
  return plan;
}

Result<RawExpert> ReadSlabs(const ModelFile& model, const LayerPlan& plan, std::uint32_t expert) {
  if (expert >= plan.layer->n_experts) {
    return Fail(FaultCode::kRefused, "layer {} has experts 0 to {}, not {}", plan.layer->layer.value,
                plan.layer->n_experts - 1, expert);
  }
  ASSIGN_OR_RETURN(const auto slabs, model.Slabs({plan.layer->layer, ExpertId(static_cast<std::uint16_t>(expert))}));
  RawExpert out;
  for (const SlabRef& slab : slabs) {
    if (slab.kind == SlabKind::kInputScale) continue;
    auto& bytes = out.parts[static_cast<std::size_t>(slab.projection)][static_cast<std::size_t>(slab.kind)];
    bytes.resize(slab.size_bytes);
    RETURN_IF_FAULT(model.ReadAt(slab.file, slab.offset, bytes));
  }
  return out;
}

Result<OracleExpert> LoadOracleExpert(const ModelFile& model, const LayerPlan& plan, std::uint32_t expert) {
  ASSIGN_OR_RETURN(const RawExpert bytes, ReadSlabs(model, plan, expert));
  OracleExpert oracle;
  for (std::size_t p = 0; p < bytes.parts.size(); ++p) {
    const ExpertTensor* weight = plan.layer->Find(static_cast<Projection>(p), SlabKind::kWeight);
    if (weight == nullptr) continue;
    const std::string what = std::format("layer {} expert {} {}", plan.layer->layer.value, expert,
                                         ProjectionName(static_cast<Projection>(p)));
    const auto& ne = weight->tensor->ne;
    ASSIGN_OR_RETURN(OracleMatrix matrix,
                     OracleMatrix::Make(what, weight->tensor->type, static_cast<std::uint32_t>(ne[0]),
                                        static_cast<std::uint32_t>(ne[1]), bytes.parts[p][0]));
    ASSIGN_OR_RETURN(matrix.bias, AsFloats(bytes.parts[p][1]));
    ASSIGN_OR_RETURN(const std::vector<float> scale, AsFloats(bytes.parts[p][2]));
    if (!scale.empty()) matrix.scale = scale[0];
    oracle.projections[p] = std::move(matrix);
  }
  return oracle;
}

Result<Router> LoadRouter(const ModelFile& model, const LayerPlan& plan) {
  const std::string name = LayerTensor(plan, "ffn_gate_inp.weight");
  const TensorInfo* weights = model.FindTensor(name);
  if (weights == nullptr) return Fail(FaultCode::kRefused, "{} has no router {}", model.name(), name);
  const std::size_t layer = plan.layer->layer.value;
  Router router;
  router.n_in = static_cast<std::uint32_t>(weights->ne[0]);
  router.n_experts = static_cast<std::uint32_t>(weights->ne[1]);
  if (router.n_experts != plan.layer->n_experts) {
    return Fail(FaultCode::kRefused, "{} chooses among {} experts, the layer has {}", name, router.n_experts,
                plan.layer->n_experts);
  }
  if (router.n_in != plan.n_in) {
    return Fail(FaultCode::kRefused,
                "layer {} is a latent MoE: its router takes rows of {}, its experts rows of {} that the model makes in "
                "between; only verify expert can check its experts",
                layer, router.n_in, plan.n_in);
  }
  ASSIGN_OR_RETURN(router.weights, ReadFloats(model, *weights));
  if (const TensorInfo* bias = model.FindTensor(LayerTensor(plan, "ffn_gate_inp.bias"))) {
    ASSIGN_OR_RETURN(router.bias, ReadFloats(model, *bias));
  }
  for (const char* suffix : {"exp_probs_b.bias", "exp_probs_b"}) {
    if (const TensorInfo* bias = model.FindTensor(LayerTensor(plan, suffix))) {
      ASSIGN_OR_RETURN(router.selection_bias, ReadFloats(model, *bias));
    }
  }

  RouterRule& rule = router.rule;
  const std::string prefix = model.architecture() + ".";
  rule.gating = plan.rules.gating;
  rule.renormalise = plan.rules.renormalise;
  rule.select_logits = plan.rules.select_logits;
  rule.weigh_input = plan.rules.weigh_input;
  rule.n_used = static_cast<std::uint32_t>(model.ArchInteger("expert_used_count", layer).value_or(0));
  if (rule.n_used == 0) return Fail(FaultCode::kRefused, "{} does not say {}expert_used_count", model.name(), prefix);
  if (const auto gating = model.ArchInteger("expert_gating_func", layer); gating.value_or(0) != 0) {
    if (*gating > 4) return Fail(FaultCode::kRefused, "{}expert_gating_func is {}: unknown", prefix, *gating);
    rule.gating = static_cast<Gating>(*gating);
  }
  if (const auto norm = model.Flag(prefix + "expert_weights_norm")) rule.renormalise = *norm;
  if (const auto scale = model.Number(prefix + "expert_weights_scale"); scale.value_or(0) != 0) rule.scale = *scale;
  if (const auto groups = model.ArchInteger("expert_group_count", layer); groups.value_or(0) > 1) {
    rule.n_groups = static_cast<std::uint32_t>(*groups);
    rule.n_groups_used = static_cast<std::uint32_t>(model.ArchInteger("expert_group_used_count", layer).value_or(1));
  }
  return router;
}

Result<std::vector<std::vector<float>>> MakeRows(const ModelFile& model, const LayerPlan& plan, RowSource source,
                                                 std::uint32_t n, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::vector<float>> rows;
  if (source == RowSource::kGaussian) {
    for (std::uint32_t r = 0; r < n; ++r) {
      auto& row = rows.emplace_back();
      for (std::uint32_t i = 0; i < plan.n_in; ++i) row.push_back(static_cast<float>(Gaussian(rng)));
    }
    return rows;
  }
  const TensorInfo* embeddings = model.FindTensor("token_embd.weight");
  if (embeddings == nullptr) return Fail(FaultCode::kRefused, "{} has no token_embd.weight", model.name());
  if (embeddings->ne[0] != plan.n_in) {
    return Fail(FaultCode::kRefused, "token embeddings have {} elements, the experts take {}", embeddings->ne[0],
                plan.n_in);
  }
  ASSIGN_OR_RETURN(const WeightLayout layout, LayoutOf(embeddings->type));
  ASSIGN_OR_RETURN(const std::uint64_t row_bytes, BytesOf(layout, embeddings->ne[0], 1));
  std::vector<std::byte> bytes(row_bytes);
  for (std::uint32_t r = 0; r < n; ++r) {
    RETURN_IF_FAULT(
        model.ReadAt(embeddings->file, embeddings->offset + rng.Below(embeddings->ne[1]) * row_bytes, bytes));
    auto& row = rows.emplace_back(plan.n_in);
    RETURN_IF_FAULT(Dequantise(layout, bytes, row));
    double squares = 0;
    for (const float v : row) squares += double{v} * v;
    const double rms = std::sqrt(squares / plan.n_in);
    for (float& v : row) v = static_cast<float>(rms > 0 ? v / rms : 0);
  }
  return rows;
}

Result<std::vector<std::vector<float>>> ReadRows(const std::string& path, std::uint32_t n_in, std::uint32_t n) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Fail(FaultCode::kLocal, "{}: cannot be opened (rows are gaussian, embeddings, or a file)", path);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::size_t row_bytes = std::size_t{n_in} * 4;
  if (bytes.size() % row_bytes != 0 || bytes.size() < row_bytes * n) {
    return Fail(FaultCode::kRefused, "{}: {} bytes are not {} or more rows of {} float32", path, bytes.size(), n, n_in);
  }
  std::vector<std::vector<float>> rows;
  for (std::uint32_t r = 0; r < n; ++r) {
    ASSIGN_OR_RETURN(rows.emplace_back(), AsFloats(std::as_bytes(std::span(bytes).subspan(r * row_bytes, row_bytes))));
  }
  return rows;
}

}  // namespace linkcpp
