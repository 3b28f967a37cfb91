// The same stack on another backend. Where Mesa's software Vulkan is installed it stands in for a GPU.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernel/device.h"
#include "kernel/expert_stack.h"
#include "kernel/host_layer_testing.h"

namespace linkcpp {
namespace {

// ggml's Vulkan backend hides software devices unless one is named. Before any test loads the backends.
[[maybe_unused]] const int kShowSoftwareVulkan = setenv("GGML_VK_VISIBLE_DEVICES", "0", 0);

std::unique_ptr<Device> OpenGpu() {
  static NullLog log;
  for (const DeviceInfo& info : Device::List()) {
    if (info.is_gpu) return Device::Open({.name = info.name, .backend_path = ""}, log).value();
  }
  return nullptr;
}

std::unique_ptr<ExpertStack> Filled(Device& device, const testing::ToyLayer& toy) {
  auto stack = ExpertStack::Create(toy.shape, toy.n_experts, device).value();
  for (std::uint32_t expert = 0; expert < toy.n_experts; ++expert) EXPECT_TRUE(stack->Load(expert, toy.Slabs(expert)));
  return stack;
}

std::vector<float> RunOn(ExpertStack& stack, const Recipe& recipe, const std::vector<float>& x, std::uint32_t n_rows,
                         std::span<const SlotPair> pairs) {
  std::vector<float> y(pairs.size() * stack.Check(recipe).value().n_out);
  const auto ran = stack.Run(recipe, x, n_rows, pairs, y);
  EXPECT_TRUE(ran) << ran.error().text;
  return y;
}

TEST(Gpu, AgreesWithTheCpuWithinRounding) {
  const std::unique_ptr<Device> gpu = OpenGpu();
  if (!gpu) GTEST_SKIP() << "no GPU backend, not even a software one";
  EXPECT_FALSE(gpu->batch_invariant());
  NullLog log;
  const auto cpu = Device::Open({.name = "cpu", .n_threads = 1, .backend_path = ""}, log).value();
  EXPECT_NE(gpu->kernel_class(), cpu->kernel_class());
  const Recipe biased{{{.op = StepOp::kProject, .projection = Projection::kUp, .a = 0},
                       {.op = StepOp::kBias, .projection = Projection::kUp, .a = 1},
                       {.op = StepOp::kScale, .projection = Projection::kUp, .a = 2},
                       {.op = StepOp::kProject, .projection = Projection::kGate, .a = 0},
                       {.op = StepOp::kGlu,
                        .fn = static_cast<std::uint8_t>(GluFn::kSwigluOai),
                        .a = 4,
                        .b = 3,
                        .p0 = 1.702f,
                        .p1 = 7.0f},
                       {.op = StepOp::kProject, .projection = Projection::kDown, .a = 5}}};
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q4_K}) {  // each compiles shaders for seconds
    const testing::ToyLayer toy(testing::GatedShape(type, type, 256, 256, true, true), 5, 31);
    const auto on_cpu = Filled(*cpu, toy);
    const auto on_gpu = Filled(*gpu, toy);
    Rng rng(32);
    const std::vector<float> x = testing::RandomFloats(256 * 12, rng);
    std::vector<SlotPair> pairs;
    for (std::uint32_t i = 0; i < 24; ++i) pairs.push_back({i / 2, static_cast<std::uint32_t>((i * 7) % 5)});
    for (const Recipe& recipe : {Recipe::Swiglu(), biased}) {
      for (const std::size_t n_pairs : {std::size_t{3}, pairs.size()}) {
        const std::span<const SlotPair> some = std::span(pairs).first(n_pairs);
        const std::vector<float> expected = RunOn(*on_cpu, recipe, x, 12, some);
        const std::vector<float> actual = RunOn(*on_gpu, recipe, x, 12, some);
        double error = 0;
        double power = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          error += std::pow(double(expected[i]) - double(actual[i]), 2);
          power += std::pow(double(expected[i]), 2);
        }
        // The CPU rounds rows to 8 bits with a scale per block, the GPU may keep f16 or f32. Rounding to 1/127 of a
        // maximum of about three deviations is an error of 9 / (127^2 * 12) = 5e-5 of the power, twice in a row.
        EXPECT_LT(error / power, 1e-3) << ggml_type_name(type) << ", " << n_pairs << " pairs, " << recipe.Describe();
      }
    }
  }
}

}  // namespace
}  // namespace linkcpp
