#include "oracle/architecture.h"

#include <algorithm>

namespace linkcpp {
namespace {

using Activation = ArchitectureRules::Activation;

// Those that differ from the usual SILU, softmax, renormalised.
constexpr ArchitectureRules kRules[] = {
    {.name = "qwen2moe", .renormalise = false},
    {.name = "qwen3moe"},
    {.name = "qwen3vlmoe"},
    {.name = "qwen3next"},
    {.name = "qwen35moe"},
    {.name = "llama"},
    {.name = "llama4", .gating = Gating::kSigmoid, .renormalise = false, .select_logits = true, .weigh_input = true},
    {.name = "deepseek", .renormalise = false},
    {.name = "deepseek2", .renormalise = false},
    {.name = "glm4moe", .gating = Gating::kSigmoid, .renormalise = false},
    {.name = "gpt-oss", .activation = Activation::kSwigluOai, .gating = Gating::kSoftmaxWeight, .renormalise = false},
    {.name = "minimax-m2", .gating = Gating::kSigmoid},
    {.name = "minimax-m3", .activation = Activation::kSwigluOai, .gating = Gating::kSigmoid, .renormalise = false},
    {.name = "granitemoe"},
    {.name = "granitehybrid"},
    {.name = "olmoe", .renormalise = false},
    {.name = "ernie4_5-moe"},
    {.name = "lfm2moe", .gating = Gating::kSigmoid},
    {.name = "hunyuan-moe"},
    {.name = "hy_v3", .gating = Gating::kSigmoid, .renormalise = false},
    {.name = "gemma4", .activation = Activation::kGelu},
    {.name = "nemotron_h_moe",
     .activation = Activation::kReluSquared,
     .gating = Gating::kSigmoid,
     .renormalise = false},
    {.name = "grok", .activation = Activation::kGelu},
    {.name = "dbrx"},
    {.name = "arctic"},
    {.name = "phimoe"},
    {.name = "bailingmoe", .renormalise = false},
    {.name = "bailingmoe2", .gating = Gating::kSigmoid, .renormalise = false},
    {.name = "dots1", .renormalise = false},
    {.name = "mimo2", .gating = Gating::kSigmoid},
    {.name = "kimi-linear", .gating = Gating::kSigmoid},
    {.name = "smallthinker", .activation = Activation::kRelu},
    {.name = "nomic-bert-moe", .activation = Activation::kGelu, .renormalise = false},
    {.name = "deepseek4", .gating = Gating::kSqrtSoftplus, .renormalise = false},
};

constexpr float kOaiAlpha = 1.702f, kOaiLimit = 7.0f;

// Appends steps and remembers the number of the latest value.
class RecipeWriter {
 public:
  std::uint8_t Add(Step step) {
    recipe_.steps.push_back(step);
    return static_cast<std::uint8_t>(recipe_.steps.size());
  }
  std::uint8_t Projected(Projection projection, std::uint8_t a, const ExpertParts& parts) {
    const auto index = static_cast<std::size_t>(projection);
    a = Add({.op = StepOp::kProject, .projection = projection, .a = a});
    if (parts.scale[index]) a = Add({.op = StepOp::kScale, .projection = projection, .a = a});
    if (parts.bias[index]) a = Add({.op = StepOp::kBias, .projection = projection, .a = a});
    return a;
  }
  Recipe Take() { return std::move(recipe_); }

 private:
  Recipe recipe_;
};

std::uint8_t Gated(RecipeWriter& writer, Activation activation, std::uint8_t gate, std::uint8_t up) {
  Step step{.op = StepOp::kGlu, .a = gate, .b = up};
  GluFn fn = GluFn::kSwiglu;
  switch (activation) {
    case Activation::kSilu: fn = GluFn::kSwiglu; break;
    case Activation::kGelu: fn = GluFn::kGeglu; break;
    case Activation::kRelu:
    case Activation::kReluSquared: fn = GluFn::kReglu; break;
    case Activation::kSwigluOai:
      fn = GluFn::kSwigluOai;
      step.p0 = kOaiAlpha;
      step.p1 = kOaiLimit;
      break;
  }
  step.fn = static_cast<std::uint8_t>(fn);
  return writer.Add(step);
}

std::uint8_t Ungated(RecipeWriter& writer, Activation activation, std::uint8_t up) {
  const bool relu = activation == Activation::kRelu || activation == Activation::kReluSquared;
  const UnaryFn fn = relu ? UnaryFn::kRelu : activation == Activation::kGelu ? UnaryFn::kGelu : UnaryFn::kSilu;
  up = writer.Add({.op = StepOp::kUnary, .fn = static_cast<std::uint8_t>(fn), .a = up});
  return activation == Activation::kReluSquared ? writer.Add({.op = StepOp::kSquare, .a = up}) : up;
}

}  // namespace

Result<ArchitectureRules> RulesOf(std::string_view architecture) {
  if (architecture == "kimi-k3") {
    return Fail(FaultCode::kRefused, "architecture {}: its experts' activation has no oracle", architecture);
  }
  const auto* found = std::ranges::find(kRules, architecture, &ArchitectureRules::name);
  return found != std::end(kRules) ? *found : ArchitectureRules{};
}

Result<Recipe> RecipeFor(const ArchitectureRules& rules, const ExpertParts& parts) {
  const auto has = [&](Projection projection) { return parts.weight[static_cast<std::size_t>(projection)]; };
  if (!has(Projection::kDown)) return Fail(FaultCode::kRefused, "the layer's experts have no down weights");
  RecipeWriter writer;
  std::uint8_t value = 0;
  if (has(Projection::kGateUp)) {
    const std::uint8_t both = writer.Projected(Projection::kGateUp, 0, parts);
    const std::uint8_t gate = writer.Add({.op = StepOp::kHalf, .fn = 0, .a = both});
    const std::uint8_t up = writer.Add({.op = StepOp::kHalf, .fn = 1, .a = both});
    value = Gated(writer, rules.activation, gate, up);
  } else if (!has(Projection::kUp)) {
    return Fail(FaultCode::kRefused, "the layer's experts have neither up nor gate_up weights");
  } else {
    const std::uint8_t up = writer.Projected(Projection::kUp, 0, parts);
    if (has(Projection::kGate)) {
      const std::uint8_t gate = writer.Projected(Projection::kGate, 0, parts);
      value = Gated(writer, rules.activation, gate, up);
    } else {
      value = Ungated(writer, rules.activation, up);
    }
  }
  writer.Projected(Projection::kDown, value, parts);
  return writer.Take();
}

}  // namespace linkcpp
