// The published shapes of Mixture-of-Experts models: everything needed to write down each of their tensors.
//
// A table, no behaviour. Sources of the numbers: docs/synth.md. A test adds up the parameters of each row and compares
// them with what llama.cpp prints for the real model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace linkcpp {

enum class Mixer : std::uint8_t {
  kAttention,  // every layer: query, key, value, output
  kDeltaNet,   // gated delta net, and gated attention on every `full_attention_interval`-th layer
  kLatent,     // multi-head latent attention
  kShortConv,  // short convolutions, and attention on `attention_layers`
};

enum class QkNorm : std::uint8_t { kNone, kPerHead, kAllHeads };

struct Geometry {
  std::string_view name;   // what --like takes: "qwen3.5-122b"
  std::string_view title;  // "Qwen3.5-122B-A10B"
  std::string_view arch;   // general.architecture
  Mixer mixer = Mixer::kAttention;

  std::uint32_t n_layers = 0;  // without prediction layers
  std::uint32_t n_embd = 0;
  std::uint32_t n_vocab = 0;
  std::uint32_t n_merges = 0;  // 0: one for each token that is neither a byte nor special
  std::uint32_t n_context = 0;
  bool tied_embeddings = false;
  double embedding_scale = 0;  // the graph multiplies embeddings by this; 0: by nothing, and the file does not say
  double residual_scale = 0;   // and what each block adds by this
  double attention_scale = 0;  // and uses this in place of 1/√head_dim
  double logit_divisor = 0;    // and divides logits by this

  std::uint32_t n_heads = 0;
  std::uint32_t n_kv_heads = 0;  // kLatent: 1, the latent itself
  std::uint32_t head_dim = 128;
  std::uint32_t rope_dims = 128;
  double rope_base = 10000;
  double rms_eps = 1e-6;
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;

  std::uint32_t n_experts = 0;
  std::uint32_t n_used = 0;
  std::uint32_t n_ff_exp = 0;
  std::uint32_t n_ff_shared = 0;   // 0: no shared expert
  std::uint32_t n_shared = 0;      // how many experts that width stands for; 0: the file does not say
  bool shared_gated = false;       // the shared expert's output has a gate of its own
  std::uint32_t n_ff_dense = 0;    // width of layers without experts; 0: there are none
  std::uint32_t n_dense_lead = 0;  // layers without experts at the start
  std::uint32_t moe_step = 1;      // experts on layers with (layer + 1) % step == 0
  bool selection_bias = false;     // exp_probs_b
  std::uint32_t gating = 0;        // expert_gating_func; 0: the file does not say
  int normed = -1;                 // expert_weights_norm; -1: the file does not say
  double weights_scale = 0;        // expert_weights_scale; 0: the file does not say
  std::uint32_t n_groups = 0;      // 0: the file does not say
  std::uint32_t n_groups_used = 0;

  std::uint32_t full_attention_interval = 0;  // kDeltaNet
  std::uint32_t n_linear_k_heads = 0;
  std::uint32_t n_linear_v_heads = 0;
  std::uint32_t linear_head_dim = 128;
  bool fused_beta_alpha = false;  // one ssm_ba tensor instead of ssm_beta and ssm_alpha

  std::uint32_t q_rank = 0;  // kLatent; 0: queries are not compressed
  std::uint32_t kv_rank = 0;
  std::uint32_t nope_dims = 0;  // of a key, beside rope_dims
  std::uint32_t value_dims = 0;

  std::vector<std::uint32_t> attention_layers = {};  // kShortConv
  std::uint32_t conv_length = 0;

  std::uint32_t n_predict_layers = 0;  // multi-token prediction blocks after the last layer
  std::uint32_t sliding_window = 0;
  std::string_view pre_tokenizer = "gpt-2";
  double published_billions = 0;  // parameters as llama.cpp prints them; 0: not known
};

std::span<const Geometry> KnownGeometries();

// By name, title or an unambiguous beginning of a name, any case. kRefused: unknown or ambiguous; the text lists what
// there is.
Result<const Geometry*> FindGeometry(std::string_view name);

}  // namespace linkcpp
