// For tests: building recipes, filling stacks, comparing bits.
#pragma once

#include <ggml-backend.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernel/expert_stack.h"
#include "kernel/host_layer_testing.h"

namespace linkcpp::testing {

inline constexpr Projection kGate = Projection::kGate;
inline constexpr Projection kUp = Projection::kUp;
inline constexpr Projection kDown = Projection::kDown;
inline constexpr Projection kGateUp = Projection::kGateUp;

inline Step Project(Projection projection, std::uint8_t a) {
  return {.op = StepOp::kProject, .projection = projection, .a = a};
}
inline Step Bias(Projection projection, std::uint8_t a) {
  return {.op = StepOp::kBias, .projection = projection, .a = a};
}
inline Step Scale(Projection projection, std::uint8_t a) {
  return {.op = StepOp::kScale, .projection = projection, .a = a};
}
inline Step Glu(GluFn fn, std::uint8_t a, std::uint8_t b, float p0 = 0, float p1 = 0) {
  return {.op = StepOp::kGlu, .fn = static_cast<std::uint8_t>(fn), .a = a, .b = b, .p0 = p0, .p1 = p1};
}
inline Step Unary(UnaryFn fn, std::uint8_t a) {
  return {.op = StepOp::kUnary, .fn = static_cast<std::uint8_t>(fn), .a = a};
}
inline Step Half(std::uint8_t a, std::uint8_t which) {
  return {.op = StepOp::kHalf, .fn = which, .a = a};
}
inline Step Clamp(std::uint8_t a, float least, float most) {
  return {.op = StepOp::kClamp, .a = a, .p0 = least, .p1 = most};
}

// One thread by default: on a busy machine a second one costs more than it brings, and Purity has the threads' test.
inline Device& Cpu(int n_threads = 1) {
  static NullLog log;
  static std::map<int, std::unique_ptr<Device>> devices;
  std::unique_ptr<Device>& device = devices[n_threads];
  if (!device) {
    auto opened = Device::Open({.name = "cpu", .n_threads = n_threads, .backend_path = ""}, log);
    if (opened) device = std::move(*opened);
  }
  return *device;
}

inline ggml_backend_dev_t CpuOfGgml() {
  Cpu();  // loads the backends
  return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

inline std::unique_ptr<ExpertStack> Filled(const ToyLayer& toy, Device& device) {
  auto stack = ExpertStack::Create(toy.shape, toy.n_experts, device);
  EXPECT_TRUE(stack) << stack.error().text;
  if (!stack) return nullptr;
  for (std::uint32_t expert = 0; expert < toy.n_experts; ++expert) {
    const auto loaded = (*stack)->Load(expert, toy.Slabs(expert));
    EXPECT_TRUE(loaded) << loaded.error().text;
  }
  return std::move(*stack);
}

// tokens × used expert numbers, distinct within a token.
inline std::vector<std::int32_t> RandomIds(std::uint32_t n_experts, std::size_t used, std::size_t tokens, Rng& rng) {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> deck(n_experts);
  std::iota(deck.begin(), deck.end(), 0);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t i = 0; i < used; ++i) std::swap(deck[i], deck[i + rng.Below(n_experts - i)]);
    ids.insert(ids.end(), deck.begin(), deck.begin() + static_cast<std::ptrdiff_t>(used));
  }
  return ids;
}

inline std::vector<SlotPair> PairsOf(const std::vector<std::int32_t>& ids, std::size_t used) {
  std::vector<SlotPair> pairs;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    pairs.push_back({.row = static_cast<std::uint32_t>(i / used), .slot = static_cast<std::uint32_t>(ids[i])});
  }
  return pairs;
}

inline ::testing::AssertionResult SameBits(std::span<const float> expected, std::span<const float> actual) {
  if (expected.size() != actual.size()) {
    return ::testing::AssertionFailure() << actual.size() << " numbers, not " << expected.size();
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(expected[i]) == std::bit_cast<std::uint32_t>(actual[i])) continue;
    return ::testing::AssertionFailure() << "number " << i << ": expected " << expected[i] << ", got " << actual[i];
  }
  return ::testing::AssertionSuccess();
}

inline std::vector<float> RunPairs(ExpertStack& stack, const Recipe& recipe, const std::vector<float>& x,
                                   std::uint32_t n_rows, const std::vector<SlotPair>& pairs) {
  const auto lengths = stack.Check(recipe);
  EXPECT_TRUE(lengths) << lengths.error().text;
  if (!lengths) return {};
  std::vector<float> y(pairs.size() * lengths->n_out, std::numeric_limits<float>::quiet_NaN());
  const auto ran = stack.Run(recipe, x, n_rows, pairs, y);
  EXPECT_TRUE(ran) << ran.error().text;
  return y;
}

// The usual layer, as llama.cpp writes it.
inline ggml_tensor* HostSwiglu(const HostLayer::Graph& g) {
  ggml_tensor* up = g.Project(kUp, g.x);
  ggml_tensor* gate = g.Project(kGate, g.x);
  return g.Project(kDown, ggml_swiglu_split(g.context, gate, up));
}

}  // namespace linkcpp::testing
