#include "synth/tensor_type.h"

namespace linkcpp {
namespace {

constexpr TensorTypeInfo kTypes[] = {
    {TensorType::kF32, "f32", 1, 4},         {TensorType::kF16, "f16", 1, 2},
    {TensorType::kQ4_0, "q4_0", 32, 18},     {TensorType::kQ4_1, "q4_1", 32, 20},
    {TensorType::kQ5_0, "q5_0", 32, 22},     {TensorType::kQ5_1, "q5_1", 32, 24},
    {TensorType::kQ8_0, "q8_0", 32, 34},     {TensorType::kQ2_K, "q2_K", 256, 84},
    {TensorType::kQ3_K, "q3_K", 256, 110},   {TensorType::kQ4_K, "q4_K", 256, 144},
    {TensorType::kQ5_K, "q5_K", 256, 176},   {TensorType::kQ6_K, "q6_K", 256, 210},
    {TensorType::kIQ4_NL, "iq4_nl", 32, 18}, {TensorType::kIQ4_XS, "iq4_xs", 256, 136},
    {TensorType::kBF16, "bf16", 1, 2},       {TensorType::kMXFP4, "mxfp4", 32, 17},
};

}  // namespace

std::span<const TensorTypeInfo> AllTensorTypes() {
  return kTypes;
}

const TensorTypeInfo& InfoOf(TensorType type) {
  for (const TensorTypeInfo& info : kTypes) {
    if (info.type == type) return info;
  }
  return kTypes[0];
}

bool IsQuantised(TensorType type) {
  return InfoOf(type).block_elements > 1;
}

std::uint64_t TensorBytes(TensorType type, const std::array<std::uint64_t, 4>& ne) {
  const TensorTypeInfo& info = InfoOf(type);
  return ne[0] / info.block_elements * info.block_bytes * ne[1] * ne[2] * ne[3];
}

}  // namespace linkcpp
