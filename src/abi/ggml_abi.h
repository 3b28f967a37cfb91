// The tables behind ggml's public handles, as ggml 0.27 (backend API version 3) lays them out.
//
// The distribution ships public headers only, so the plug-in declares what it must fill in. SelfCheck (self_check.h)
// compares what ggml's public accessors read through these tables with what was put in, and the plug-in refuses to
// load on a host that lays them out differently. Source: measured order in docs/plugin.md, "The tables".
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>

namespace linkcpp::abi {

inline constexpr int kApiVersion = 3;

struct BufferTypeTable {
  const char* (*get_name)(ggml_backend_buffer_type_t);
  ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t size);
  ggml_backend_buffer_t (*alloc_buffer_n)(ggml_backend_buffer_type_t, ggml_tensor**, int);  // optional
  size_t (*get_alignment)(ggml_backend_buffer_type_t);
  size_t (*get_max_size)(ggml_backend_buffer_type_t);                          // optional
  size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor*);    // optional
  size_t (*get_alloc_size_n)(ggml_backend_buffer_type_t, ggml_tensor**, int);  // optional
  bool (*is_host)(ggml_backend_buffer_type_t);                                 // optional
};

struct BufferType {
  BufferTypeTable table;
  ggml_backend_dev_t device;
  void* context;
};

struct BufferTable {
  void (*free_buffer)(ggml_backend_buffer_t);
  void* (*get_base)(ggml_backend_buffer_t);
  ggml_status (*init_tensor)(ggml_backend_buffer_t, ggml_tensor*);  // optional
  void (*memset_tensor)(ggml_backend_buffer_t, ggml_tensor*, uint8_t value, size_t offset, size_t size);
  void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor*, const void* data, size_t offset, size_t size);
  void (*get_tensor)(ggml_backend_buffer_t, const ggml_tensor*, void* data, size_t offset, size_t size);
  void (*set_tensor_2d)(ggml_backend_buffer_t, ggml_tensor*, const void*, size_t, size_t, size_t, size_t, size_t);
  void (*get_tensor_2d)(ggml_backend_buffer_t, const ggml_tensor*, void*, size_t, size_t, size_t, size_t, size_t);
  bool (*cpy_tensor)(ggml_backend_buffer_t, const ggml_tensor* src, ggml_tensor* dst);  // optional
  void (*clear)(ggml_backend_buffer_t, uint8_t value);
  void (*reset)(ggml_backend_buffer_t);  // optional
};

struct Buffer {
  BufferTable table;
  ggml_backend_buffer_type_t type;
  void* context;
  size_t size;
  ggml_backend_buffer_usage usage;
};
static_assert(offsetof(Buffer, type) == 0x58);

struct BackendTable {
  const char* (*get_name)(ggml_backend_t);
  void (*free)(ggml_backend_t);
  void (*set_tensor_async)(ggml_backend_t, ggml_tensor*, const void*, size_t, size_t);  // all from here optional,
  void (*get_tensor_async)(ggml_backend_t, const ggml_tensor*, void*, size_t, size_t);  // but for graph_compute
  void (*set_tensor_2d_async)(ggml_backend_t, ggml_tensor*, const void*, size_t, size_t, size_t, size_t, size_t);
  void (*get_tensor_2d_async)(ggml_backend_t, const ggml_tensor*, void*, size_t, size_t, size_t, size_t, size_t);
  bool (*cpy_tensor_async)(ggml_backend_t, ggml_backend_t, const ggml_tensor*, ggml_tensor*);
  void (*synchronize)(ggml_backend_t);
  ggml_backend_graph_plan_t (*graph_plan_create)(ggml_backend_t, const ggml_cgraph*);
  void (*graph_plan_free)(ggml_backend_t, ggml_backend_graph_plan_t);
  void (*graph_plan_update)(ggml_backend_t, ggml_backend_graph_plan_t, const ggml_cgraph*);
  ggml_status (*graph_plan_compute)(ggml_backend_t, ggml_backend_graph_plan_t);
  ggml_status (*graph_compute)(ggml_backend_t, ggml_cgraph*);
  void (*event_record)(ggml_backend_t, ggml_backend_event_t);
  void (*event_wait)(ggml_backend_t, ggml_backend_event_t);
  void (*graph_optimize)(ggml_backend_t, ggml_cgraph*);
};

struct Backend {
  ggml_guid_t guid;
  BackendTable table;
  ggml_backend_dev_t device;
  void* context;
};

struct DeviceTable {
  const char* (*get_name)(ggml_backend_dev_t);
  const char* (*get_description)(ggml_backend_dev_t);
  void (*get_memory)(ggml_backend_dev_t, size_t* free, size_t* total);
  enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t);
  void (*get_props)(ggml_backend_dev_t, ggml_backend_dev_props*);
  ggml_backend_t (*init_backend)(ggml_backend_dev_t, const char* params);
  ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t);
  ggml_backend_buffer_type_t (*get_host_buffer_type)(ggml_backend_dev_t);                    // optional
  ggml_backend_buffer_t (*buffer_from_host_ptr)(ggml_backend_dev_t, void*, size_t, size_t);  // optional
  bool (*supports_op)(ggml_backend_dev_t, const ggml_tensor*);
  bool (*supports_buft)(ggml_backend_dev_t, ggml_backend_buffer_type_t);
  bool (*offload_op)(ggml_backend_dev_t, const ggml_tensor*);           // optional
  ggml_backend_event_t (*event_new)(ggml_backend_dev_t);                // optional
  void (*event_free)(ggml_backend_dev_t, ggml_backend_event_t);         // optional
  void (*event_synchronize)(ggml_backend_dev_t, ggml_backend_event_t);  // optional
};

struct Device {
  DeviceTable table;
  ggml_backend_reg_t reg;
  void* context;
};

struct RegTable {
  const char* (*get_name)(ggml_backend_reg_t);
  size_t (*get_device_count)(ggml_backend_reg_t);
  ggml_backend_dev_t (*get_device)(ggml_backend_reg_t, size_t index);
  void* (*get_proc_address)(ggml_backend_reg_t, const char* name);  // optional
};

struct Reg {
  int api_version;
  RegTable table;
  void* context;
};

// ggml's handles are these structs.
inline Buffer& Of(ggml_backend_buffer_t buffer) {
  return *reinterpret_cast<Buffer*>(buffer);
}
inline Backend& Of(ggml_backend_t backend) {
  return *reinterpret_cast<Backend*>(backend);
}
inline Device& Of(ggml_backend_dev_t device) {
  return *reinterpret_cast<Device*>(device);
}
inline ggml_backend_buffer_type_t Handle(BufferType* type) {
  return reinterpret_cast<ggml_backend_buffer_type_t>(type);
}
inline ggml_backend_t Handle(Backend* backend) {
  return reinterpret_cast<ggml_backend_t>(backend);
}
inline ggml_backend_dev_t Handle(Device* device) {
  return reinterpret_cast<ggml_backend_dev_t>(device);
}
inline ggml_backend_reg_t Handle(Reg* reg) {
  return reinterpret_cast<ggml_backend_reg_t>(reg);
}

}  // namespace linkcpp::abi

// Exported by libggml-base, declared in a header the distribution does not ship. Takes the table by value.
extern "C" ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t type,
                                                          linkcpp::abi::BufferTable table, void* context, size_t size);
