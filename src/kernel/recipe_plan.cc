#include "kernel/recipe_plan.h"

#include <cmath>
#include <numeric>
#include <optional>

namespace linkcpp {
namespace {

constexpr std::uint64_t kMaxLength = 1u << 24;

bool HasTwoOperands(StepOp op) {
  return op == StepOp::kGlu || op == StepOp::kMul || op == StepOp::kAdd;
}
bool Halves(const Step& step) {
  return step.op == StepOp::kHalf || (step.op == StepOp::kGlu && step.a == step.b);
}

std::unexpected<Fault> Refuse(std::size_t step, std::string_view why) {
  return Fail(FaultCode::kRefused, "recipe step {}: {}", step, why);
}

// What holds without lengths: operations, functions, parameters and references that exist, tensors that are there.
Result<void> CheckStep(const Step& step, std::size_t index, const ExpertShape& shape) {
  if (step.a > index || (HasTwoOperands(step.op) && step.b > index)) return Refuse(index, "refers to a later value");
  const auto projection = static_cast<std::size_t>(step.projection);
  if (projection >= kProjections) return Refuse(index, "unknown projection");
  const std::optional<ProjectionShape>& tensors = shape.projections[projection];
  const char* name = ProjectionName(step.projection);
  switch (step.op) {
    case StepOp::kProject:
      if (!tensors) return Refuse(index, std::format("these experts have no {} weight", name));
      return {};
    case StepOp::kBias:
      if (!tensors || !tensors->has_bias) return Refuse(index, std::format("these experts have no {} bias", name));
      return {};
    case StepOp::kScale:
      if (!tensors || !tensors->has_scale) return Refuse(index, std::format("these experts have no {} scale", name));
      return {};
    case StepOp::kGlu: {
      if (step.fn >= kGluFns) return Refuse(index, "unknown gated unit");
      if (step.swapped && step.a != step.b) return Refuse(index, "swapped makes sense for the halves of one row only");
      const auto fn = static_cast<GluFn>(step.fn);
      const bool limited = fn == GluFn::kSwigluOai || fn == GluFn::kSwigluClamp;
      if (limited && !(step.p1 >= 0)) return Refuse(index, std::format("the limit {} is not a limit", step.p1));
      return {};
    }
    case StepOp::kUnary:
      if (step.fn >= kUnaryFns) return Refuse(index, "unknown function");
      return {};
    case StepOp::kHalf:
      if (step.fn > 1) return Refuse(index, "a row has two halves");
      return {};
    case StepOp::kClamp:
      if (!(step.p0 <= step.p1)) return Refuse(index, std::format("nothing lies between {} and {}", step.p0, step.p1));
      return {};
    case StepOp::kSquare:
    case StepOp::kMul:
    case StepOp::kAdd:
    case StepOp::kFactor: return {};
  }
  return Refuse(index, "unknown operation");
}

// The first projection reads value 0, perhaps through steps that keep or halve its length.
Result<std::uint32_t> InputLength(const Recipe& recipe, const ExpertShape& shape) {
  for (const Step& first : recipe.steps) {
    if (first.op != StepOp::kProject) continue;
    std::uint64_t length = shape.projections[static_cast<std::size_t>(first.projection)]->n_in;
    for (std::uint8_t value = first.a; value != 0 && length <= kMaxLength;) {
      const Step& maker = recipe.steps[value - 1u];
      if (Halves(maker)) length *= 2;
      value = maker.a;
    }
    if (length > kMaxLength)
      return Fail(FaultCode::kRefused, "the recipe's input row would be longer than {}", kMaxLength);
    return static_cast<std::uint32_t>(length);
  }
  return Fail(FaultCode::kRefused, "the recipe uses no weight of the expert");
}

Result<std::uint32_t> OutputLength(const Step& step, std::size_t index, const ExpertShape& shape,
                                   const std::vector<std::uint32_t>& lengths) {
  const std::uint32_t length = lengths[step.a];
  const std::optional<ProjectionShape>& tensors = shape.projections[static_cast<std::size_t>(step.projection)];
  const auto fit = [&](std::uint32_t wanted, std::uint32_t out) -> Result<std::uint32_t> {
    if (length == wanted) return out;
    return Refuse(index, std::format("value {} has length {}, not {}", step.a, length, wanted));
  };
  switch (step.op) {
    case StepOp::kProject: return fit(tensors->n_in, tensors->n_out);
    case StepOp::kBias: return fit(tensors->n_out, length);
    case StepOp::kMul:
    case StepOp::kAdd: return fit(lengths[step.b], length);
    case StepOp::kGlu:
      if (step.a != step.b) return fit(lengths[step.b], length);
      [[fallthrough]];
    case StepOp::kHalf:
      if (length % 2 != 0) return Refuse(index, std::format("value {} has odd length {}, no halves", step.a, length));
      return length / 2;
    case StepOp::kScale:
    case StepOp::kUnary:
    case StepOp::kSquare:
    case StepOp::kClamp:
    case StepOp::kFactor: return length;
  }
  return Refuse(index, "unknown operation");
}

}  // namespace

std::uint64_t RecipePlan::floats_per_pair() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
}

Result<RecipePlan> PlanRecipe(const Recipe& recipe, const ExpertShape& shape) {
  if (recipe.steps.empty() || recipe.steps.size() > kMaxRecipeSteps) {
    return Fail(FaultCode::kRefused, "a recipe of {} steps; 1 to {} are allowed", recipe.steps.size(), kMaxRecipeSteps);
  }
  RecipePlan plan;
  plan.input_only_projected = true;
  std::vector<bool> weighted{false};  // per value: comes from a weight
  for (std::size_t i = 0; i < recipe.steps.size(); ++i) {
    const Step& step = recipe.steps[i];
    RETURN_IF_FAULT(CheckStep(step, i, shape));
    const bool reads_input = step.a == 0 || (HasTwoOperands(step.op) && step.b == 0);
    if (reads_input && step.op != StepOp::kProject) plan.input_only_projected = false;
    weighted.push_back(step.op == StepOp::kProject || weighted[step.a] ||
                       (HasTwoOperands(step.op) && weighted[step.b]));
  }
  if (!weighted.back()) return Fail(FaultCode::kRefused, "the recipe's result uses no weight of the expert");
  ASSIGN_OR_RETURN(const std::uint32_t n_in, InputLength(recipe, shape));
  plan.lengths.push_back(n_in);
  for (std::size_t i = 0; i < recipe.steps.size(); ++i) {
    ASSIGN_OR_RETURN(const std::uint32_t length, OutputLength(recipe.steps[i], i, shape, plan.lengths));
    plan.lengths.push_back(length);
  }
  return plan;
}

}  // namespace linkcpp
