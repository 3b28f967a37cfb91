#include "kernel/device.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernel/expert_stack.h"
#include "kernel/host_layer_testing.h"

namespace linkcpp {
namespace {

std::unique_ptr<Device> Open(const DeviceOptions& options) {
  static NullLog log;
  auto device = Device::Open(options, log);
  EXPECT_TRUE(device) << device.error().text;
  return device ? std::move(*device) : nullptr;
}

TEST(Device, NamesInAnyCase) {
  for (const char* name : {"cpu", "CPU", "Cpu"}) {
    const auto device = Open({.name = name, .backend_path = ""});
    ASSERT_NE(device, nullptr);
    EXPECT_EQ(device->info().name, "CPU");
    EXPECT_FALSE(device->info().is_gpu);
    EXPECT_TRUE(device->batch_invariant());
    EXPECT_GT(device->info().free_bytes, 0u);
    EXPECT_GE(device->info().total_bytes, device->info().free_bytes);
  }
}

TEST(Device, UnknownNameListsThoseThereAre) {
  NullLog log;
  const auto device = Device::Open({.name = "abacus", .backend_path = ""}, log);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, FaultCode::kRefused);
  EXPECT_NE(device.error().text.find("\"abacus\""), std::string::npos);
  EXPECT_NE(device.error().text.find("CPU ("), std::string::npos) << device.error().text;
}

TEST(Device, ListHasTheCpu) {
  const std::vector<DeviceInfo> list = Device::List();
  EXPECT_TRUE(std::ranges::any_of(list, [](const DeviceInfo& info) { return info.name == "CPU"; }));
}

TEST(Device, ThreadsAsAsked) {
  EXPECT_EQ(Open({.name = "cpu", .n_threads = 3, .backend_path = ""})->n_threads(), 3);
  EXPECT_GE(Open({.name = "cpu", .backend_path = ""})->n_threads(), 1);
  NullLog log;
  EXPECT_FALSE(Device::Open({.name = "cpu", .n_threads = -1, .backend_path = ""}, log));
  EXPECT_FALSE(Device::Open({.name = "cpu", .n_threads = 100000, .backend_path = ""}, log));
}

TEST(Device, BadBackendPathIsLocal) {
  NullLog log;
  const auto device = Device::Open({.backend_path = "/no/such/libggml-cpu-none.so"}, log);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, FaultCode::kLocal);
}

// The folder of the libraries ggml found by itself, from one of their symbols.
std::string BackendFolder() {
  Open({.name = "cpu", .backend_path = ""});
  ggml_backend_reg_t registration =
      ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
  Dl_info where{};
  dladdr(ggml_backend_reg_get_proc_address(registration, "ggml_backend_set_n_threads"), &where);
  const std::string path = where.dli_fname == nullptr ? "" : where.dli_fname;
  return path.substr(0, path.find_last_of('/'));
}

TEST(KernelClass, DiffersBetweenCpuVariantsAndSoMayTheBits) {
  const auto best = Open({.name = "cpu", .n_threads = 1, .backend_path = ""});
  ASSERT_TRUE(best->kernel_class().starts_with("ggml-0.")) << best->kernel_class();
  EXPECT_EQ(best->kernel_class(), Open({.name = "cpu", .n_threads = 2, .backend_path = ""})->kernel_class());
  NullLog log;
  const std::string path = BackendFolder() + "/libggml-cpu-x64.so";
  const auto opened = Device::Open({.n_threads = 1, .backend_path = path}, log);
  if (!opened) GTEST_SKIP() << opened.error().text;
  EXPECT_NE((*opened)->kernel_class(), best->kernel_class());
  EXPECT_NE((*opened)->kernel_class().find("/x64/"), std::string::npos) << (*opened)->kernel_class();

  // The variant computes, close to the other, and a second opening of the same path is the same device.
  const testing::ToyLayer toy(testing::GatedShape(GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 256, 256), 2, 1);
  Rng rng(1);
  const std::vector<float> x = testing::RandomFloats(256, rng);
  std::vector<std::vector<float>> results;
  const auto again = Device::Open({.n_threads = 1, .backend_path = path}, log);
  ASSERT_TRUE(again);
  for (Device* device : {best.get(), opened->get(), again->get()}) {
    auto stack = ExpertStack::Create(toy.shape, 2, *device);
    ASSERT_TRUE(stack) << stack.error().text;
    ASSERT_TRUE((*stack)->Load(1, toy.Slabs(1)));
    const std::vector<SlotPair> pairs{{0, 1}};
    results.emplace_back(256);
    ASSERT_TRUE((*stack)->Run(Recipe::Swiglu(), x, 1, pairs, results.back()));
  }
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < 256; ++i) {
    error += std::pow(double(results[0][i]) - double(results[1][i]), 2);
    power += std::pow(double(results[0][i]), 2);
  }
  // Both round the row to 8 bits a block, in their own order: 1e-4 is far above that and far below a wrong result.
  EXPECT_LT(error / power, 1e-4);
  EXPECT_GT(power, 0);
  EXPECT_EQ(results[1], results[2]);
}

}  // namespace
}  // namespace linkcpp
