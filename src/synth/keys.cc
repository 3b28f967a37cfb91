// The metadata that llama.cpp's loader reads, architecture by architecture.
#include <format>

#include "synth/layers.h"
#include "synth/plan.h"
#include "synth/vocabulary.h"

namespace linkcpp {
namespace {

class KeyLister {
 public:
  explicit KeyLister(const Geometry& geometry) : g_(geometry) {}

  std::vector<MetaKey> List(const Mix& mix) {
    General(mix);
    Shape();
    Attention();
    Experts();
    if (g_.mixer == Mixer::kDeltaNet) DeltaNet();
    if (g_.mixer == Mixer::kLatent) Latent();
    if (g_.mixer == Mixer::kShortConv) Int("shortconv.l_cache", g_.conv_length);
    OfArchitecture();
    return std::move(keys_);
  }

  std::vector<MetaKey> ListTokenizer() {
    Vocabulary vocabulary = MakeVocabulary(g_.n_vocab, g_.n_merges);
    Put("tokenizer.ggml.model", std::string("gpt2"));
    Put("tokenizer.ggml.pre", std::string(g_.pre_tokenizer));
    Put("tokenizer.ggml.tokens", std::move(vocabulary.tokens));
    Put("tokenizer.ggml.token_type", std::move(vocabulary.types));
    Put("tokenizer.ggml.merges", std::move(vocabulary.merges));
    Put("tokenizer.ggml.bos_token_id", vocabulary.end_of_text);
    Put("tokenizer.ggml.eos_token_id", vocabulary.end_of_text);
    Put("tokenizer.ggml.eot_token_id", vocabulary.end_of_turn);
    Put("tokenizer.ggml.padding_token_id", vocabulary.end_of_text);
    Put("tokenizer.ggml.add_bos_token", false);
    return std::move(keys_);
  }

 private:
  void Put(std::string name, MetaValue value) { keys_.push_back({std::move(name), std::move(value)}); }
  std::string Own(std::string_view suffix) const { return std::format("{}.{}", g_.arch, suffix); }
  void Int(std::string_view suffix, std::uint32_t value) { Put(Own(suffix), value); }
  void Real(std::string_view suffix, double value) { Put(Own(suffix), static_cast<float>(value)); }

  void General(const Mix& mix) {
    Put("general.architecture", std::string(g_.arch));
    Put("general.type", std::string("model"));
    Put("general.name", std::format("Synthetic {}", g_.title));
    Put("general.description", std::format("Random weights in the shape of {}: says nothing meaningful", g_.title));
    Put("general.file_type", mix.file_type);
    Put("general.quantization_version", std::uint32_t{2});
    Put("general.alignment", static_cast<std::uint32_t>(kDataAlignment));
  }

  void Shape() {
    Int("block_count", g_.n_layers + g_.n_predict_layers);
    Int("context_length", g_.n_context);
    Int("embedding_length", g_.n_embd);
    Int("vocab_size", g_.n_vocab);
    // These two read the experts' width from the dense key.
    const bool experts_only = g_.arch == "llama" || g_.arch == "minimax-m2" || g_.arch == "hunyuan-moe" ||
                              g_.arch == "olmoe" || g_.arch == "granitemoe";
    const std::uint32_t dense = experts_only || g_.n_ff_dense == 0 ? g_.n_ff_exp : g_.n_ff_dense;
    Int("feed_forward_length", dense);
    Real("attention.layer_norm_rms_epsilon", g_.rms_eps);
    Real("rope.freq_base", g_.rope_base);
    Int("rope.dimension_count", g_.rope_dims);
    if (g_.embedding_scale > 0) Real("embedding_scale", g_.embedding_scale);
    if (g_.residual_scale > 0) Real("residual_scale", g_.residual_scale);
    if (g_.attention_scale > 0) Real("attention.scale", g_.attention_scale);
    if (g_.logit_divisor > 0) Real("logit_scale", g_.logit_divisor);
    if (g_.n_predict_layers > 0) Int("nextn_predict_layers", g_.n_predict_layers);
  }

  void Attention() {
    Int("attention.head_count", g_.n_heads);
    if (g_.mixer == Mixer::kLatent) return;
    if (g_.mixer == Mixer::kShortConv) {
      std::vector<std::int32_t> heads;
      for (std::uint32_t layer = 0; layer < g_.n_layers; ++layer) {
        heads.push_back(IsFullAttention(g_, layer) ? static_cast<std::int32_t>(g_.n_kv_heads) : 0);
      }
      Put(Own("attention.head_count_kv"), std::move(heads));
    } else {
      Int("attention.head_count_kv", g_.n_kv_heads);
    }
    Int("attention.key_length", g_.head_dim);
    Int("attention.value_length", g_.head_dim);
    if (g_.sliding_window > 0) Int("attention.sliding_window", g_.sliding_window);
  }

  void Experts() {
    Int("expert_count", g_.n_experts);
    Int("expert_used_count", g_.n_used);
    Int("expert_feed_forward_length", g_.n_ff_exp);
    if (g_.n_ff_shared > 0) Int("expert_shared_feed_forward_length", g_.n_ff_shared);
    if (g_.n_shared > 0) Int("expert_shared_count", g_.n_shared);
    if (g_.n_dense_lead > 0 || g_.n_ff_dense > 0) Int("leading_dense_block_count", g_.n_dense_lead);
    if (g_.gating > 0) Int("expert_gating_func", g_.gating);
    if (g_.normed >= 0) Put(Own("expert_weights_norm"), g_.normed > 0);
    if (g_.weights_scale > 0) Real("expert_weights_scale", g_.weights_scale);
    if (g_.n_groups > 0) {
      Int("expert_group_count", g_.n_groups);
      Int("expert_group_used_count", g_.n_groups_used);
    }
  }

  void DeltaNet() {
    Int("full_attention_interval", g_.full_attention_interval);
    Int("ssm.conv_kernel", 4);
    Int("ssm.inner_size", g_.n_linear_v_heads * g_.linear_head_dim);
    Int("ssm.state_size", g_.linear_head_dim);
    Int("ssm.time_step_rank", g_.n_linear_v_heads);
    Int("ssm.group_count", g_.n_linear_k_heads);
    if (g_.arch == "qwen35moe") Put(Own("rope.dimension_sections"), std::vector<std::int32_t>{11, 11, 10, 0});
  }

  // The latent is stored as one key head; its lengths per head stand beside.
  void Latent() {
    Int("attention.head_count_kv", g_.n_kv_heads);
    if (g_.q_rank > 0) Int("attention.q_lora_rank", g_.q_rank);
    Int("attention.kv_lora_rank", g_.kv_rank);
    Int("attention.key_length", g_.kv_rank + g_.rope_dims);
    Int("attention.value_length", g_.kv_rank);
    Int("attention.key_length_mla", g_.nope_dims + g_.rope_dims);
    Int("attention.value_length_mla", g_.value_dims);
  }

  void OfArchitecture() {
    if (g_.arch == "gpt-oss") {
      Put(Own("rope.scaling.type"), std::string("yarn"));
      Real("rope.scaling.factor", 32);
      Int("rope.scaling.original_context_length", 4096);
    } else if (g_.arch == "llama4" || g_.arch == "ernie4_5-moe") {
      Int("interleave_moe_layer_step", g_.moe_step);
    }
  }

  const Geometry& g_;
  std::vector<MetaKey> keys_;
};

}  // namespace

std::vector<MetaKey> ListKeys(const Geometry& geometry, const Mix& mix) {
  return KeyLister(geometry).List(mix);
}

std::vector<MetaKey> ListTokenizerKeys(const Geometry& geometry) {
  return KeyLister(geometry).ListTokenizer();
}

}  // namespace linkcpp
