#include "kernel/weight_tensor.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernel/host_layer_testing.h"

namespace linkcpp {
namespace {

using testing::HostLayer;
using testing::Matrix;
using testing::RandomWeights;
using testing::ToyLayer;

const GgmlDevice& Cpu() {
  static NullLog log;
  static const std::unique_ptr<Device> device =
      Device::Open({.name = "cpu", .n_threads = 1, .backend_path = ""}, log).value();
  return dynamic_cast<const GgmlDevice&>(*device);
}

constexpr ggml_type kTypes[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q4_0,   GGML_TYPE_Q8_0,
                                GGML_TYPE_Q2_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4};

// Slabs of sizes that are no multiple of the buffer's alignment among them.
TEST(WeightTensor, SlabsInAnyOrderMakeTheWholeTensor) {
  for (const ggml_type type : kTypes) {
    for (const std::uint32_t n_out : {8u, 24u, 5u, 1u}) {
      const auto n_in = static_cast<std::uint32_t>(ggml_blck_size(type) * (ggml_blck_size(type) == 1 ? 3 : 1));
      SCOPED_TRACE(std::format("{} {} x {}", ggml_type_name(type), n_in, n_out));
      auto weight = WeightTensor::Create(Matrix(type, n_in, n_out), 5, Cpu());
      ASSERT_TRUE(weight) << weight.error().text;
      Rng rng(n_out);
      const std::vector<std::byte> bytes = RandomWeights(type, n_in, n_out * 5, rng);
      ASSERT_EQ(weight->slab_bytes() * 5, bytes.size());
      for (const std::uint32_t slot : {3u, 0u, 4u, 1u, 2u}) {
        weight->Write(slot, std::span(bytes).subspan(slot * weight->slab_bytes(), weight->slab_bytes()));
      }
      ggml_backend_buffer_type_t buffer_type = ggml_backend_buffer_get_type(weight->tensor()->buffer);
      auto whole = WeightTensor::CreateIn(buffer_type, SlabWriting::kWhole, Matrix(type, n_in, n_out), 5);
      ASSERT_TRUE(whole) << whole.error().text;
      for (std::uint32_t slot = 0; slot < 5; ++slot) {
        whole->Write(slot, std::span(bytes).subspan(slot * weight->slab_bytes(), weight->slab_bytes()));
      }
      whole->Flush();
      // Repacked buffers can not be read back through ggml, but on a CPU their bytes are there to see.
      EXPECT_EQ(std::memcmp(weight->tensor()->data, whole->tensor()->data, bytes.size()), 0);
      if (weight->writing() == SlabWriting::kOffset) {
        EXPECT_EQ(std::memcmp(weight->tensor()->data, bytes.data(), bytes.size()), 0);
      }
    }
  }
}

TEST(WeightTensor, BufferTypeIsTheHosts) {
  ggml_backend_dev_t device = Cpu().device();
  for (const ggml_type type : kTypes) {
    for (const std::uint32_t n_out : {256u, 252u}) {
      ExpertShape shape;
      shape.projections[2] = Matrix(type, 256, n_out);
      const HostLayer host(ToyLayer(shape, 3, 25), device, 1);
      for (const std::uint32_t n_slots : {1u, 2u, 7u}) {
        const auto weight = WeightTensor::Create(*shape.projections[2], n_slots, Cpu());
        ASSERT_TRUE(weight);
        EXPECT_EQ(ggml_backend_buft_name(ggml_backend_buffer_get_type(weight->tensor()->buffer)),
                  host.buffer_type(Projection::kDown))
            << ggml_type_name(type) << ", rows " << n_out << ", slots " << n_slots;
      }
    }
  }
}

TEST(WeightTensor, RepackedTypesAreWrittenThroughAnAlias) {  // else the test above compares nothing of interest
  const auto weight = WeightTensor::Create(Matrix(GGML_TYPE_Q4_K, 256, 16), 2, Cpu());
  ASSERT_TRUE(weight);
  if (std::string(ggml_backend_buft_name(ggml_backend_buffer_get_type(weight->tensor()->buffer))) != "CPU_REPACK") {
    GTEST_SKIP() << "this CPU repacks no Q4_K";
  }
  EXPECT_EQ(weight->writing(), SlabWriting::kAlias);
}

}  // namespace
}  // namespace linkcpp
