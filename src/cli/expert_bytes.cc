#include "cli/expert_bytes.h"

namespace linkcpp {

ExpertSlabs ExpertBytes::slabs() const {
  ExpertSlabs slabs;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    slabs.projections[p] = {parts[p][0], parts[p][1], parts[p][2]};
  }
  return slabs;
}

Result<ExpertBytes> LoadExpertBytes(const ModelFile& model, const LayerPlan& plan, std::uint32_t expert) {
  ExpertBytes out;
  ASSIGN_OR_RETURN(static_cast<RawExpert&>(out), ReadSlabs(model, plan, expert));
  for (const ExpertTensor& tensor : plan.layer->tensors) {
    auto& shape = out.shape.projections[static_cast<std::size_t>(tensor.projection)];
    if (tensor.kind == SlabKind::kWeight) {
      shape = ProjectionShape{.type = tensor.tensor->type,
                              .n_in = static_cast<std::uint32_t>(tensor.tensor->ne[0]),
                              .n_out = static_cast<std::uint32_t>(tensor.tensor->ne[1])};
    } else if (shape.has_value() && tensor.kind == SlabKind::kBias) {
      shape->has_bias = true;
    } else if (shape.has_value() && tensor.kind == SlabKind::kScale) {
      shape->has_scale = true;
    }
  }
  return out;
}

}  // namespace linkcpp
