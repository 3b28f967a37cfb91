#include "planner/model_sizes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <format>
#include <numeric>
#include <optional>
#include <string_view>

#include "gguf/tensor_type.h"

namespace linkcpp {
namespace {

std::uint64_t Elements(const TensorInfo& tensor) {
  return tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
}

// "blk.7.attn_q.weight" -> 7; nullopt: a tensor of no layer.
std::optional<std::uint32_t> LayerOf(std::string_view name) {
  if (!name.starts_with("blk.")) return std::nullopt;
  std::uint32_t layer = 0;
  const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  return layer;
}

// Which layers look back over a window only, where the file has no array that says so. {name, every how many layers
// one sees everything, whether that one comes first, the window when the file has no key}.
struct SlidingRule {
  std::string_view architecture;
  std::uint32_t period;
  bool full_first;
  std::uint32_t window;
};
constexpr std::array kSlidingRules{
    SlidingRule{"gpt-oss", 2, false, 0},        SlidingRule{"llama4", 4, false, 8192},
    SlidingRule{"smallthinker", 4, true, 4096}, SlidingRule{"exaone-moe", 4, false, 0},
    SlidingRule{"afmoe", 4, false, 0},          SlidingRule{"cohere2moe", 4, false, 0},
    SlidingRule{"phimoe", 0, false, 0},
};

constexpr std::array<std::string_view, 1> kWithoutFlashAttention{"grok"};

// ggml's CPU backend keeps two-dimensional matrices in a layout for AMX where it can; a block of some types takes some
// bytes more there (for the sums that signed products need). By how many bytes this one grows; nullopt: it stays as it
// is.
std::optional<std::uint64_t> AmxGrowth(const TensorInfo& tensor) {
  struct Growth {
    std::string_view type;
    std::uint64_t row_multiple, bytes;
  };
  constexpr std::array kGrowths{Growth{"Q4_0", 32, 0},   Growth{"Q4_1", 32, 0},  Growth{"Q8_0", 32, 4},
                                Growth{"Q4_K", 256, 4},  Growth{"Q5_K", 256, 4}, Growth{"Q6_K", 256, 0},
                                Growth{"IQ4_XS", 256, 2}};
  if (tensor.ne[2] != 1 || tensor.ne[3] != 1 || !tensor.name.ends_with(".weight")) return std::nullopt;
  const auto growth = std::ranges::find(kGrowths, TensorTypeName(tensor.type), &Growth::type);
  if (growth == kGrowths.end() || tensor.ne[0] % growth->row_multiple != 0 || tensor.ne[1] % 32 != 0)
    return std::nullopt;
  return Elements(tensor) / growth->row_multiple * growth->bytes;
}

class Sizer {
 public:
  explicit Sizer(const ModelFile& model) : model_(model) {}

  Result<ModelSizes> Run() {
    RETURN_IF_FAULT(model_.RequireExperts());
    ReadKeys();
    for (const TensorInfo& tensor : model_.tensors()) Add(tensor);
    if (sizes_.output_bytes <= output_norm_bytes_) {  // no output.weight
      sizes_.tied_embeddings = true;
      sizes_.output_bytes += sizes_.embedding_bytes;
      // Rows are looked up in the file's layout, so a packed output is a copy.
      if (const TensorInfo* embedding = model_.FindTensor("token_embd.weight")) {
        sizes_.output = MatrixOf(*embedding);
        if (const auto growth = AmxGrowth(*embedding)) sizes_.output_amx_bytes += embedding->size_bytes + *growth;
      }
    }
    for (LayerSizes& layer : sizes_.layers) {
      if (layer.backbone_bytes + layer.expert_bytes == 0) {
        return Fail(FaultCode::kRefused, "{}: block_count is {}, but there is no tensor of layer {}", model_.name(),
                    sizes_.layers.size() + sizes_.n_skipped_layers, layer.layer);
      }
      RETURN_IF_FAULT(AddExperts(layer));
      AddCache(layer);
      AddSteps(layer);
    }
    return std::move(sizes_);
  }

 private:
  std::uint64_t Key(std::string_view suffix, std::uint64_t otherwise, std::size_t layer = 0) const {
    return model_.ArchInteger(suffix, layer).value_or(otherwise);
  }
  const TensorInfo* Find(std::uint32_t layer, std::string_view what) const {
    return model_.FindTensor(std::format("blk.{}.{}", layer, what));
  }

  static PlainMatrix MatrixOf(const TensorInfo& tensor) {
    return {.name = tensor.name,
            .bytes = tensor.size_bytes,
            .kind = {.type = tensor.type,
                     .n_in = static_cast<std::uint32_t>(tensor.ne[0]),
                     .n_out = static_cast<std::uint32_t>(tensor.ne[1])}};
  }

  void ReadKeys() {
    sizes_.name = model_.Text("general.name").value_or(model_.name());
    sizes_.architecture = model_.architecture();
    sizes_.n_embd = static_cast<std::uint32_t>(Key("embedding_length", 0));
    sizes_.context_length = static_cast<std::uint32_t>(Key("context_length", 0));
    sizes_.sliding_window = static_cast<std::uint32_t>(Key("attention.sliding_window", 0));
    const std::string pattern = sizes_.architecture + ".attention.sliding_window_pattern";
    if (const GgufArray* array = model_.Array(pattern)) sliding_array_ = array->integers;
    sizes_.flash_attention = !std::ranges::contains(kWithoutFlashAttention, sizes_.architecture);
    const auto rule = std::ranges::find(kSlidingRules, sizes_.architecture, &SlidingRule::architecture);
    if (rule != kSlidingRules.end()) {
      sliding_ = *rule;
      if (sizes_.sliding_window == 0) sizes_.sliding_window = rule->window;
    }
    if (const auto period = model_.Integer(pattern)) sliding_.period = static_cast<std::uint32_t>(*period);

    std::uint32_t n_blocks = 0;
    for (const TensorInfo& tensor : model_.tensors()) {
      if (const auto layer = LayerOf(tensor.name)) n_blocks = std::max(n_blocks, *layer + 1);
    }
    n_blocks = std::max(n_blocks, static_cast<std::uint32_t>(std::min<std::uint64_t>(Key("block_count", 0), 1 << 16)));
    sizes_.n_skipped_layers =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(Key("nextn_predict_layers", 0), n_blocks));
    sizes_.layers.resize(n_blocks - sizes_.n_skipped_layers);
    for (std::uint32_t i = 0; i < sizes_.layers.size(); ++i) {
      sizes_.layers[i].layer = i;  // layers of linear attention may say that they have no heads
      sizes_.n_head = std::max(sizes_.n_head, static_cast<std::uint32_t>(Key("attention.head_count", 0, i)));
    }
  }

  void Add(const TensorInfo& tensor) {
    ++sizes_.n_tensors;
    sizes_.n_weights += Elements(tensor);
    const auto layer = LayerOf(tensor.name);
    if (!layer) {
      if (tensor.name == "token_embd.weight") {
        sizes_.n_vocab = static_cast<std::uint32_t>(tensor.ne[1]);
        if (sizes_.n_embd == 0) sizes_.n_embd = static_cast<std::uint32_t>(tensor.ne[0]);
        sizes_.embedding_bytes += tensor.size_bytes;
      } else {
        sizes_.output_bytes += tensor.size_bytes;
        sizes_.output_amx_bytes += AmxGrowth(tensor).value_or(0);
        if (tensor.name == "output.weight") {
          sizes_.output = MatrixOf(tensor);
        } else {
          output_norm_bytes_ += tensor.size_bytes;
        }
      }
    } else if (*layer >= sizes_.layers.size()) {
      sizes_.skipped_bytes += tensor.size_bytes;
    } else if (ParseExpertTensorName(tensor.name)) {
      sizes_.layers[*layer].expert_bytes += tensor.size_bytes;
      sizes_.layers[*layer].expert_elements += Elements(tensor);
    } else {
      sizes_.layers[*layer].backbone_bytes += tensor.size_bytes;
      sizes_.layers[*layer].amx_bytes += AmxGrowth(tensor).value_or(0);
      if (tensor.ne[1] > 1 && tensor.ne[2] == 1) sizes_.layers[*layer].matrices.push_back(MatrixOf(tensor));
    }
  }

  Result<void> AddExperts(LayerSizes& layer) {
    const MoeLayer* moe = model_.FindMoeLayer(LayerId{static_cast<decltype(LayerId::value)>(layer.layer)});
    if (moe == nullptr) return {};
    layer.n_experts = moe->n_experts;
    layer.slice_bytes = moe->slice_bytes;
    const std::uint64_t used = Key("expert_used_count", 1, layer.layer);
    if (used == 0 || used > layer.n_experts) {
      return Fail(FaultCode::kRefused, "{}: layer {}: {} of {} experts are used (expert_used_count): 1 to {} can be",
                  model_.name(), layer.layer, used, layer.n_experts, layer.n_experts);
    }
    layer.n_used = static_cast<std::uint32_t>(used);
    for (const ExpertTensor& tensor : moe->tensors) {
      layer.largest_expert_tensor_bytes = std::max(layer.largest_expert_tensor_bytes, tensor.tensor->size_bytes);
      const std::string& full = tensor.tensor->name;  // "blk.3.ffn_up_exps.weight"
      const std::size_t begin = full.find('.', 4) + 1;
      const std::string name = full.substr(begin, full.find('.', begin) - begin);
      auto part = std::ranges::find(layer.expert_parts, name, &LayerSizes::ExpertPart::name);
      if (part == layer.expert_parts.end()) part = layer.expert_parts.insert(part, {.name = name, .bytes = 0});
      part->bytes += tensor.tensor->size_bytes;
      if (tensor.kind == SlabKind::kWeight) {
        part->kind = {.type = tensor.tensor->type,
                      .n_in = static_cast<std::uint32_t>(tensor.tensor->ne[0]),
                      .n_out = static_cast<std::uint32_t>(tensor.tensor->ne[1]),
                      .n_experts = layer.n_experts,
                      .n_used = layer.n_used};
      }
      if (tensor.projection == Projection::kDown && tensor.kind == SlabKind::kWeight) {
        layer.n_ff_exp = static_cast<std::uint32_t>(tensor.tensor->ne[0]);
      }
    }
    return {};
  }

  void AddCache(LayerSizes& layer) {
    // Diffusion models look at a whole text at once, again and again, and keep nothing.
    if (model_.Flag(sizes_.architecture + ".attention.causal") == false) return;
    const std::uint32_t il = layer.layer;
    layer.recurrent_bytes = 4 * RecurrentElements(il);
    AddSideCaches(layer);
    if (Find(il, "ssm_conv1d_q.weight") != nullptr || IsLightning(il)) return;  // its attn_k is no cache's
    if (layer.recurrent_bytes > 0 && Find(il, "attn_k.weight") == nullptr &&
        Find(il, "attn_kv_a_mqa.weight") == nullptr && Find(il, "attn_kv.weight") == nullptr) {
      return;  // its whole memory is the state
    }
    const std::uint64_t key_length = KeyLength(il);
    const std::uint64_t value_length = Key("attention.value_length", key_length, il);
    const std::uint64_t n_head_kv = Key("attention.head_count_kv", sizes_.n_head, il);
    if (const TensorInfo* latent = Find(il, "attn_kv_a_mqa.weight")) {
      const bool absorbed = Find(il, "attn_k_b.weight") != nullptr;
      layer.k_elements = absorbed ? latent->ne[1] : sizes_.n_head * key_length;
      layer.v_elements = absorbed ? 0 : sizes_.n_head * value_length;
    } else if (const TensorInfo* both = Find(il, "attn_kv.weight")) {  // one row is key and value
      layer.k_elements = both->ne[1];
    } else if (const TensorInfo* k = Find(il, "attn_k.weight")) {
      const TensorInfo* v = Find(il, "attn_v.weight");
      layer.k_elements = k->ne[1];
      layer.v_elements = v != nullptr ? v->ne[1] : k->ne[1];
    } else if (Find(il, "attn_qkv.weight") != nullptr) {
      layer.k_elements = n_head_kv * key_length;
      layer.v_elements = n_head_kv * value_length;
    }
    layer.sliding = layer.k_elements > 0 && IsSliding(il);
    sizes_.n_head_kv = std::max(sizes_.n_head_kv, static_cast<std::uint32_t>(n_head_kv));
    sizes_.head_length = std::max(sizes_.head_length, static_cast<std::uint32_t>(key_length));
    sizes_.qk_norms = sizes_.qk_norms || Find(il, "attn_k_norm.weight") != nullptr;
    for (const std::uint64_t head :
         {layer.v_elements == 0 ? layer.k_elements : key_length, layer.v_elements == 0 ? 0 : value_length}) {
      sizes_.head_gcd = std::gcd(sizes_.head_gcd, head);
    }
  }

  // What llama.cpp's graph does for a token beside matrix products, views, attention and choosing experts: counted on
  // qwen35moe and lfm2moe.
  void AddSteps(LayerSizes& layer) const {
    const std::uint32_t il = layer.layer;
    constexpr std::uint32_t kDeltaNet = 27, kConvolution = 10, kDense = 4, kShared = 4;
    if (layer.recurrent_bytes > 0)
      layer.n_steps += Find(il, "shortconv.conv.weight") != nullptr ? kConvolution : kDeltaNet;
    if (layer.n_experts == 0) layer.n_steps += kDense;
    if (const TensorInfo* down = Find(il, "ffn_down.weight"))
      layer.n_ff_dense = static_cast<std::uint32_t>(down->ne[0]);
    if (const TensorInfo* shared = Find(il, "ffn_up_shexp.weight")) {
      layer.n_steps += kShared;
      layer.n_ff_shared = static_cast<std::uint32_t>(shared->ne[1]);
    }
  }

  // Indexers, which choose what attention looks at, and compressed keys (one cell for `ratio` tokens).
  void AddSideCaches(LayerSizes& layer) {
    const std::uint32_t il = layer.layer;
    const TensorInfo* index = Find(il, "indexer.attn_k.weight");
    if (index == nullptr) index = Find(il, "indexer.k_proj.weight");
    if (index != nullptr) {
      // Pooled: beside every token's key lie its gate, where there is one, and the key pooled from several tokens.
      const bool pooled = Key("attention.indexer.kpool", 0) > 0;
      const bool gated = Find(il, "indexer_compressor_gate.weight") != nullptr;
      const std::uint64_t rows = pooled ? (gated ? 3 : 2) : 1;
      // A block-sparse indexer's cache has values too, one head of them.
      const std::uint64_t v =
          Key("attention.indexer.block_size", 0) > 0 ? Key("attention.value_length", KeyLength(il), il) : 0;
      layer.side_caches.push_back({.k_elements = index->ne[1] * rows, .v_elements = v});
      // Scores, their order, masks made from them: read off llama.cpp 0.7's buffers, the most of any architecture of
      // the kind.
      layer.indexer_pools = pooled;
      layer.indexer_pair_bytes = pooled ? (gated ? 17 : 27) : v > 0 ? 18 : 22;
    }
    sizes_.indexer_row =
        static_cast<std::uint32_t>(Key("attention.indexer.head_count", 0) * Key("attention.indexer.key_length", 0));
    if (const TensorInfo* ape = Find(il, "attn_compressor_ape.weight")) {
      sizes_.compute_is_a_guess = true;
      const auto ratio = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(ape->ne[1], 1, 1u << 20));
      const TensorInfo* key = Find(il, "attn_kv.weight");
      layer.side_caches.push_back({.k_elements = key != nullptr ? key->ne[1] : ape->ne[0], .tokens_per_cell = ratio});
      if (Find(il, "indexer_compressor_ape.weight") != nullptr) {
        layer.side_caches.push_back({.k_elements = Key("attention.indexer.key_length", 0), .tokens_per_cell = ratio});
      }
    }
  }

  std::uint64_t KeyLength(std::uint32_t il) const {
    return Key("attention.key_length", sizes_.n_head == 0 ? 0 : sizes_.n_embd / sizes_.n_head, il);
  }
  // Linear attention without a convolution: a fused qkv with a gate, and a square state for each head.
  bool IsLightning(std::uint32_t il) const {
    return Find(il, "attn_qkv.weight") != nullptr && Find(il, "attn_gate.weight") != nullptr &&
           Find(il, "attn_norm_2.weight") != nullptr && Find(il, "ssm_conv1d.weight") == nullptr;
  }

  bool IsSliding(std::uint32_t il) const {
    if (sizes_.sliding_window == 0) return false;
    if (!sliding_array_.empty()) return il < sliding_array_.size() && sliding_array_[il] != 0;
    if (sliding_.period == 0) return false;  // a window the architecture's graph does not use
    return sliding_.full_first ? il % sliding_.period != 0 : il % sliding_.period < sliding_.period - 1;
  }

  // Of one sequence: the tails of convolutions, the state of a delta net, of Mamba or of linear attention, and what
  // compressors collect until a cell is full.
  std::uint64_t RecurrentElements(std::uint32_t il) const {
    std::uint64_t sum = 0;
    if (const TensorInfo* conv = Find(il, "ple_conv1d.weight")) {  // over n-grams: it looks back in steps of one
      sum += (conv->ne[0] - 1) * Key("ple.ngram_size", 1) * conv->ne[1];
    }
    if (const TensorInfo* conv = Find(il, "shortconv.conv.weight")) sum += (conv->ne[0] - 1) * conv->ne[1];
    if (const TensorInfo* conv = Find(il, "ssm_conv1d.weight")) {
      sum += (conv->ne[0] - 1) * conv->ne[1] + Key("ssm.state_size", 0) * Key("ssm.inner_size", 0);
    }
    if (const TensorInfo* conv = Find(il, "ssm_conv1d_q.weight")) {  // Kimi's delta attention: three convolutions
      const std::uint64_t head = Key("kda.head_dim", 128), width = Elements(*conv) / conv->ne[0];
      sum += 3 * (conv->ne[0] - 1) * width + head * width;
    }
    if (IsLightning(il)) sum += Find(il, "attn_qkv.weight")->ne[1] / 3 * KeyLength(il);
    sum += CompressorElements(il, "attn_compressor_ape.weight", Find(il, "attn_kv.weight"));
    sum += CompressorElements(il, "indexer_compressor_ape.weight", Find(il, "indexer.attn_q_b.weight"));
    return sum;
  }

  // Keys and scores of the tokens a compressor has not used up: its window, twice where windows overlap, in rows as
  // wide as ape's.
  std::uint64_t CompressorElements(std::uint32_t il, std::string_view ape_name, const TensorInfo* beside) const {
    const TensorInfo* ape = Find(il, ape_name);
    if (ape == nullptr || beside == nullptr || Find(il, "attn_compressor_ape.weight") == nullptr) return 0;
    const bool of_indexer = ape_name.starts_with("indexer");
    const std::uint64_t key = of_indexer ? Key("attention.indexer.key_length", ape->ne[0]) : beside->ne[1];
    const std::uint64_t windows = key > 0 ? std::max<std::uint64_t>(1, ape->ne[0] / key) : 1;
    return 2 * ape->ne[0] * ape->ne[1] * windows;
  }

  const ModelFile& model_;
  ModelSizes sizes_;
  std::uint64_t output_norm_bytes_ = 0;
  std::vector<std::uint64_t> sliding_array_;
  SlidingRule sliding_{"", 0, false, 0};
};

}  // namespace

std::uint64_t ModelSizes::ExpertBytes() const {
  std::uint64_t sum = 0;
  for (const LayerSizes& layer : layers) sum += layer.expert_bytes;
  return sum;
}

std::uint64_t ModelSizes::BackboneBytes() const {
  std::uint64_t sum = output_bytes + (tied_embeddings ? 0 : embedding_bytes);
  for (const LayerSizes& layer : layers) sum += layer.backbone_bytes;
  return sum;
}

std::uint32_t ModelSizes::n_moe_layers() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(layers, [](const auto& l) { return l.expert_bytes > 0; }));
}

Result<ModelSizes> MeasureModel(const ModelFile& model) {
  return Sizer(model).Run();
}

}  // namespace linkcpp
