#include "kernel/shape.h"

#include <limits>

namespace linkcpp {
namespace {

constexpr std::uint64_t kMaxLength = std::numeric_limits<std::uint32_t>::max();

std::unexpected<Fault> Refuse(const TensorInfo& tensor, std::string_view why) {
  return Fail(FaultCode::kRefused, "tensor {} ({}, {}, {}, {}): {}", tensor.name, tensor.ne[0], tensor.ne[1],
              tensor.ne[2], tensor.ne[3], why);
}

}  // namespace

Result<ExpertShape> ShapeOf(const MoeLayer& layer) {
  ExpertShape shape;
  for (const ExpertTensor& part : layer.tensors) {
    if (part.kind != SlabKind::kWeight) continue;
    const auto& ne = part.tensor->ne;
    if (ne[2] != layer.n_experts || ne[3] != 1) return Refuse(*part.tensor, "not one matrix per expert");
    if (ne[0] > kMaxLength || ne[1] > kMaxLength) return Refuse(*part.tensor, "too long");
    shape.projections[static_cast<std::size_t>(part.projection)] =
        ProjectionShape{.type = part.tensor->type,
                        .n_in = static_cast<std::uint32_t>(ne[0]),
                        .n_out = static_cast<std::uint32_t>(ne[1])};
  }
  for (const ExpertTensor& part : layer.tensors) {
    if (part.kind == SlabKind::kWeight || part.kind == SlabKind::kInputScale) continue;
    std::optional<ProjectionShape>& projection = shape.projections[static_cast<std::size_t>(part.projection)];
    if (!projection) return Refuse(*part.tensor, "there is no weight that it belongs to");
    const bool is_bias = part.kind == SlabKind::kBias;
    const std::uint64_t slab_bytes = sizeof(float) * (is_bias ? projection->n_out : std::uint64_t{1});
    if (part.tensor->type != 0 || part.slab_bytes != slab_bytes)
      return Refuse(*part.tensor, "not f32 of the weight's length");
    (is_bias ? projection->has_bias : projection->has_scale) = true;
  }
  return shape;
}

}  // namespace linkcpp
