// Which type each tensor gets in a file of a named quantisation, by the rules of llama.cpp's quantiser.
//
// Written from the rules as stated in docs/synth.md ("Quantisation mixes"); the end-to-end test compares every choice
// with what `llama-quantize --dry-run` says about an F16 model of the same geometry.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "synth/tensor_type.h"

namespace linkcpp {

struct Mix {
  std::string_view name;        // "Q4_K_M"
  std::uint32_t file_type = 0;  // general.file_type
  TensorType base = TensorType::kF32;
};

std::span<const Mix> KnownMixes();
const Mix* FindMix(std::string_view name);  // any case; nullptr: unknown

// What the rules look at besides a tensor's name and shape.
struct MixContext {
  std::uint32_t n_layers = 0;       // all blocks in the file, prediction layers included
  std::uint32_t n_attention_v = 0;  // tensors called attn_v, attn_qkv or attn_kv_b
  std::uint32_t n_experts = 0;
  std::uint32_t heads_per_kv = 0;  // of the first layer; 0: it has no attention
  bool tied_embeddings = false;    // token_embd is the output matrix too
};

// True on the layers that get more bits: the first and last eighth, and every third between.
bool UseMoreBits(std::uint32_t i, std::uint32_t n);

class MixRules {
 public:
  MixRules(const Mix& mix, const MixContext& context) : mix_(mix), context_(context) {}

  // Call once per tensor, layers ascending: one of the rules counts the attention tensors it has seen.
  TensorType Choose(std::string_view name, const std::array<std::uint64_t, 4>& ne, int n_dims);

 private:
  TensorType ByRule(std::string_view name, const std::array<std::uint64_t, 4>& ne);
  TensorType AttentionV();
  TensorType AttentionOutput() const;
  TensorType FfnDown(std::uint32_t layer) const;

  Mix mix_;
  MixContext context_;
  std::uint32_t i_attention_v_ = 0;
};

}  // namespace linkcpp
