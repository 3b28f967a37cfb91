#include "synth/plan.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "synth/layers.h"
#include "synth/vocabulary.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kMostExperts = 1024;  // llama.cpp's own limits
constexpr std::uint32_t kMostLayers = 512;
constexpr std::uint32_t kQueryRank = 1536;  // of every DeepSeek that compresses its queries

// llama.cpp 0.7 aborts on a hybrid in which no layer has the attention that only some layers have.
std::uint32_t LeastLayers(const Geometry& g) {
  switch (g.mixer) {
    case Mixer::kDeltaNet: return g.full_attention_interval;
    case Mixer::kShortConv: return g.attention_layers.front() + 1;
    default: return g.arch == "llama4" ? 4 : 1;  // its every fourth layer attends to more than a window
  }
}

Result<void> Shrink(Geometry& g, const PlanOptions& options) {
  if (options.layers) {
    const std::uint32_t n = *options.layers;
    if (n == 0 || n > kMostLayers) {
      return Fail(FaultCode::kRefused, "{} layers are out of range: choose 1 to {}", n, kMostLayers);
    }
    if (n < LeastLayers(g)) {
      return Fail(FaultCode::kRefused, "{} layers of {} would not run in llama.cpp: choose at least {}", n, g.title,
                  LeastLayers(g));
    }
    if (n != g.n_layers) g.n_predict_layers = 0;
    g.n_layers = n;
    g.n_dense_lead = std::min(g.n_dense_lead, n - 1);  // always at least one layer with experts
    // llama.cpp knows a deepseek2 without query compression by its number of layers, and by nothing else.
    if (g.mixer == Mixer::kLatent) g.q_rank = n == 26 || n == 27 ? 0 : std::max(g.q_rank, kQueryRank);
  }
  if (options.experts) {
    const std::uint32_t n = *options.experts;
    if (n < 2 || n > kMostExperts) {
      return Fail(FaultCode::kRefused, "{} experts are out of range: choose 2 to {}", n, kMostExperts);
    }
    g.n_experts = n;
    g.n_used = std::min(g.n_used, n);
    // Groups as llama.cpp wants them: even, of at least two, and enough experts in the chosen ones.
    if (g.n_groups > 1 && (n % g.n_groups != 0 || n / g.n_groups < 2 || n / g.n_groups * g.n_groups_used < g.n_used)) {
      g.n_groups = g.n_groups_used = 1;
    }
  }
  if (options.vocabulary && *options.vocabulary != g.n_vocab) {
    g.n_vocab = *options.vocabulary;
    g.n_merges = 0;
  }
  return {};
}

class HeaderWriter {
 public:
  template <class Number>
    requires std::is_arithmetic_v<Number>
  void Put(Number value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out_.append(bytes, sizeof value);
  }
  void Put(std::string_view text) {
    Put(static_cast<std::uint64_t>(text.size()));
    out_.append(text);
  }
  void PutKey(const MetaKey& key) {
    Put(std::string_view(key.name));
    std::visit(
        [&](const auto& value) {
          using Value = std::remove_cvref_t<decltype(value)>;
          if constexpr (requires { typename Value::value_type; } && !std::is_same_v<Value, std::string>) {
            Put(kArray);
            Put(TypeOf<typename Value::value_type>());
            Put(static_cast<std::uint64_t>(value.size()));
            for (const auto& element : value) PutValue(element);
          } else {
            Put(TypeOf<Value>());
            PutValue(value);
          }
        },
        key.value);
  }
  void Align(std::uint64_t alignment) { out_.resize((out_.size() + alignment - 1) / alignment * alignment, '\0'); }
  std::string Take() { return std::move(out_); }

 private:
  static constexpr std::uint32_t kArray = 9;
  template <class Value>
  static constexpr std::uint32_t TypeOf() {  // GGUF's numbers
    if constexpr (std::is_same_v<Value, std::uint32_t>) return 4;
    if constexpr (std::is_same_v<Value, std::int32_t>) return 5;
    if constexpr (std::is_same_v<Value, float>) return 6;
    if constexpr (std::is_same_v<Value, bool>) return 7;
    if constexpr (std::is_same_v<Value, std::string>) return 8;
  }
  template <class Value>
  void PutValue(const Value& value) {
    if constexpr (std::is_same_v<Value, std::string>) {
      Put(std::string_view(value));
    } else {
      Put(value);
    }
  }
  std::string out_;
};

bool IsExpertTensor(std::string_view name) {
  return name.find("_exps.") != std::string_view::npos;
}

}  // namespace

PlanTotals SynthPlan::Totals() const {
  PlanTotals totals{.n_tensors = tensors.size()};
  for (const PlannedTensor& tensor : tensors) {
    totals.n_parameters += tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
    (IsExpertTensor(tensor.name) ? totals.expert_bytes : totals.other_bytes) += tensor.size_bytes;
  }
  return totals;
}

Result<SynthPlan> PlanSynth(const PlanOptions& options) {
  ASSIGN_OR_RETURN(const Geometry* known, FindGeometry(options.like));
  const Mix* mix = FindMix(options.type);
  if (mix == nullptr) {
    std::string names;
    for (const Mix& m : KnownMixes()) names += (names.empty() ? "" : ", ") + std::string(m.name);
    return Fail(FaultCode::kRefused, "unknown type '{}': choose one of {}", options.type, names);
  }
  SynthPlan plan{.geometry = *known, .mix = *mix, .keys = {}, .tensors = {}};
  Geometry& g = plan.geometry;
  RETURN_IF_FAULT(Shrink(g, options));
  RETURN_IF_FAULT(CheckVocabulary(g.n_vocab, g.n_merges));
  plan.keys = ListKeys(g, *mix);

  std::vector<TensorShape> shapes = ListTensors(g);
  const auto is_v = [](const TensorShape& shape) {
    return shape.name.ends_with("attn_v.weight") || shape.name.ends_with("attn_qkv.weight");
  };
  // What the file says of its first layer. A hybrid's key holds for all of its layers, or lists them.
  const bool first_attends = g.mixer != Mixer::kShortConv || IsFullAttention(g, 0);
  MixRules rules(*mix, {.n_layers = g.n_layers + g.n_predict_layers,
                        .n_attention_v = static_cast<std::uint32_t>(std::ranges::count_if(shapes, is_v)),
                        .n_experts = g.n_experts,
                        .heads_per_kv = first_attends ? g.n_heads / g.n_kv_heads : 0,
                        .tied_embeddings = g.tied_embeddings});
  for (TensorShape& shape : shapes) {
    PlannedTensor tensor{.name = std::move(shape.name), .ne = shape.ne, .n_dims = shape.n_dims, .fill = shape.fill};
    tensor.type = rules.Choose(tensor.name, tensor.ne, tensor.n_dims);
    tensor.size_bytes = TensorBytes(tensor.type, tensor.ne);
    tensor.offset = plan.data_bytes;
    plan.data_bytes += (tensor.size_bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
    plan.tensors.push_back(std::move(tensor));
  }
  return plan;
}

std::string GgufHeader(const SynthPlan& plan) {
  HeaderWriter out;
  out.Put(std::uint32_t{0x46554747});  // "GGUF"
  out.Put(std::uint32_t{3});
  out.Put(static_cast<std::uint64_t>(plan.tensors.size()));
  const std::vector<MetaKey> tokenizer = ListTokenizerKeys(plan.geometry);
  out.Put(static_cast<std::uint64_t>(plan.keys.size() + tokenizer.size()));
  for (const MetaKey& key : plan.keys) out.PutKey(key);
  for (const MetaKey& key : tokenizer) out.PutKey(key);
  for (const PlannedTensor& tensor : plan.tensors) {
    out.Put(std::string_view(tensor.name));
    out.Put(static_cast<std::uint32_t>(tensor.n_dims));
    for (int i = 0; i < tensor.n_dims; ++i) out.Put(tensor.ne[i]);
    out.Put(static_cast<std::uint32_t>(tensor.type));
    out.Put(tensor.offset);
  }
  out.Align(kDataAlignment);
  return out.Take();
}

}  // namespace linkcpp
