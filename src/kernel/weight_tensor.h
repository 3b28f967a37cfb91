// One projection's weights for all slots of a stack, in the buffer type the host would use, filled slot by slot.
//
// A plain buffer takes a slab at its offset. ggml's repacked buffers take whole tensors only, so a slab is written
// through an alias: a two-dimensional tensor at the slab's address in the same buffer. Repacking works on groups of
// rows within one expert, so the bytes are those of the whole tensor set at once (weight_tensor_test). A buffer type we
// do not know gets the slow but certain way: a copy on the host, set as a whole before the next dispatch.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernel/expert_stack.h"
#include "kernel/ggml_device.h"

namespace linkcpp {

enum class SlabWriting { kOffset, kAlias, kWhole };

class WeightTensor {
 public:
  // Shape [n_in, n_out, n_slots]. kRefused: not a weight type, lengths that do not fit it, or the device can not run
  // it. kLocal: no memory.
  static Result<WeightTensor> Create(const ProjectionShape& shape, std::uint32_t n_slots, const GgmlDevice& device);
  // The same with the buffer type and the way of writing given.
  static Result<WeightTensor> CreateIn(ggml_backend_buffer_type_t type, SlabWriting writing,
                                       const ProjectionShape& shape, std::uint32_t n_slots);

  void Write(std::uint32_t slot, std::span<const std::byte> slab);  // slab_bytes() bytes, slot < n_slots
  void Flush();                                                     // before a dispatch

  ggml_tensor* tensor() const { return tensor_; }
  std::size_t slab_bytes() const { return tensor_->nb[2]; }
  std::size_t buffer_bytes() const { return ggml_backend_buffer_get_size(buffer_.get()); }
  SlabWriting writing() const { return writing_; }

 private:
  GgmlContext context_;
  GgmlBuffer buffer_;
  ggml_tensor* tensor_ = nullptr;
  ggml_tensor* alias_ = nullptr;
  SlabWriting writing_ = SlabWriting::kOffset;
  std::vector<std::byte> whole_;  // kWhole only
  bool dirty_ = false;
};

// Whether ggml can multiply with weights of this type and these lengths at all: kRefused otherwise. Never aborts.
Result<void> CheckWeightShape(const ProjectionShape& shape);

}  // namespace linkcpp
