// The ggml side of a Device, for this folder only: the backend, its buffer types, and the compute memory that all
// stacks on the device share.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernel/device.h"

namespace linkcpp {

struct FreeGgml {
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
  void operator()(ggml_gallocr* allocator) const { ggml_gallocr_free(allocator); }
};
using GgmlContext = std::unique_ptr<ggml_context, FreeGgml>;
using GgmlBuffer = std::unique_ptr<ggml_backend_buffer, FreeGgml>;

// Room for `n_tensors` tensor headers and, if n_nodes > 0, one graph; no tensor data.
GgmlContext NewContext(std::size_t n_tensors, std::size_t n_nodes = 0);

class GgmlDevice final : public Device {
 public:
  GgmlDevice(ggml_backend_dev_t device, ggml_backend_t backend, int n_threads, LogSink& log);
  ~GgmlDevice() override;
  GgmlDevice(const GgmlDevice&) = delete;
  GgmlDevice& operator=(const GgmlDevice&) = delete;

  const DeviceInfo& info() const override { return info_; }
  int n_threads() const override { return n_threads_; }
  const std::string& kernel_class() const override { return kernel_class_; }
  bool batch_invariant() const override { return !info_.is_gpu; }

  ggml_backend_dev_t device() const { return device_; }
  ggml_backend_buffer_type_t default_buffer_type() const { return ggml_backend_dev_buffer_type(device_); }

  // The buffer type in which llama.cpp would keep an expert weight on this device: the first of the device's extra
  // types (CPU_REPACK, …) that takes a MUL_MAT_ID with it, else the default one. Asked for a tensor of many experts, as
  // the host asks, so the answer depends on the type and the two lengths alone; for n_slots only when that is too large
  // for every buffer type. nullptr: the device can not run it at all.
  ggml_backend_buffer_type_t ChooseWeightBuffer(ggml_type type, std::int64_t n_in, std::int64_t n_out,
                                                std::int64_t n_slots) const;

  // The same for a matrix that every token is multiplied with: there the extra type may be another (AMX).
  ggml_backend_buffer_type_t ChooseMatrixBuffer(ggml_type type, std::int64_t n_in, std::int64_t n_out) const;

  // Gives the graph's tensors memory. All graphs of the device share one buffer, so only one may be in use at a time:
  // set inputs, Compute, read outputs. Addresses stay good until compute_generation() changes. kLocal: out of memory.
  Result<void> Allocate(ggml_cgraph* graph);
  std::uint64_t compute_generation() const { return generation_; }

  // kLocal: the device failed or memory ran out.
  Result<void> Compute(ggml_cgraph* graph);

 private:
  ggml_backend_buffer_type_t FirstThatTakes(ggml_tensor* weight, const ggml_tensor* product) const;
  ggml_backend_buffer_type_t ChooseWeightBufferFor(ggml_type type, std::int64_t n_in, std::int64_t n_out,
                                                   std::int64_t n_experts) const;

  ggml_backend_dev_t device_;
  ggml_backend_t backend_;
  int n_threads_;
  LogSink& log_;
  DeviceInfo info_;
  std::string kernel_class_;
  std::vector<ggml_backend_buffer_type_t> extra_buffer_types_;
  std::unique_ptr<ggml_gallocr, FreeGgml> allocator_;
  std::uint64_t generation_ = 1;
};

}  // namespace linkcpp
