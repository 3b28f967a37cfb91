#include "synth/quant_mix.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace linkcpp {
namespace {

using enum TensorType;

constexpr Mix kMixes[] = {
    {"F32", 0, kF32},      {"F16", 1, kF16},        {"BF16", 32, kBF16},     {"Q8_0", 7, kQ8_0},
    {"Q4_0", 2, kQ4_0},    {"Q4_1", 3, kQ4_1},      {"Q5_0", 8, kQ5_0},      {"Q5_1", 9, kQ5_1},
    {"Q2_K", 10, kQ2_K},   {"Q3_K_S", 11, kQ3_K},   {"Q3_K_M", 12, kQ3_K},   {"Q3_K_L", 13, kQ3_K},
    {"Q4_K_S", 14, kQ4_K}, {"Q4_K_M", 15, kQ4_K},   {"Q5_K_S", 16, kQ5_K},   {"Q5_K_M", 17, kQ5_K},
    {"Q6_K", 18, kQ6_K},   {"IQ4_NL", 25, kIQ4_NL}, {"IQ4_XS", 30, kIQ4_XS}, {"MXFP4_MOE", 38, kMXFP4},
};

bool SameIgnoringCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::toupper(x) == std::toupper(y); });
}

bool Has(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

// "blk.7.…" -> 7; 0 for a tensor that belongs to no block.
std::uint32_t LayerOf(std::string_view name) {
  std::uint32_t layer = 0;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

// Norms, the router and the small convolutions stay F32.
bool MayQuantise(std::string_view name, int n_dims) {
  if (n_dims < 2 || !name.ends_with("weight")) return false;
  return !name.ends_with("_norm.weight") && !Has(name, "ffn_gate_inp.weight") && !Has(name, "ssm_conv1d") &&
         !Has(name, "shortconv.conv.weight");
}

// A row that the type's block does not divide takes the next type with blocks of 32, or F16.
TensorType Fitting(TensorType wanted, std::uint64_t columns) {
  if (columns % InfoOf(wanted).block_elements == 0) return wanted;
  TensorType other = kF16;
  switch (wanted) {
    case kIQ4_XS: other = kIQ4_NL; break;
    case kQ2_K:
    case kQ3_K: other = kQ4_0; break;
    case kQ4_K: other = kQ5_0; break;
    case kQ5_K: other = kQ5_1; break;
    case kQ6_K: other = kQ8_0; break;
    default: break;
  }
  return columns % InfoOf(other).block_elements == 0 ? other : kF16;
}

}  // namespace

std::span<const Mix> KnownMixes() {
  return kMixes;
}

const Mix* FindMix(std::string_view name) {
  const auto it = std::ranges::find_if(kMixes, [&](const Mix& mix) { return SameIgnoringCase(mix.name, name); });
  return it == std::end(kMixes) ? nullptr : &*it;
}

bool UseMoreBits(std::uint32_t i, std::uint32_t n) {
  return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

TensorType MixRules::Choose(std::string_view name, const std::array<std::uint64_t, 4>& ne, int n_dims) {
  if (!MayQuantise(name, n_dims)) return kF32;
  if (!IsQuantised(mix_.base)) return mix_.base;
  return Fitting(ByRule(name, ne), ne[0]);
}

TensorType MixRules::ByRule(std::string_view name, const std::array<std::uint64_t, 4>& ne) {
  const bool moe_only = mix_.base == kMXFP4;
  if (name == "output.weight" || (context_.tied_embeddings && name == "token_embd.weight")) {
    if (moe_only || ne[0] % InfoOf(mix_.base).block_elements != 0 || mix_.base == kQ8_0) return kQ8_0;
    return kQ6_K;
  }
  if (moe_only) return ne[2] > 1 ? kMXFP4 : kQ8_0;
  if (name == "token_embd.weight") return mix_.base;
  if (Has(name, "attn_v.weight") || Has(name, "attn_qkv.weight") || Has(name, "attn_kv_b.weight")) return AttentionV();
  if (Has(name, "attn_k.weight")) return context_.n_experts == 8 ? kQ8_0 : mix_.base;
  if (Has(name, "attn_output.weight")) return AttentionOutput();
  if (Has(name, "ffn_down")) return FfnDown(LayerOf(name));
  return mix_.base;
}

TensorType MixRules::AttentionV() {
  const std::uint32_t i = i_attention_v_++;
  if (context_.n_experts == 8) return kQ8_0;
  const bool shared_by_many = context_.heads_per_kv >= 4;
  if (mix_.name == "Q2_K") return shared_by_many ? kQ4_K : kQ3_K;
  if (mix_.name == "Q3_K_M") return i < 2 ? kQ5_K : kQ4_K;
  if (mix_.name == "Q3_K_L") return kQ5_K;
  if ((mix_.name == "IQ4_NL" || mix_.name == "IQ4_XS") && shared_by_many) return kQ5_K;
  if ((mix_.name == "Q4_K_M" || mix_.name == "Q5_K_M") && UseMoreBits(i, context_.n_attention_v)) return kQ6_K;
  if (mix_.name == "Q4_K_S" && i < 4) return kQ5_K;
  return mix_.base;
}

TensorType MixRules::AttentionOutput() const {
  if (context_.n_experts == 8) {
    static constexpr std::string_view kLow[] = {"Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS"};
    return std::ranges::contains(kLow, mix_.name) ? kQ5_K : mix_.base;
  }
  if (mix_.name == "Q2_K") return kQ3_K;
  if (mix_.name == "Q3_K_M") return kQ4_K;
  if (mix_.name == "Q3_K_L") return kQ5_K;
  return mix_.base;
}

TensorType MixRules::FfnDown(std::uint32_t layer) const {
  const std::uint32_t n = context_.n_layers;
  if (mix_.name == "Q2_K") return kQ3_K;
  if (mix_.name == "Q3_K_M") return layer < n / 16 ? kQ5_K : kQ4_K;
  if (mix_.name == "Q3_K_L") return kQ5_K;
  if (mix_.name == "Q4_K_M" || mix_.name == "Q5_K_M") return UseMoreBits(layer, n) ? kQ6_K : mix_.base;
  if ((mix_.name == "IQ4_NL" || mix_.name == "IQ4_XS" || mix_.name == "Q4_K_S") && layer < n / 8) return kQ5_K;
  return mix_.base;
}

}  // namespace linkcpp
