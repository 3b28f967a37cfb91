#include <algorithm>
#include <array>

#include "kernel/calibrate.h"
#include "kernel/calibrate_layers.h"

namespace linkcpp {
namespace {

constexpr std::byte kWeightByte{0x2a};  // as in calibrate.cc

// The likeliest recipe for these projections; no steps: none.
Recipe RecipeFor(const ExpertShape& shape) {
  const auto has = [&](Projection p) { return shape.projections[static_cast<std::size_t>(p)].has_value(); };
  if (!has(Projection::kDown)) return {};
  if (has(Projection::kGate) && has(Projection::kUp)) return Recipe::Swiglu();
  const Step down{.op = StepOp::kProject, .projection = Projection::kDown, .a = 2};
  if (has(Projection::kGateUp)) {
    return {{{.op = StepOp::kProject, .projection = Projection::kGateUp, .a = 0},
             {.op = StepOp::kGlu, .fn = static_cast<std::uint8_t>(GluFn::kSwiglu), .a = 1, .b = 1},
             down}};
  }
  if (has(Projection::kUp)) {
    return {{{.op = StepOp::kProject, .projection = Projection::kUp, .a = 0},
             {.op = StepOp::kUnary, .fn = static_cast<std::uint8_t>(UnaryFn::kRelu), .a = 1},
             down}};
  }
  return {};
}

Result<void> Load(ExpertStack& stack) {
  std::array<std::vector<std::byte>, kProjections> bytes;
  ExpertSlabs slabs;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto& projection = stack.shape().projections[i];
    if (!projection) continue;
    bytes[i].assign(ggml_row_size(static_cast<ggml_type>(projection->type), projection->n_in) * projection->n_out,
                    kWeightByte);
    slabs.projections[i].weight = bytes[i];
  }
  for (std::uint32_t slot = 0; slot < stack.n_slots(); ++slot) RETURN_IF_FAULT(stack.Load(slot, slabs));
  return {};
}

// Without biases and scales: they are small, and not always where a recipe has them.
Result<ExpertShape> PlainShape(const ExpertShape& shape) {
  ExpertShape plain = shape;
  for (auto& projection : plain.projections) {
    if (projection) projection->has_bias = projection->has_scale = false;
  }
  if (RecipeFor(plain).steps.empty())
    return Fail(FaultCode::kRefused, "experts without projections that could be measured");
  return plain;
}

}  // namespace

Result<double> CalibrateWorkerToken(const ExpertShape& shape, std::uint32_t n_experts, std::uint32_t n_used,
                                    std::uint64_t most_bytes, Device& device, double seconds, double pause_seconds) {
  ASSIGN_OR_RETURN(const ExpertShape plain, PlainShape(shape));
  const Recipe recipe = RecipeFor(plain);
  const std::uint32_t used = std::clamp(n_used, 1u, n_experts);
  const std::uint64_t fit = most_bytes / std::max<std::uint64_t>(plain.bytes(), 1);
  const auto experts = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(fit, used, n_experts));
  ASSIGN_OR_RETURN(const auto stack, ExpertStack::Create(plain, experts, device));
  RETURN_IF_FAULT(Load(*stack));
  ASSIGN_OR_RETURN(const ExpertStack::Lengths lengths, stack->Check(recipe));
  const std::vector<float> x(lengths.n_in, 0.5f);
  std::vector<float> y(std::size_t{used} * lengths.n_out);
  std::vector<SlotPair> pairs(used);
  std::uint32_t next = 0;
  ASSIGN_OR_RETURN(const double median, MedianPass(
                                            seconds,
                                            [&] {
                                              for (SlotPair& pair : pairs) pair.slot = next++ % experts;
                                              return stack->Run(recipe, x, 1, pairs, y);
                                            },
                                            pause_seconds));
  return median / used;
}

Result<double> CalibrateWorkerBatch(const ExpertShape& shape, std::uint32_t n_experts, std::uint32_t n_used,
                                    std::uint64_t stored_bytes, Device& device, double seconds, std::uint32_t n_rows) {
  ASSIGN_OR_RETURN(const ExpertShape plain, PlainShape(shape));
  const Recipe recipe = RecipeFor(plain);
  double operations = 0;
  for (const auto& projection : plain.projections) {
    if (projection) operations += 2.0 * projection->n_in * projection->n_out * n_rows * n_used;
  }
  const std::int64_t used = std::clamp<std::int64_t>(n_used, 1, n_experts);
  const std::int64_t experts = FewerExperts(n_experts, used, operations);
  const std::int64_t rows = std::max<std::int64_t>(1, std::int64_t{n_rows} * experts / n_experts);
  const double part = static_cast<double>(experts) / n_experts;
  const std::uint64_t bytes = plain.bytes() * static_cast<std::uint64_t>(experts);
  std::vector<std::unique_ptr<ExpertStack>> stacks(BatchTurns(bytes, stored_bytes, operations * part));
  for (auto& stack : stacks) {
    ASSIGN_OR_RETURN(stack, ExpertStack::Create(plain, static_cast<std::uint32_t>(experts), device));
    RETURN_IF_FAULT(Load(*stack));
  }
  ASSIGN_OR_RETURN(const ExpertStack::Lengths lengths, stacks[0]->Check(recipe));
  std::vector<SlotPair> pairs;
  const std::vector<std::int32_t> chosen = ChooseAtRandom(experts, used, rows);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    pairs.push_back({.row = static_cast<std::uint32_t>(i / static_cast<std::size_t>(used)),
                     .slot = static_cast<std::uint32_t>(chosen[i])});
  }
  const std::vector<float> x(static_cast<std::size_t>(rows) * lengths.n_in, 0.5f);
  std::vector<float> y(pairs.size() * lengths.n_out);
  std::size_t turn = 0;
  ASSIGN_OR_RETURN(const double median, MedianPass(seconds, [&] {
                     ExpertStack& stack = *stacks[turn++ % stacks.size()];
                     return stack.Run(recipe, x, static_cast<std::uint32_t>(rows), pairs, y);
                   }));
  return median / static_cast<double>(pairs.size());
}

}  // namespace linkcpp
