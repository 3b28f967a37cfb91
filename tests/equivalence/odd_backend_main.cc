// A ggml backend that is odd on purpose, for `linkcpp matrix` and `verify expert` on input that is wrong.
//
// ODD_API_VERSION: what it says its interface is; another number than ggml's own is a backend of another ggml.
// Its device refuses the operation that ODD_REFUSES names (MUL_MAT_ID or GLU), and otherwise says yes to everything
// while its results are never written: a device that claims what it can not do.
#include <ggml-backend.h>
#include <ggml.h>

#include <cstdlib>
#include <string_view>

#include "abi/ggml_abi.h"

namespace {

namespace abi = linkcpp::abi;

extern abi::Reg registration;
extern abi::Device device;

ggml_guid guid = {0x6f, 0x64, 0x64};

abi::Backend backend{
    .guid = &guid,
    .table = {.get_name = [](ggml_backend_t) { return "Odd"; },
              .free = [](ggml_backend_t) {},
              .graph_compute = [](ggml_backend_t, ggml_cgraph*) { return GGML_STATUS_SUCCESS; }},
    .device = reinterpret_cast<ggml_backend_dev_t>(&device),
    .context = nullptr,
};

bool SupportsOp(ggml_backend_dev_t, const ggml_tensor* op) {
  const char* refused = std::getenv("ODD_REFUSES");
  return refused == nullptr || std::string_view(ggml_op_name(op->op)) != refused;
}

abi::Device device{
    .table = {.get_name = [](ggml_backend_dev_t) { return "Odd0"; },
              .get_description = [](ggml_backend_dev_t) { return "a device for tests"; },
              .get_memory = [](ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = 0; },
              .get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_CPU; },
              .get_props = [](ggml_backend_dev_t, ggml_backend_dev_props* props) { *props = {}; },
              .init_backend = [](ggml_backend_dev_t, const char*) { return abi::Handle(&backend); },
              .get_buffer_type = [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); },
              .supports_op = SupportsOp,
              .supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t) { return true; }},
    .reg = reinterpret_cast<ggml_backend_reg_t>(&registration),
    .context = nullptr,
};

abi::Reg registration{
    .api_version = ODD_API_VERSION,
    .table = {.get_name = [](ggml_backend_reg_t) { return "Odd"; },
              .get_device_count = [](ggml_backend_reg_t) { return size_t{1}; },
              .get_device = [](ggml_backend_reg_t, size_t) { return reinterpret_cast<ggml_backend_dev_t>(&device); },
              .get_proc_address = [](ggml_backend_reg_t, const char*) -> void* { return nullptr; }},
    .context = nullptr,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  return abi::Handle(&registration);
}
