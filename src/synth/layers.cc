#include "synth/layers.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <initializer_list>

namespace linkcpp {
namespace {

// A weight of n inputs with a spread of gain/√n turns inputs near one into outputs near `gain`.
constexpr double kLogitGain = 3;   // enough for one token in two thousand to stand out
constexpr double kTiedGain = 0.5;  // of an embedding table that is the output matrix too
constexpr double kRouterGain = 1.5;
constexpr double kDownGain = 1.6;  // silu(g) · u of two standard normal numbers has a spread of about 0.6

class Lister {
 public:
  explicit Lister(const Geometry& geometry)
      : g_(geometry), block_gain_(g_.residual_scale > 0 ? 1 / g_.residual_scale : 1) {}

  std::vector<TensorShape> List() {
    // A table that is the output matrix too must stay small beside what blocks add, or each token would predict itself;
    // the last norm makes up for it.
    const double unit = 1 / std::sqrt(g_.n_embd);
    const double scale = g_.embedding_scale > 0 ? g_.embedding_scale : 1;
    const double divisor = g_.logit_divisor > 0 ? g_.logit_divisor : 1;
    const double small = kTiedGain * unit / scale;
    Add("token_embd.weight", {g_.n_embd, g_.n_vocab}, Fill::Spread(g_.tied_embeddings ? small : 1 / scale));
    if (!g_.tied_embeddings) Add("output.weight", {g_.n_embd, g_.n_vocab}, Fill::Spread(kLogitGain * unit));
    const double last = divisor * (g_.tied_embeddings ? kLogitGain * unit / small : 1);
    Add(g_.mixer == Mixer::kShortConv ? "token_embd_norm.weight" : "output_norm.weight", {g_.n_embd},
        Fill::Range(0.9 * last, 1.1 * last));
    for (std::uint32_t layer = 0; layer < g_.n_layers; ++layer) Block(layer);
    for (std::uint32_t i = 0; i < g_.n_predict_layers; ++i) {
      Block(g_.n_layers + i);
      Prediction();
    }
    return std::move(tensors_);
  }

 private:
  void Add(std::string_view name, std::initializer_list<std::uint64_t> ne, const Fill& fill) {
    TensorShape shape{.name = prefix_ + std::string(name), .n_dims = static_cast<int>(ne.size()), .fill = fill};
    std::ranges::copy(ne, shape.ne.begin());
    tensors_.push_back(std::move(shape));
  }
  void Matrix(std::string_view name, std::uint64_t in, std::uint64_t out, double gain = 1) {
    Add(std::string(name) + ".weight", {in, out}, Fill::Spread(gain / std::sqrt(static_cast<double>(in))));
  }
  void Norm(std::string_view name, std::uint64_t n) { Add(std::string(name) + ".weight", {n}, Fill::Range(0.9, 1.1)); }
  void Bias(std::string_view name, std::uint64_t n) { Add(std::string(name) + ".bias", {n}, Fill::Spread(0.02)); }

  void Block(std::uint32_t layer) {
    prefix_ = std::format("blk.{}.", layer);
    Norm("attn_norm", g_.n_embd);
    const bool predicts = layer >= g_.n_layers;
    switch (g_.mixer) {
      case Mixer::kAttention: Attention(); break;
      case Mixer::kLatent: Latent(); break;
      case Mixer::kDeltaNet: IsFullAttention(g_, layer) || predicts ? Attention() : DeltaNet(); break;
      case Mixer::kShortConv: IsFullAttention(g_, layer) ? Attention() : ShortConv(); break;
    }
    const bool post = g_.arch == "qwen35moe" || g_.arch == "qwen3next" || g_.arch == "gpt-oss" || g_.arch == "glm4moe";
    Norm(post ? "post_attention_norm" : "ffn_norm", g_.n_embd);
    if (predicts || IsMoeLayer(g_, layer)) {
      Experts();
    } else {
      Matrix("ffn_gate", g_.n_embd, g_.n_ff_dense);
      Matrix("ffn_up", g_.n_embd, g_.n_ff_dense);
      Matrix("ffn_down", g_.n_ff_dense, g_.n_embd, kDownGain * block_gain_);
    }
  }

  void Attention() {
    const bool gated = g_.mixer == Mixer::kDeltaNet;  // query and gate, head by head
    const std::uint64_t q = std::uint64_t{g_.n_heads} * g_.head_dim;
    const std::uint64_t kv = std::uint64_t{g_.n_kv_heads} * g_.head_dim;
    Matrix("attn_q", g_.n_embd, gated ? 2 * q : q);
    Matrix("attn_k", g_.n_embd, kv);
    Matrix("attn_v", g_.n_embd, kv);
    Matrix("attn_output", q, g_.n_embd, block_gain_);
    if (g_.qkv_bias) {
      Bias("attn_q", q);
      Bias("attn_k", kv);
      Bias("attn_v", kv);
    }
    if (g_.qk_norm == QkNorm::kPerHead) {
      Norm("attn_q_norm", g_.head_dim);
      Norm("attn_k_norm", g_.head_dim);
    } else if (g_.qk_norm == QkNorm::kAllHeads) {
      Norm("attn_q_norm", q);
      Norm("attn_k_norm", kv);
    }
    if (g_.arch == "gpt-oss") {
      Bias("attn_output", g_.n_embd);
      Add("attn_sinks.weight", {g_.n_heads}, Fill::Spread(0.5));
    }
  }

  void DeltaNet() {
    const std::uint64_t k = std::uint64_t{g_.n_linear_k_heads} * g_.linear_head_dim;
    const std::uint64_t v = std::uint64_t{g_.n_linear_v_heads} * g_.linear_head_dim;
    const std::uint64_t heads = g_.n_linear_v_heads;
    Matrix("attn_qkv", g_.n_embd, 2 * k + v);
    Matrix("attn_gate", g_.n_embd, v);
    Matrix("ssm_conv1d", 4, 2 * k + v);
    // Decay per step exp(a · softplus(dt)): between almost all and a third of the state is kept.
    Add("ssm_dt.bias", {heads}, Fill::Range(-6.9, -2.25));
    Add("ssm_a", {heads}, Fill::Range(-16, -1));
    if (g_.fused_beta_alpha) {
      Matrix("ssm_ba", g_.n_embd, 2 * heads, 0.5);
    } else {
      Matrix("ssm_beta", g_.n_embd, heads, 0.5);
      Matrix("ssm_alpha", g_.n_embd, heads, 0.5);
    }
    Norm("ssm_norm", g_.linear_head_dim);
    Matrix("ssm_out", v, g_.n_embd, kDownGain);
  }

  void Latent() {
    const std::uint64_t heads = g_.n_heads;
    const std::uint64_t key = g_.nope_dims + g_.rope_dims;
    if (g_.q_rank > 0) {
      Matrix("attn_q_a", g_.n_embd, g_.q_rank);
      Norm("attn_q_a_norm", g_.q_rank);
      Matrix("attn_q_b", g_.q_rank, heads * key);
    } else {
      Matrix("attn_q", g_.n_embd, heads * key);
    }
    Matrix("attn_kv_a_mqa", g_.n_embd, g_.kv_rank + g_.rope_dims);
    Norm("attn_kv_a_norm", g_.kv_rank);
    // Both stand for matrices from the latent to the heads, so kv_rank is what they sum over.
    const Fill latent = Fill::Spread(1 / std::sqrt(static_cast<double>(g_.kv_rank)));
    Add("attn_k_b.weight", {g_.nope_dims, g_.kv_rank, heads}, latent);
    Add("attn_v_b.weight", {g_.kv_rank, g_.value_dims, heads}, latent);
    Matrix("attn_output", heads * g_.value_dims, g_.n_embd);
  }

  void ShortConv() {
    Matrix("shortconv.in_proj", g_.n_embd, 3 * std::uint64_t{g_.n_embd});
    Matrix("shortconv.conv", g_.conv_length, g_.n_embd);
    Matrix("shortconv.out_proj", g_.n_embd, g_.n_embd);
  }

  void Experts() {
    const std::uint64_t n = g_.n_experts;
    const auto stack = [&](std::string_view name, std::uint64_t in, std::uint64_t out, double gain) {
      Add(name, {in, out, n}, Fill::Spread(gain / std::sqrt(static_cast<double>(in))));
    };
    Matrix("ffn_gate_inp", g_.n_embd, n, kRouterGain);
    stack("ffn_gate_exps.weight", g_.n_embd, g_.n_ff_exp, 1);
    stack("ffn_up_exps.weight", g_.n_embd, g_.n_ff_exp, 1);
    stack("ffn_down_exps.weight", g_.n_ff_exp, g_.n_embd, kDownGain * block_gain_);
    if (g_.arch == "gpt-oss") {
      Bias("ffn_gate_inp", n);
      Add("ffn_gate_exps.bias", {g_.n_ff_exp, n}, Fill::Spread(0.02));
      Add("ffn_up_exps.bias", {g_.n_ff_exp, n}, Fill::Spread(0.02));
      Add("ffn_down_exps.bias", {g_.n_embd, n}, Fill::Spread(0.02));
    }
    if (g_.selection_bias) Bias("exp_probs_b", n);
    if (g_.n_ff_shared > 0) {
      if (g_.shared_gated) Add("ffn_gate_inp_shexp.weight", {g_.n_embd}, Fill::Spread(1 / std::sqrt(g_.n_embd)));
      Matrix("ffn_gate_shexp", g_.n_embd, g_.n_ff_shared);
      Matrix("ffn_up_shexp", g_.n_embd, g_.n_ff_shared);
      Matrix("ffn_down_shexp", g_.n_ff_shared, g_.n_embd, kDownGain * block_gain_);
    }
  }

  // Beside its block: the projection of (embedding, hidden state), their norms, and tables of its own.
  void Prediction() {
    Matrix("nextn.eh_proj", 2 * std::uint64_t{g_.n_embd}, g_.n_embd);
    Add("nextn.embed_tokens.weight", {g_.n_embd, g_.n_vocab}, Fill::Spread(1));
    Norm("nextn.enorm", g_.n_embd);
    Norm("nextn.hnorm", g_.n_embd);
    Add("nextn.shared_head_head.weight", {g_.n_embd, g_.n_vocab}, Fill::Spread(kLogitGain / std::sqrt(g_.n_embd)));
    Norm("nextn.shared_head_norm", g_.n_embd);
  }

  const Geometry& g_;
  const double block_gain_;  // what a block adds to the residual is near one after residual_scale
  std::string prefix_;
  std::vector<TensorShape> tensors_;
};

}  // namespace

bool IsFullAttention(const Geometry& geometry, std::uint32_t layer) {
  switch (geometry.mixer) {
    case Mixer::kDeltaNet: return (layer + 1) % geometry.full_attention_interval == 0;
    case Mixer::kShortConv: return std::ranges::contains(geometry.attention_layers, layer);
    case Mixer::kAttention: return true;
    case Mixer::kLatent: return false;
  }
  return true;
}

bool IsMoeLayer(const Geometry& geometry, std::uint32_t layer) {
  return layer >= geometry.n_dense_lead && (layer + 1) % geometry.moe_step == 0;
}

std::vector<TensorShape> ListTensors(const Geometry& geometry) {
  return Lister(geometry).List();
}

}  // namespace linkcpp
