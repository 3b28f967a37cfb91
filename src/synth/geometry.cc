#include "synth/geometry.h"

#include <algorithm>
#include <cctype>

namespace linkcpp {
namespace {

Geometry Qwen35(std::string_view name, std::string_view title) {
  Geometry g{.name = name, .title = title, .arch = "qwen35moe", .mixer = Mixer::kDeltaNet};
  g.n_vocab = 248320;
  g.n_merges = 247587;
  g.n_context = 262144;
  g.n_kv_heads = 2;
  g.head_dim = 256;
  g.rope_dims = 64;
  g.rope_base = 1e7;
  g.qk_norm = QkNorm::kPerHead;
  g.shared_gated = true;
  g.full_attention_interval = 4;
  g.n_linear_k_heads = 16;
  g.pre_tokenizer = "qwen35";
  return g;
}

Geometry Qwen3(std::string_view name, std::string_view title) {
  Geometry g{.name = name, .title = title, .arch = "qwen3moe"};
  g.n_vocab = 151936;
  g.n_merges = 151387;
  g.n_context = 262144;
  g.rope_base = 5e6;
  g.qk_norm = QkNorm::kPerHead;
  g.n_used = 8;
  g.pre_tokenizer = "qwen2";
  return g;
}

Geometry Qwen2(std::string_view name, std::string_view title) {
  Geometry g{.name = name, .title = title, .arch = "qwen2moe"};
  g.n_vocab = 151936;
  g.n_merges = 151387;
  g.n_context = 32768;
  g.rope_base = 1e6;
  g.qkv_bias = true;
  g.shared_gated = true;
  g.pre_tokenizer = "qwen2";
  return g;
}

Geometry Mixtral(std::string_view name, std::string_view title) {
  Geometry g{.name = name, .title = title, .arch = "llama"};
  g.n_vocab = 32000;
  g.rope_base = 1e6;
  g.rms_eps = 1e-5;
  g.n_kv_heads = 8;
  g.n_experts = 8;
  g.n_used = 2;
  return g;
}

Geometry DeepSeek(std::string_view name, std::string_view title) {
  Geometry g{.name = name, .title = title, .arch = "deepseek2", .mixer = Mixer::kLatent};
  g.n_context = 163840;
  g.kv_rank = 512;
  g.nope_dims = 128;
  g.rope_dims = 64;
  g.value_dims = 128;
  g.n_dense_lead = 1;
  g.gating = 1;
  g.normed = 0;
  g.weights_scale = 1.0;
  return g;
}

Geometry DeepSeekV3(std::string_view name, std::string_view title) {
  Geometry g = DeepSeek(name, title);
  g.n_embd = 7168;
  g.n_layers = 61;
  g.q_rank = 1536;
  g.n_ff_exp = 2048;
  g.n_ff_shared = 2048;
  g.n_shared = 1;
  g.n_ff_dense = 18432;
  g.n_used = 8;
  g.selection_bias = true;
  g.gating = 2;
  g.normed = 1;
  return g;
}

Geometry GptOss(std::string_view name, std::string_view title) {
  Geometry g{.name = name, .title = title, .arch = "gpt-oss"};
  g.n_embd = 2880;
  g.n_vocab = 201088;
  g.n_context = 131072;
  g.n_heads = 64;
  g.n_kv_heads = 8;
  g.head_dim = 64;
  g.rope_dims = 64;
  g.rope_base = 150000;
  g.rms_eps = 1e-5;
  g.qkv_bias = true;
  g.n_ff_exp = 2880;
  g.n_used = 4;
  g.sliding_window = 128;
  g.pre_tokenizer = "gpt-4o";
  return g;
}

Geometry Glm45(std::string_view name, std::string_view title) {
  Geometry g{.name = name, .title = title, .arch = "glm4moe"};
  g.n_vocab = 151552;
  g.n_context = 131072;
  g.n_heads = 96;
  g.n_kv_heads = 8;
  g.rope_dims = 64;
  g.rope_base = 1e6;
  g.rms_eps = 1e-5;
  g.qkv_bias = true;
  g.n_used = 8;
  g.n_shared = 1;
  g.selection_bias = true;
  g.gating = 2;
  g.normed = 1;
  g.n_predict_layers = 1;
  g.pre_tokenizer = "glm4";
  return g;
}

Geometry Granite(std::string_view name, std::string_view title) {
  Geometry g{.name = name, .title = title, .arch = "granitemoe"};
  g.n_vocab = 49155;
  g.n_context = 4096;
  g.tied_embeddings = true;
  g.n_kv_heads = 8;
  g.head_dim = 64;
  g.rope_dims = 64;
  g.n_ff_exp = 512;
  g.n_used = 8;
  g.pre_tokenizer = "refact";
  return g;
}

Geometry Llama4(std::string_view name, std::string_view title) {
  Geometry g{.name = name, .title = title, .arch = "llama4"};
  g.n_layers = 48;
  g.n_embd = 5120;
  g.n_vocab = 202048;
  g.n_heads = 40;
  g.n_kv_heads = 8;
  g.rope_base = 500000;
  g.rms_eps = 1e-5;
  g.n_used = 1;
  g.n_ff_exp = 8192;
  g.n_ff_shared = 8192;
  g.n_ff_dense = 16384;
  g.pre_tokenizer = "llama4";
  return g;
}

std::vector<Geometry> MakeTable() {
  std::vector<Geometry> table;
  const auto add = [&](Geometry g, auto change) {
    change(g);
    table.push_back(std::move(g));
  };
  add(Qwen35("qwen3.5-35b", "Qwen3.5-35B-A3B"), [](Geometry& g) {
    g.n_layers = 40; g.n_embd = 2048; g.n_heads = 16; g.n_linear_v_heads = 32;
    g.n_experts = 256; g.n_used = 8; g.n_ff_exp = 512; g.n_ff_shared = 512; g.published_billions = 34.66;
  });
  add(Qwen35("qwen3.5-122b", "Qwen3.5-122B-A10B"), [](Geometry& g) {
    g.n_layers = 48; g.n_embd = 3072; g.n_heads = 32; g.n_linear_v_heads = 64;
    g.n_experts = 256; g.n_used = 8; g.n_ff_exp = 1024; g.n_ff_shared = 1024; g.published_billions = 122.11;
  });
  add(Qwen35("qwen3.5-397b", "Qwen3.5-397B-A17B"), [](Geometry& g) {
    g.n_layers = 60; g.n_embd = 4096; g.n_heads = 32; g.n_linear_v_heads = 64;
    g.n_experts = 512; g.n_used = 10; g.n_ff_exp = 1024; g.n_ff_shared = 1024; g.published_billions = 396.35;
  });
  add(Qwen35("qwen3-next-80b", "Qwen3-Next-80B-A3B"), [](Geometry& g) {
    g.arch = "qwen3next"; g.n_vocab = 151936; g.n_merges = 151387; g.pre_tokenizer = "qwen2"; g.fused_beta_alpha = true;
    g.n_layers = 48; g.n_embd = 2048; g.n_heads = 16; g.n_linear_v_heads = 32;
    g.n_experts = 512; g.n_used = 10; g.n_ff_exp = 512; g.n_ff_shared = 512; g.published_billions = 79.67;
  });
  add(Qwen3("qwen3-30b", "Qwen3-30B-A3B"), [](Geometry& g) {
    g.n_layers = 48; g.n_embd = 2048; g.n_heads = 32; g.n_kv_heads = 4;
    g.n_experts = 128; g.n_ff_exp = 768; g.n_ff_dense = 6144; g.published_billions = 30.53;
  });
  add(Qwen3("qwen3-235b", "Qwen3-235B-A22B"), [](Geometry& g) {
    g.n_layers = 94; g.n_embd = 4096; g.n_heads = 64; g.n_kv_heads = 4;
    g.n_experts = 128; g.n_ff_exp = 1536; g.n_ff_dense = 12288; g.published_billions = 235.09;
  });
  add(Qwen3("qwen3-coder-480b", "Qwen3-Coder-480B-A35B"), [](Geometry& g) {
    g.n_layers = 62; g.n_embd = 6144; g.n_heads = 96; g.n_kv_heads = 8;
    g.n_experts = 160; g.n_ff_exp = 2560; g.n_ff_dense = 8192; g.published_billions = 480.15;
  });
  add(Qwen2("qwen1.5-moe-a2.7b", "Qwen1.5-MoE-A2.7B"), [](Geometry& g) {
    g.n_layers = 24; g.n_embd = 2048; g.n_heads = 16; g.n_kv_heads = 16;
    g.n_experts = 60; g.n_used = 4; g.n_ff_exp = 1408; g.n_ff_shared = 5632; g.published_billions = 14.32;
  });
  add(Qwen2("qwen2-57b", "Qwen2-57B-A14B"), [](Geometry& g) {
    g.n_layers = 28; g.n_embd = 3584; g.n_heads = 28; g.n_kv_heads = 4;
    g.n_experts = 64; g.n_used = 8; g.n_ff_exp = 2560; g.n_ff_shared = 20480; g.published_billions = 57.41;
  });
  add(Mixtral("mixtral-8x7b", "Mixtral-8x7B"), [](Geometry& g) {
    g.n_layers = 32; g.n_embd = 4096; g.n_heads = 32; g.n_ff_exp = 14336; g.n_context = 32768;
    g.published_billions = 46.70;
  });
  add(Mixtral("mixtral-8x22b", "Mixtral-8x22B"), [](Geometry& g) {
    g.n_layers = 56; g.n_embd = 6144; g.n_heads = 48; g.n_ff_exp = 16384; g.n_context = 65536;
    g.published_billions = 140.62;
  });
  add(DeepSeek("deepseek-v2-lite", "DeepSeek-V2-Lite"), [](Geometry& g) {
    g.n_layers = 27; g.n_embd = 2048; g.n_heads = 16; g.n_vocab = 102400; g.n_ff_dense = 10944;
    g.n_experts = 64; g.n_used = 6; g.n_ff_exp = 1408; g.n_ff_shared = 2816; g.n_shared = 2;
    g.pre_tokenizer = "deepseek-llm"; g.published_billions = 15.71;
  });
  add(DeepSeek("deepseek-v2", "DeepSeek-V2"), [](Geometry& g) {
    g.n_layers = 60; g.n_embd = 5120; g.n_heads = 128; g.n_vocab = 102400; g.n_ff_dense = 12288; g.q_rank = 1536;
    g.n_experts = 160; g.n_used = 6; g.n_ff_exp = 1536; g.n_ff_shared = 3072; g.n_shared = 2;
    g.n_groups = 8; g.n_groups_used = 3; g.weights_scale = 16.0;
    g.pre_tokenizer = "deepseek-llm"; g.published_billions = 235.74;
  });
  add(DeepSeekV3("deepseek-v3", "DeepSeek-V3"), [](Geometry& g) {
    g.n_heads = 128; g.n_vocab = 129280; g.n_dense_lead = 3; g.n_experts = 256; g.weights_scale = 2.5;
    g.n_groups = 8; g.n_groups_used = 4; g.pre_tokenizer = "deepseek-v3"; g.published_billions = 671.03;
  });
  add(DeepSeekV3("kimi-k2", "Kimi-K2"), [](Geometry& g) {
    g.n_heads = 64; g.n_vocab = 163840; g.n_experts = 384; g.weights_scale = 2.827; g.n_context = 131072;
    g.n_groups = 1; g.n_groups_used = 1; g.published_billions = 1026.41;
  });
  add(DeepSeek("moonlight-16b", "Moonlight-16B-A3B"), [](Geometry& g) {
    g.n_layers = 27; g.n_embd = 2048; g.n_heads = 16; g.n_vocab = 163840; g.n_ff_dense = 11264; g.n_context = 8192;
    g.n_experts = 64; g.n_used = 6; g.n_ff_exp = 1408; g.n_ff_shared = 2816; g.n_shared = 2;
    g.gating = 2; g.normed = 1; g.weights_scale = 2.446; g.selection_bias = true; g.published_billions = 15.96;
  });
  add(GptOss("gpt-oss-20b", "gpt-oss-20b"), [](Geometry& g) {
    g.n_layers = 24; g.n_experts = 32; g.published_billions = 20.91;
  });
  add(GptOss("gpt-oss-120b", "gpt-oss-120b"), [](Geometry& g) {
    g.n_layers = 36; g.n_experts = 128; g.published_billions = 116.83;
  });
  add(Glm45("glm-4.5-air", "GLM-4.5-Air"), [](Geometry& g) {
    g.n_layers = 46; g.n_embd = 4096; g.n_experts = 128; g.n_ff_exp = 1408; g.n_ff_shared = 1408;
    g.n_ff_dense = 10944; g.n_dense_lead = 1; g.weights_scale = 1.0; g.published_billions = 110.47;
  });
  add(Glm45("glm-4.5", "GLM-4.5"), [](Geometry& g) {
    g.n_layers = 92; g.n_embd = 5120; g.n_experts = 160; g.n_ff_exp = 1536; g.n_ff_shared = 1536;
    g.n_ff_dense = 12288; g.n_dense_lead = 3; g.weights_scale = 2.5; g.qk_norm = QkNorm::kPerHead;
    g.published_billions = 358.34;
  });
  add(Geometry{.name = "minimax-m2", .title = "MiniMax-M2", .arch = "minimax-m2"}, [](Geometry& g) {
    g.n_layers = 62; g.n_embd = 3072; g.n_vocab = 200064; g.n_context = 196608; g.n_heads = 48; g.n_kv_heads = 8;
    g.rope_dims = 64; g.rope_base = 5e6; g.qk_norm = QkNorm::kAllHeads; g.n_experts = 256; g.n_used = 8;
    g.n_ff_exp = 1536; g.selection_bias = true; g.gating = 2; g.pre_tokenizer = "minimax-m2";
    g.published_billions = 228.69;
  });
  add(Granite("granite-1b-a400m", "Granite-3.1-1B-A400M"), [](Geometry& g) {
    g.n_layers = 24; g.n_embd = 1024; g.n_heads = 16; g.n_experts = 32; g.published_billions = 1.33;
  });
  add(Granite("granite-3b-a800m", "Granite-3.1-3B-A800M"), [](Geometry& g) {
    g.n_layers = 32; g.n_embd = 1536; g.n_heads = 24; g.n_experts = 40; g.published_billions = 3.30;
  });
  add(Geometry{.name = "olmoe-1b-7b", .title = "OLMoE-1B-7B", .arch = "olmoe"}, [](Geometry& g) {
    g.n_layers = 16; g.n_embd = 2048; g.n_vocab = 50304; g.n_context = 4096; g.n_heads = 16; g.n_kv_heads = 16;
    g.rms_eps = 1e-5; g.qk_norm = QkNorm::kAllHeads; g.n_experts = 64; g.n_used = 8; g.n_ff_exp = 1024;
    g.pre_tokenizer = "olmo"; g.published_billions = 6.92;
  });
  add(Llama4("llama-4-scout", "Llama-4-Scout-17B-16E"), [](Geometry& g) {
    g.n_context = 10485760; g.n_experts = 16; g.published_billions = 107.77;
  });
  add(Llama4("llama-4-maverick", "Llama-4-Maverick-17B-128E"), [](Geometry& g) {
    g.n_context = 1048576; g.n_experts = 128; g.moe_step = 2; g.published_billions = 400.71;
  });
  add(Geometry{.name = "ernie-4.5-21b", .title = "ERNIE-4.5-21B-A3B", .arch = "ernie4_5-moe"}, [](Geometry& g) {
    g.n_layers = 28; g.n_embd = 2560; g.n_vocab = 103424; g.n_context = 131072; g.n_heads = 20; g.n_kv_heads = 4;
    g.rope_base = 500000; g.rms_eps = 1e-5; g.tied_embeddings = true; g.n_experts = 64; g.n_used = 6;
    g.n_ff_exp = 1536; g.n_ff_shared = 3072; g.n_shared = 2; g.n_ff_dense = 12288; g.n_dense_lead = 1;
    g.selection_bias = true; g.published_billions = 21.83;
  });
  add(Geometry{.name = "lfm2-8b-a1b", .title = "LFM2-8B-A1B", .arch = "lfm2moe", .mixer = Mixer::kShortConv},
      [](Geometry& g) {
        g.n_layers = 24; g.n_embd = 2048; g.n_vocab = 65536; g.n_context = 128000; g.n_heads = 32; g.n_kv_heads = 8;
        g.head_dim = 64; g.rope_dims = 64; g.rope_base = 1e6; g.rms_eps = 1e-5; g.tied_embeddings = true;
        g.qk_norm = QkNorm::kPerHead; g.n_experts = 32; g.n_used = 4; g.n_ff_exp = 1792; g.n_ff_dense = 7168;
        g.n_dense_lead = 2; g.selection_bias = true; g.gating = 2; g.attention_layers = {2, 6, 10, 14, 18, 21};
        g.conv_length = 3; g.pre_tokenizer = "lfm2"; g.published_billions = 8.34;
      });
  add(Geometry{.name = "hunyuan-a13b", .title = "Hunyuan-A13B", .arch = "hunyuan-moe"}, [](Geometry& g) {
    g.n_layers = 32; g.n_embd = 4096; g.n_vocab = 128167; g.n_context = 262144; g.n_heads = 32; g.n_kv_heads = 8;
    g.rms_eps = 1e-5; g.tied_embeddings = true; g.qk_norm = QkNorm::kPerHead; g.n_experts = 64; g.n_used = 8;
    g.n_ff_exp = 3072; g.n_ff_shared = 3072; g.n_shared = 1; g.published_billions = 80.39;
  });
  add(Geometry{.name = "dots1-142b", .title = "dots.llm1", .arch = "dots1"}, [](Geometry& g) {
    g.n_layers = 62; g.n_embd = 4096; g.n_vocab = 152064; g.n_context = 32768; g.n_heads = 32; g.n_kv_heads = 32;
    g.rope_base = 1e7; g.qk_norm = QkNorm::kPerHead; g.n_experts = 128; g.n_used = 6; g.n_ff_exp = 1408;
    g.n_ff_shared = 2816; g.n_shared = 2; g.n_ff_dense = 10944; g.n_dense_lead = 1; g.selection_bias = true;
    g.gating = 2; g.normed = 1; g.weights_scale = 2.5; g.pre_tokenizer = "qwen2"; g.published_billions = 142.77;
  });
  return table;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

}  // namespace

std::span<const Geometry> KnownGeometries() {
  static const std::vector<Geometry> table = MakeTable();
  return table;
}

Result<const Geometry*> FindGeometry(std::string_view name) {
  const std::string wanted = Lower(name);
  std::vector<const Geometry*> starting;
  for (const Geometry& g : KnownGeometries()) {
    if (wanted == g.name || wanted == Lower(g.title)) return &g;
    if (!wanted.empty() && (g.name.starts_with(wanted) || Lower(g.title).starts_with(wanted))) starting.push_back(&g);
  }
  if (starting.size() == 1) return starting[0];
  std::string known;
  for (const Geometry& g : KnownGeometries()) {
    if (!starting.empty() && !std::ranges::contains(starting, &g)) continue;
    if (!known.empty()) known += ", ";
    known += g.name;
  }
  return Fail(FaultCode::kRefused, "{} model '{}': choose one of {}", starting.empty() ? "unknown" : "ambiguous", name,
              known);
}

}  // namespace linkcpp
