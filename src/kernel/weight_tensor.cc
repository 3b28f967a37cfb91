#include "kernel/weight_tensor.h"

#include <algorithm>
#include <cstring>

namespace linkcpp {
namespace {

// Types a model file may hold its weights in. ggml has more (integers, and forms for activations) that it aborts on.
constexpr ggml_type kWeightTypes[] = {
    GGML_TYPE_F32,     GGML_TYPE_F16,   GGML_TYPE_BF16,   GGML_TYPE_Q4_0,    GGML_TYPE_Q4_1,   GGML_TYPE_Q5_0,
    GGML_TYPE_Q5_1,    GGML_TYPE_Q8_0,  GGML_TYPE_Q2_K,   GGML_TYPE_Q3_K,    GGML_TYPE_Q4_K,   GGML_TYPE_Q5_K,
    GGML_TYPE_Q6_K,    GGML_TYPE_IQ1_S, GGML_TYPE_IQ1_M,  GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S,
    GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ3_S, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,  GGML_TYPE_TQ1_0,  GGML_TYPE_TQ2_0,
    GGML_TYPE_MXFP4,   GGML_TYPE_NVFP4, GGML_TYPE_Q1_0,   GGML_TYPE_Q2_0};

constexpr std::uint32_t kMaxLength = 1u << 24;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 46;

SlabWriting WritingFor(ggml_backend_buffer_type_t type, const GgmlDevice& device) {
  if (type == device.default_buffer_type()) return SlabWriting::kOffset;
  return std::strcmp(ggml_backend_buft_name(type), "CPU_REPACK") == 0 ? SlabWriting::kAlias : SlabWriting::kWhole;
}

}  // namespace

Result<void> CheckWeightShape(const ProjectionShape& shape) {
  const auto type = static_cast<ggml_type>(shape.type);
  if (std::ranges::find(kWeightTypes, type) == std::end(kWeightTypes)) {
    return Fail(FaultCode::kRefused, "tensor type {} is not one for weights", shape.type);
  }
  if (shape.n_in == 0 || shape.n_out == 0 || shape.n_in > kMaxLength || shape.n_out > kMaxLength) {
    return Fail(FaultCode::kRefused, "a weight of {} x {} is out of range", shape.n_in, shape.n_out);
  }
  const std::int64_t block = ggml_blck_size(type);
  if (shape.n_in % block != 0) {
    return Fail(FaultCode::kRefused, "{} weights come in blocks of {}; rows of {} do not fit", ggml_type_name(type),
                block, shape.n_in);
  }
  return {};
}

Result<WeightTensor> WeightTensor::Create(const ProjectionShape& shape, std::uint32_t n_slots,
                                          const GgmlDevice& device) {
  RETURN_IF_FAULT(CheckWeightShape(shape));
  const auto type = static_cast<ggml_type>(shape.type);
  ggml_backend_buffer_type_t buffer_type = device.ChooseWeightBuffer(type, shape.n_in, shape.n_out, n_slots);
  if (buffer_type == nullptr) {
    return Fail(FaultCode::kRefused, "device {} can not multiply {} weights of {} x {}", device.info().name,
                ggml_type_name(type), shape.n_in, shape.n_out);
  }
  return CreateIn(buffer_type, WritingFor(buffer_type, device), shape, n_slots);
}

Result<WeightTensor> WeightTensor::CreateIn(ggml_backend_buffer_type_t type, SlabWriting writing,
                                            const ProjectionShape& shape, std::uint32_t n_slots) {
  RETURN_IF_FAULT(CheckWeightShape(shape));
  const std::uint64_t row_bytes = ggml_row_size(static_cast<ggml_type>(shape.type), shape.n_in);
  // Rows and slots are each below 2^32, so this can not wrap before it is too large.
  const std::uint64_t slab_bytes = row_bytes * shape.n_out;
  if (n_slots == 0 || slab_bytes > kMaxBytes / n_slots) {
    return Fail(FaultCode::kRefused, "{} slots of {} bytes are out of range", n_slots, slab_bytes);
  }
  WeightTensor made;
  made.writing_ = writing;
  made.context_ = NewContext(2);
  // Repacked kernels serve tensors of several experts only, so one slot is held as two; the second is never touched.
  const std::int64_t n_experts = writing != SlabWriting::kOffset ? std::max<std::int64_t>(n_slots, 2) : n_slots;
  made.tensor_ =
      ggml_new_tensor_3d(made.context_.get(), static_cast<ggml_type>(shape.type), shape.n_in, shape.n_out, n_experts);
  made.alias_ = ggml_new_tensor_2d(made.context_.get(), made.tensor_->type, shape.n_in, shape.n_out);
  const std::size_t bytes = ggml_backend_buft_get_alloc_size(type, made.tensor_);
  if (bytes <= ggml_backend_buft_get_max_size(type)) made.buffer_.reset(ggml_backend_buft_alloc_buffer(type, bytes));
  if (!made.buffer_ ||
      ggml_backend_tensor_alloc(made.buffer_.get(), made.tensor_, ggml_backend_buffer_get_base(made.buffer_.get())) !=
          GGML_STATUS_SUCCESS) {
    return Fail(FaultCode::kLocal, "no memory for {} expert slots of {} bytes in {}", n_slots, slab_bytes,
                ggml_backend_buft_name(type));
  }
  ggml_backend_buffer_set_usage(made.buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  if (writing == SlabWriting::kWhole) made.whole_.resize(ggml_nbytes(made.tensor_));
  return made;
}

void WeightTensor::Write(std::uint32_t slot, std::span<const std::byte> slab) {
  const std::size_t offset = slot * slab_bytes();
  switch (writing_) {
    case SlabWriting::kOffset: ggml_backend_tensor_set(tensor_, slab.data(), offset, slab.size()); return;
    case SlabWriting::kAlias:
      alias_->data = nullptr;
      alias_->buffer = nullptr;
      alias_->extra = nullptr;
      ggml_backend_tensor_alloc(buffer_.get(), alias_, static_cast<std::byte*>(tensor_->data) + offset);
      ggml_backend_tensor_set(alias_, slab.data(), 0, slab.size());
      return;
    case SlabWriting::kWhole:
      std::ranges::copy(slab, whole_.begin() + static_cast<std::ptrdiff_t>(offset));
      dirty_ = true;
      return;
  }
}

void WeightTensor::Flush() {
  if (!dirty_) return;
  ggml_backend_tensor_set(tensor_, whole_.data(), 0, whole_.size());
  dirty_ = false;
}

}  // namespace linkcpp
