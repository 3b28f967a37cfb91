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
    SlidingRule{"gpt-oss", 2, false, 0},     SlidingRule{"llama4", 4, false, 8192}, SlidingRule{"smallthinker", 4, true, 4096},
    SlidingRule{"exaone-moe", 4, false, 0},  SlidingRule{"afmoe", 4, false, 0},     SlidingRule{"cohere2moe", 4, false, 0},
    SlidingRule{"phimoe", 0, false, 0},
};

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
    }
    for (LayerSizes& layer : sizes_.layers) {
      if (layer.backbone_bytes + layer.expert_bytes == 0) {
        return Fail(FaultCode::kRefused, "{}: block_count is {}, but there is no tensor of layer {}", model_.name(),
                    sizes_.layers.size() + sizes_.n_skipped_layers, layer.layer);
      }
      AddExperts(layer);
      AddCache(layer);
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

  void ReadKeys() {
    sizes_.name = model_.Text("general.name").value_or(model_.name());
    sizes_.architecture = model_.architecture();
    sizes_.n_embd = static_cast<std::uint32_t>(Key("embedding_length", 0));
    sizes_.n_head = static_cast<std::uint32_t>(Key("attention.head_count", 0));
    sizes_.context_length = static_cast<std::uint32_t>(Key("context_length", 0));
    sizes_.sliding_window = static_cast<std::uint32_t>(Key("attention.sliding_window", 0));
    const std::string pattern = sizes_.architecture + ".attention.sliding_window_pattern";
    if (const GgufArray* array = model_.Array(pattern)) sliding_array_ = array->integers;
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
    for (std::uint32_t i = 0; i < sizes_.layers.size(); ++i) sizes_.layers[i].layer = i;
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
        if (tensor.name != "output.weight") output_norm_bytes_ += tensor.size_bytes;
      }
    } else if (*layer >= sizes_.layers.size()) {
      sizes_.skipped_bytes += tensor.size_bytes;
    } else if (ParseExpertTensorName(tensor.name)) {
      sizes_.layers[*layer].expert_bytes += tensor.size_bytes;
      sizes_.layers[*layer].expert_elements += Elements(tensor);
    } else {
      sizes_.layers[*layer].backbone_bytes += tensor.size_bytes;
    }
  }

  void AddExperts(LayerSizes& layer) {
    const MoeLayer* moe = model_.FindMoeLayer(LayerId{static_cast<decltype(LayerId::value)>(layer.layer)});
    if (moe == nullptr) return;
    layer.n_experts = moe->n_experts;
    layer.slice_bytes = moe->slice_bytes;
    layer.n_used = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(Key("expert_used_count", 1, layer.layer), 1, layer.n_experts));
    for (const ExpertTensor& tensor : moe->tensors) {
      layer.largest_expert_tensor_bytes = std::max(layer.largest_expert_tensor_bytes, tensor.tensor->size_bytes);
      if (tensor.projection == Projection::kDown && tensor.kind == SlabKind::kWeight) {
        layer.n_ff_exp = static_cast<std::uint32_t>(tensor.tensor->ne[0]);
      }
    }
  }

  void AddCache(LayerSizes& layer) {
    const std::uint32_t il = layer.layer;
    layer.recurrent_bytes = 4 * RecurrentElements(il);
    if (layer.recurrent_bytes > 0 && Find(il, "attn_k.weight") == nullptr && Find(il, "attn_kv_a_mqa.weight") == nullptr) {
      return;  // its whole memory is the state
    }
    const std::uint64_t key_length = Key("attention.key_length", sizes_.n_head == 0 ? 0 : sizes_.n_embd / sizes_.n_head, il);
    const std::uint64_t value_length = Key("attention.value_length", key_length, il);
    const std::uint64_t n_head_kv = Key("attention.head_count_kv", sizes_.n_head, il);
    if (const TensorInfo* latent = Find(il, "attn_kv_a_mqa.weight")) {
      const bool absorbed = Find(il, "attn_k_b.weight") != nullptr;
      layer.k_elements = absorbed ? latent->ne[1] : sizes_.n_head * key_length;
      layer.v_elements = absorbed ? 0 : sizes_.n_head * value_length;
    } else if (const TensorInfo* k = Find(il, "attn_k.weight")) {
      const TensorInfo* v = Find(il, "attn_v.weight");
      layer.k_elements = k->ne[1];
      layer.v_elements = v != nullptr ? v->ne[1] : k->ne[1];
    } else if (Find(il, "attn_qkv.weight") != nullptr) {
      layer.k_elements = n_head_kv * key_length;
      layer.v_elements = n_head_kv * value_length;
    }
    layer.sliding = layer.k_elements > 0 && IsSliding(il);
  }

  bool IsSliding(std::uint32_t il) const {
    if (sizes_.sliding_window == 0) return false;
    if (!sliding_array_.empty()) return il < sliding_array_.size() && sliding_array_[il] != 0;
    if (sliding_.period == 0) return false;  // a window the architecture's graph does not use
    return sliding_.full_first ? il % sliding_.period != 0 : il % sliding_.period < sliding_.period - 1;
  }

  // Of one sequence: the tail of a convolution, and the state of a delta net or of Mamba.
  std::uint64_t RecurrentElements(std::uint32_t il) const {
    if (const TensorInfo* conv = Find(il, "shortconv.conv.weight")) return (conv->ne[0] - 1) * conv->ne[1];
    if (const TensorInfo* conv = Find(il, "ssm_conv1d.weight")) {
      return (conv->ne[0] - 1) * conv->ne[1] + Key("ssm.state_size", 0) * Key("ssm.inner_size", 0);
    }
    if (const TensorInfo* conv = Find(il, "ssm_conv1d_q.weight")) {  // Kimi's delta attention: three convolutions
      const std::uint64_t head = Key("kda.head_dim", 128), width = head * sizes_.n_head;
      return 3 * (conv->ne[0] - 1) * width + head * width;
    }
    return 0;
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
