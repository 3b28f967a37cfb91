#include "plugin/self_check.h"

#include <ggml.h>

#include <array>
#include <cstring>

namespace linkcpp {

Result<void> SelfCheck(ggml_backend_reg_t reg, ggml_backend_buffer_type_t type, std::string_view name,
                       std::size_t alignment) {
  const auto differs = [](std::string_view what) {
    return Fail(
        FaultCode::kRefused,
        "this host's ggml {} reads {} differently than ggml 0.27 (backend API 3), for which this plug-in was built: "
        "rebuild linkcpp for it (docs/plugin.md, \"Another ggml\")",
        ggml_version(), what);
  };
  // A crash is worse than a refusal: the version is looked at before anything is called through the tables.
  if (std::string_view(ggml_version()).substr(0, 5) != "0.27.") return differs("the backend tables, perhaps,");

  if (ggml_backend_reg_name(reg) != name) return differs("the registry's name");
  if (ggml_backend_reg_dev_count(reg) != 1) return differs("the registry's device count");
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(reg, 0);
  if (ggml_backend_dev_name(device) != name) return differs("the device's name");
  if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_ACCEL) return differs("the device's type");
  if (ggml_backend_dev_backend_reg(device) != reg) return differs("the device's registry");
  if (ggml_backend_dev_buffer_type(device) != type) return differs("the device's buffer type");
  ggml_backend_dev_props props{};
  ggml_backend_dev_get_props(device, &props);
  if (props.name != name || !props.caps.buffer_from_host_ptr || props.caps.async || !props.caps.mmap_support) {
    return differs("the device's properties");
  }
  if (ggml_backend_buft_name(type) != name) return differs("the buffer type's name");
  if (ggml_backend_buft_get_alignment(type) != alignment) return differs("the buffer type's alignment");
  if (!ggml_backend_buft_is_host(type)) return differs("the buffer type's is_host");
  if (ggml_backend_buft_get_device(type) != device) return differs("the buffer type's device");
  if (!ggml_backend_dev_supports_buft(device, type)) return differs("supports_buft");

  // A buffer's life: allocate, write a tensor, read it back, free.
  ggml_context* context = ggml_init({ggml_tensor_overhead() * 2, nullptr, true});
  if (context == nullptr) return Fail(FaultCode::kLocal, "out of memory");
  ggml_tensor* tensor = ggml_new_tensor_1d(context, GGML_TYPE_F32, 16);
  ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, 4096);
  bool good =
      buffer != nullptr && ggml_backend_buffer_get_size(buffer) == 4096 && ggml_backend_buffer_get_type(buffer) == type;
  if (good) {
    ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer));
    std::array<float, 16> in{};
    std::array<float, 16> out{};
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i) + 0.5f;
    ggml_backend_tensor_set(tensor, in.data(), 0, sizeof in);
    ggml_backend_tensor_get(tensor, out.data(), 0, sizeof out);
    good = in == out;
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    good = good && ggml_backend_buffer_get_usage(buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
  }
  if (buffer != nullptr) ggml_backend_buffer_free(buffer);
  ggml_free(context);
  if (!good) return differs("a buffer");

  ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
  const bool named =
      backend != nullptr && ggml_backend_name(backend) == name && ggml_backend_get_device(backend) == device;
  if (backend != nullptr) ggml_backend_free(backend);
  if (!named) return differs("a backend instance");
  return {};
}

}  // namespace linkcpp
