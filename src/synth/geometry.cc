#include "synth/geometry.h"

#include <algorithm>
#include <cctype>

namespace linkcpp {
namespace {

// ---- what the models of a family share

Geometry Qwen35() {
  Geometry g{.arch = "qwen35moe", .mixer = Mixer::kDeltaNet};
  g.n_vocab = 248320;
  g.n_merges = 247587;
  g.n_context = 262144;
  g.head_dim = 256;
  g.rope_dims = 64;
  g.rope_base = 1e7;
  g.qk_norm = QkNorm::kPerHead;
  g.shared_gated = true;
  g.full_attention_interval = 4;
  g.n_linear_k_heads = 16;
  g.n_linear_v_heads = 64;
  g.pre_tokenizer = "qwen35";
  return g;
}

Geometry Qwen35Small() {
  Geometry g = Qwen35();
  g.n_linear_v_heads = 32;
  return g;
}

Geometry Qwen3Next() {
  Geometry g = Qwen35Small();
  g.arch = "qwen3next";
  g.n_vocab = 151936;
  g.n_merges = 151387;
  g.fused_beta_alpha = true;
  g.pre_tokenizer = "qwen2";
  return g;
}

Geometry Qwen3() {
  Geometry g{.arch = "qwen3moe"};
  g.n_vocab = 151936;
  g.n_merges = 151387;
  g.n_context = 262144;
  g.rope_base = 5e6;
  g.qk_norm = QkNorm::kPerHead;
  g.pre_tokenizer = "qwen2";
  return g;
}

Geometry Qwen2() {
  Geometry g{.arch = "qwen2moe"};
  g.n_vocab = 151936;
  g.n_merges = 151387;
  g.n_context = 32768;
  g.rope_base = 1e6;
  g.qkv_bias = true;
  g.shared_gated = true;
  g.pre_tokenizer = "qwen2";
  return g;
}

Geometry Mixtral() {
  Geometry g{.arch = "llama"};
  g.n_vocab = 32000;
  g.n_context = 32768;
  g.rope_base = 1e6;
  g.rms_eps = 1e-5;
  return g;
}

Geometry DeepSeekV2Lite() {
  Geometry g{.arch = "deepseek2", .mixer = Mixer::kLatent};
  g.n_vocab = 102400;
  g.n_context = 163840;
  g.kv_rank = 512;
  g.nope_dims = 128;
  g.rope_dims = 64;
  g.value_dims = 128;
  g.n_shared = 2;
  g.gating = 1;
  g.normed = 0;
  g.weights_scale = 1.0;
  g.pre_tokenizer = "deepseek-llm";
  return g;
}

Geometry DeepSeekV2() {
  Geometry g = DeepSeekV2Lite();
  g.q_rank = 1536;
  g.n_groups = 8;
  g.n_groups_used = 3;
  g.weights_scale = 16.0;
  return g;
}

Geometry DeepSeekV3() {
  Geometry g = DeepSeekV2();
  g.n_vocab = 129280;
  g.n_shared = 1;
  g.n_groups_used = 4;
  g.weights_scale = 2.5;
  g.selection_bias = true;
  g.gating = 2;
  g.normed = 1;
  g.pre_tokenizer = "deepseek-v3";
  return g;
}

Geometry KimiK2() {
  Geometry g = DeepSeekV3();
  g.n_vocab = 163840;
  g.n_context = 131072;
  g.n_groups = 1;
  g.n_groups_used = 1;
  g.weights_scale = 2.827;
  g.pre_tokenizer = "gpt-2";  // kimi-k2's needs its own tokens
  return g;
}

Geometry Moonlight() {
  Geometry g = KimiK2();
  g.n_context = 8192;
  g.q_rank = 0;
  g.n_shared = 2;
  g.weights_scale = 2.446;
  return g;
}

Geometry GptOss() {
  Geometry g{.arch = "gpt-oss"};
  g.n_vocab = 201088;
  g.n_context = 131072;
  g.head_dim = 64;
  g.rope_dims = 64;
  g.rope_base = 150000;
  g.rms_eps = 1e-5;
  g.qkv_bias = true;
  g.sliding_window = 128;
  g.pre_tokenizer = "gpt-4o";
  return g;
}

Geometry Glm45Air() {
  Geometry g{.arch = "glm4moe"};
  g.n_vocab = 151552;
  g.n_context = 131072;
  g.rope_dims = 64;
  g.rope_base = 1e6;
  g.rms_eps = 1e-5;
  g.qkv_bias = true;
  g.n_shared = 1;
  g.selection_bias = true;
  g.gating = 2;
  g.normed = 1;
  g.weights_scale = 1.0;
  g.n_predict_layers = 1;
  g.pre_tokenizer = "glm4";
  return g;
}

Geometry Glm45() {
  Geometry g = Glm45Air();
  g.weights_scale = 2.5;
  g.qk_norm = QkNorm::kPerHead;
  return g;
}

Geometry MiniMaxM2() {
  Geometry g{.arch = "minimax-m2"};
  g.n_vocab = 200064;
  g.n_context = 196608;
  g.rope_dims = 64;
  g.rope_base = 5e6;
  g.qk_norm = QkNorm::kAllHeads;
  g.selection_bias = true;
  g.gating = 2;
  g.pre_tokenizer = "minimax-m2";
  return g;
}

Geometry Granite() {
  Geometry g{.arch = "granitemoe"};
  g.n_vocab = 49155;
  g.n_context = 4096;
  g.tied_embeddings = true;
  g.embedding_scale = 12;
  g.residual_scale = 0.22;
  g.attention_scale = 0.015625;
  g.logit_divisor = 6;
  g.head_dim = 64;
  g.rope_dims = 64;
  g.pre_tokenizer = "refact";
  return g;
}

Geometry Olmoe() {
  Geometry g{.arch = "olmoe"};
  g.n_vocab = 50304;
  g.n_context = 4096;
  g.rms_eps = 1e-5;
  g.qk_norm = QkNorm::kAllHeads;
  g.pre_tokenizer = "olmo";
  return g;
}

Geometry Llama4Scout() {
  Geometry g{.arch = "llama4"};
  g.n_vocab = 202048;
  g.n_context = 10485760;
  g.rope_base = 500000;
  g.rms_eps = 1e-5;
  g.pre_tokenizer = "llama4";
  return g;
}

Geometry Llama4Maverick() {
  Geometry g = Llama4Scout();
  g.n_context = 1048576;
  g.moe_step = 2;
  return g;
}

Geometry Ernie45() {
  Geometry g{.arch = "ernie4_5-moe"};
  g.n_vocab = 103424;
  g.n_context = 131072;
  g.rope_base = 500000;
  g.rms_eps = 1e-5;
  g.tied_embeddings = true;
  g.n_shared = 2;
  g.selection_bias = true;
  return g;
}

Geometry Lfm2() {
  Geometry g{.arch = "lfm2moe", .mixer = Mixer::kShortConv};
  g.n_vocab = 65536;
  g.n_context = 128000;
  g.head_dim = 64;
  g.rope_dims = 64;
  g.rope_base = 1e6;
  g.rms_eps = 1e-5;
  g.tied_embeddings = true;
  g.qk_norm = QkNorm::kPerHead;
  g.selection_bias = true;
  g.gating = 2;
  g.attention_layers = {2, 6, 10, 14, 18, 21};
  g.conv_length = 3;
  g.pre_tokenizer = "lfm2";
  return g;
}

Geometry Hunyuan() {
  Geometry g{.arch = "hunyuan-moe"};
  g.n_vocab = 128167;
  g.n_context = 262144;
  g.rms_eps = 1e-5;
  g.tied_embeddings = true;
  g.qk_norm = QkNorm::kPerHead;
  g.n_shared = 1;
  return g;
}

Geometry Dots1() {
  Geometry g{.arch = "dots1"};
  g.n_vocab = 152064;
  g.n_context = 32768;
  g.rope_base = 1e7;
  g.qk_norm = QkNorm::kPerHead;
  g.n_shared = 2;
  g.selection_bias = true;
  g.gating = 2;
  g.normed = 1;
  g.weights_scale = 2.5;
  g.pre_tokenizer = "qwen2";
  return g;
}

// ---- the models

struct Row {
  std::string_view name, title;
  Geometry (*family)();
  std::uint32_t n_layers, n_embd, n_heads, n_kv_heads;
  std::uint32_t n_experts, n_used, n_ff_exp, n_ff_shared;
  std::uint32_t n_ff_dense, n_dense_lead;
  double billions;
};

// clang-format off: one model a line
constexpr Row kRows[] = {
    //                                                                  layers  embd  q,kv heads   experts     widths        dense width, lead
    {"qwen3.5-35b", "Qwen3.5-35B-A3B", Qwen35Small,                       40, 2048,   16,  2,    256,  8,    512,   512,      0, 0,     34.66},
    {"qwen3.5-122b", "Qwen3.5-122B-A10B", Qwen35,                         48, 3072,   32,  2,    256,  8,   1024,  1024,      0, 0,    122.11},
    {"qwen3.5-397b", "Qwen3.5-397B-A17B", Qwen35,                         60, 4096,   32,  2,    512, 10,   1024,  1024,      0, 0,    396.35},
    {"qwen3-next-80b", "Qwen3-Next-80B-A3B", Qwen3Next,                   48, 2048,   16,  2,    512, 10,    512,   512,      0, 0,     79.67},
    {"qwen3-30b", "Qwen3-30B-A3B", Qwen3,                                 48, 2048,   32,  4,    128,  8,    768,     0,   6144, 0,     30.53},
    {"qwen3-235b", "Qwen3-235B-A22B", Qwen3,                              94, 4096,   64,  4,    128,  8,   1536,     0,  12288, 0,    235.09},
    {"qwen3-coder-480b", "Qwen3-Coder-480B-A35B", Qwen3,                  62, 6144,   96,  8,    160,  8,   2560,     0,   8192, 0,    480.15},
    {"qwen1.5-moe-a2.7b", "Qwen1.5-MoE-A2.7B", Qwen2,                     24, 2048,   16, 16,     60,  4,   1408,  5632,      0, 0,     14.32},
    {"qwen2-57b", "Qwen2-57B-A14B", Qwen2,                                28, 3584,   28,  4,     64,  8,   2560, 20480,      0, 0,     57.41},
    {"mixtral-8x7b", "Mixtral-8x7B", Mixtral,                             32, 4096,   32,  8,      8,  2,  14336,     0,      0, 0,     46.70},
    {"mixtral-8x22b", "Mixtral-8x22B", Mixtral,                           56, 6144,   48,  8,      8,  2,  16384,     0,      0, 0,    140.62},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite", DeepSeekV2Lite,              27, 2048,   16,  1,     64,  6,   1408,  2816,  10944, 1,     15.71},
    {"deepseek-v2", "DeepSeek-V2", DeepSeekV2,                            60, 5120,  128,  1,    160,  6,   1536,  3072,  12288, 1,    235.74},
    {"deepseek-v3", "DeepSeek-V3", DeepSeekV3,                            61, 7168,  128,  1,    256,  8,   2048,  2048,  18432, 3,    671.03},
    {"kimi-k2", "Kimi-K2", KimiK2,                                        61, 7168,   64,  1,    384,  8,   2048,  2048,  18432, 1,   1026.41},
    {"moonlight-16b", "Moonlight-16B-A3B", Moonlight,                     27, 2048,   16,  1,     64,  6,   1408,  2816,  11264, 1,     15.96},
    {"gpt-oss-20b", "gpt-oss-20b", GptOss,                                24, 2880,   64,  8,     32,  4,   2880,     0,      0, 0,     20.91},
    {"gpt-oss-120b", "gpt-oss-120b", GptOss,                              36, 2880,   64,  8,    128,  4,   2880,     0,      0, 0,    116.83},
    {"glm-4.5-air", "GLM-4.5-Air", Glm45Air,                              46, 4096,   96,  8,    128,  8,   1408,  1408,  10944, 1,    110.47},
    {"glm-4.5", "GLM-4.5", Glm45,                                         92, 5120,   96,  8,    160,  8,   1536,  1536,  12288, 3,    358.34},
    {"minimax-m2", "MiniMax-M2", MiniMaxM2,                               62, 3072,   48,  8,    256,  8,   1536,     0,      0, 0,    228.69},
    {"granite-1b-a400m", "Granite-3.1-1B-A400M", Granite,                 24, 1024,   16,  8,     32,  8,    512,     0,      0, 0,      1.33},
    {"granite-3b-a800m", "Granite-3.1-3B-A800M", Granite,                 32, 1536,   24,  8,     40,  8,    512,     0,      0, 0,      3.30},
    {"olmoe-1b-7b", "OLMoE-1B-7B", Olmoe,                                 16, 2048,   16, 16,     64,  8,   1024,     0,      0, 0,      6.92},
    {"llama-4-scout", "Llama-4-Scout-17B-16E", Llama4Scout,               48, 5120,   40,  8,     16,  1,   8192,  8192,  16384, 0,    107.77},
    {"llama-4-maverick", "Llama-4-Maverick-17B-128E", Llama4Maverick,     48, 5120,   40,  8,    128,  1,   8192,  8192,  16384, 0,    400.71},
    {"ernie-4.5-21b", "ERNIE-4.5-21B-A3B", Ernie45,                       28, 2560,   20,  4,     64,  6,   1536,  3072,  12288, 1,     21.83},
    {"lfm2-8b-a1b", "LFM2-8B-A1B", Lfm2,                                  24, 2048,   32,  8,     32,  4,   1792,     0,   7168, 2,      8.34},
    {"hunyuan-a13b", "Hunyuan-A13B", Hunyuan,                             32, 4096,   32,  8,     64,  8,   3072,  3072,      0, 0,     80.39},
    {"dots1-142b", "dots.llm1", Dots1,                                    62, 4096,   32, 32,    128,  6,   1408,  2816,  10944, 1,    142.77},
};
// clang-format on

std::vector<Geometry> MakeTable() {
  std::vector<Geometry> table;
  for (const Row& row : kRows) {
    Geometry g = row.family();
    g.name = row.name;
    g.title = row.title;
    g.n_layers = row.n_layers;
    g.n_embd = row.n_embd;
    g.n_heads = row.n_heads;
    g.n_kv_heads = row.n_kv_heads;
    g.n_experts = row.n_experts;
    g.n_used = row.n_used;
    g.n_ff_exp = row.n_ff_exp;
    g.n_ff_shared = row.n_ff_shared;
    g.n_ff_dense = row.n_ff_dense;
    g.n_dense_lead = row.n_dense_lead;
    g.published_billions = row.billions;
    table.push_back(std::move(g));
  }
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
