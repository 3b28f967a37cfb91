#include "base/recipe.h"

#include <bit>
#include <string_view>

namespace linkcpp {
namespace {

constexpr std::string_view kGluNames[kGluFns] = {"reglu",     "geglu",       "swiglu",      "swiglu_oai",
                                                 "geglu_erf", "geglu_quick", "swiglu_clamp"};
constexpr std::string_view kUnaryNames[kUnaryFns] = {
    "relu", "silu",     "gelu", "gelu_quick", "gelu_erf",  "sigmoid",     "tanh", "neg",
    "exp",  "softplus", "abs",  "elu",        "hardswish", "hardsigmoid", "step", "sgn"};

void PutF32(std::vector<std::uint8_t>& out, float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<std::uint8_t>(bits >> shift));
}

float GetF32(std::span<const std::uint8_t> bytes) {
  std::uint32_t bits = 0;
  for (int i = 3; i >= 0; --i) bits = bits << 8 | bytes[static_cast<std::size_t>(i)];
  return std::bit_cast<float>(bits);
}

bool TakesTwo(StepOp op) {
  return op == StepOp::kGlu || op == StepOp::kMul || op == StepOp::kAdd;
}

}  // namespace

const char* ProjectionName(Projection projection) {
  switch (projection) {
    case Projection::kGate: return "gate";
    case Projection::kUp: return "up";
    case Projection::kDown: return "down";
    case Projection::kGateUp: return "gate_up";
  }
  return "?";
}

std::string Recipe::Describe() const {
  std::string text;
  for (const Step& step : steps) {
    if (!text.empty()) text += ' ';
    switch (step.op) {
      case StepOp::kProject: text += std::format("{}.{}", ProjectionName(step.projection), step.a); break;
      case StepOp::kBias: text += std::format("bias[{}]({})", ProjectionName(step.projection), step.a); break;
      case StepOp::kScale: text += std::format("scale[{}]({})", ProjectionName(step.projection), step.a); break;
      case StepOp::kGlu:
        text += std::format("{}{}({},{})", kGluNames[step.fn], step.swapped ? "_swapped" : "", step.a, step.b);
        break;
      case StepOp::kUnary: text += std::format("{}({})", kUnaryNames[step.fn], step.a); break;
      case StepOp::kSquare: text += std::format("sqr({})", step.a); break;
      case StepOp::kClamp: text += std::format("clamp({},{},{})", step.a, step.p0, step.p1); break;
      case StepOp::kMul: text += std::format("mul({},{})", step.a, step.b); break;
      case StepOp::kAdd: text += std::format("add({},{})", step.a, step.b); break;
      case StepOp::kFactor: text += std::format("factor({},{},{})", step.a, step.p0, step.p1); break;
      case StepOp::kHalf: text += std::format("half{}({})", step.fn, step.a); break;
    }
  }
  return text;
}

Recipe Recipe::Swiglu() {
  return Recipe{{
      Step{.op = StepOp::kProject, .projection = Projection::kUp, .a = 0},
      Step{.op = StepOp::kProject, .projection = Projection::kGate, .a = 0},
      Step{.op = StepOp::kGlu, .fn = static_cast<std::uint8_t>(GluFn::kSwiglu), .a = 2, .b = 1},
      Step{.op = StepOp::kProject, .projection = Projection::kDown, .a = 3},
  }};
}

std::vector<std::uint8_t> EncodeRecipe(const Recipe& recipe) {
  std::vector<std::uint8_t> out;
  out.reserve(recipe.steps.size() * kStepBytes);
  for (const Step& step : recipe.steps) {
    out.push_back(static_cast<std::uint8_t>(step.op));
    out.push_back(static_cast<std::uint8_t>(step.projection));
    out.push_back(step.fn);
    out.push_back(step.swapped ? 1 : 0);
    out.push_back(step.a);
    out.push_back(step.b);
    PutF32(out, step.p0);
    PutF32(out, step.p1);
  }
  return out;
}

Result<Recipe> DecodeRecipe(std::span<const std::uint8_t> bytes) {
  const std::size_t n_steps = bytes.size() / kStepBytes;
  if (bytes.empty() || bytes.size() % kStepBytes != 0 || n_steps > kMaxRecipeSteps) {
    return Fail(FaultCode::kMalformed, "a recipe of {} bytes is not 1 to {} steps of {}", bytes.size(), kMaxRecipeSteps,
                kStepBytes);
  }
  Recipe recipe;
  recipe.steps.reserve(n_steps);
  for (std::size_t i = 0; i < n_steps; ++i) {
    const auto field = bytes.subspan(i * kStepBytes, kStepBytes);
    Step step;
    if (field[0] < 1 || field[0] > static_cast<std::uint8_t>(StepOp::kHalf)) {
      return Fail(FaultCode::kMalformed, "recipe step {}: unknown operation {}", i, field[0]);
    }
    step.op = static_cast<StepOp>(field[0]);
    if (field[1] >= kProjections)
      return Fail(FaultCode::kMalformed, "recipe step {}: unknown projection {}", i, field[1]);
    step.projection = static_cast<Projection>(field[1]);
    step.fn = field[2];
    const int n_fns = step.op == StepOp::kGlu     ? kGluFns
                      : step.op == StepOp::kUnary ? kUnaryFns
                      : step.op == StepOp::kHalf  ? 2
                                                  : 1;
    if (step.fn >= n_fns) return Fail(FaultCode::kMalformed, "recipe step {}: unknown function {}", i, step.fn);
    if (field[3] > 1) return Fail(FaultCode::kMalformed, "recipe step {}: swapped is {}", i, field[3]);
    step.swapped = field[3] == 1;
    step.a = field[4];
    step.b = field[5];
    if (step.a > i || (TakesTwo(step.op) ? step.b > i : step.b != 0)) {
      return Fail(FaultCode::kMalformed, "recipe step {}: refers to a value that does not exist yet", i);
    }
    step.p0 = GetF32(field.subspan(6, 4));
    step.p1 = GetF32(field.subspan(10, 4));
    recipe.steps.push_back(step);
  }
  return recipe;
}

std::uint64_t RecipeKey(const Recipe& recipe) {
  std::uint64_t key = 0xcbf29ce484222325u;
  for (const std::uint8_t byte : EncodeRecipe(recipe)) key = (key ^ byte) * 0x100000001b3u;
  return key;
}

}  // namespace linkcpp
