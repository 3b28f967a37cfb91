#include "layout/planned_devices.h"

#include <ggml.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string_view>

#include "abi/ggml_abi.h"

namespace linkcpp {
namespace {

constexpr std::size_t kAlignment = 128;       // CUDA's; Vulkan's are smaller
constexpr std::int64_t kLeastRowsTaken = 32;  // of a batch whose weights lie in the host's memory

struct Planned {
  PlannedDevice wish;
  abi::BufferType buffer_type{};
  abi::BufferType host_type{};  // plain memory that the device can copy from fast
  std::string host_name;
  abi::Device device{};
};
struct Planning {
  std::deque<Planned> devices;  // addresses stay
  abi::Reg reg{};
};
Planning& World() {
  static auto* const world = new Planning;  // ggml keeps pointers into it to the end of the process
  return *world;
}

Planned& PlannedOf(ggml_backend_dev_t device) {
  return *static_cast<Planned*>(abi::Of(device).context);
}
Planned& PlannedOf(ggml_backend_buffer_type_t type) {
  return *static_cast<Planned*>(reinterpret_cast<abi::BufferType*>(type)->context);
}

// ---- buffers: addresses without memory

void* NoBase(ggml_backend_buffer_t) {
  return reinterpret_cast<void*>(std::uintptr_t{1} << 40);  // never read or written
}
constexpr abi::BufferTable kBufferTable{
    .free_buffer = [](ggml_backend_buffer_t) {},
    .get_base = NoBase,
    .init_tensor = nullptr,
    .memset_tensor = [](ggml_backend_buffer_t, ggml_tensor*, uint8_t, size_t, size_t) {},
    .set_tensor = [](ggml_backend_buffer_t, ggml_tensor*, const void*, size_t, size_t) {},
    .get_tensor = [](ggml_backend_buffer_t, const ggml_tensor*, void*, size_t, size_t) {},
    .set_tensor_2d = nullptr,
    .get_tensor_2d = nullptr,
    .cpy_tensor = nullptr,
    .clear = [](ggml_backend_buffer_t, uint8_t) {},
    .reset = nullptr};

const char* TypeName(ggml_backend_buffer_type_t type) {
  return PlannedOf(type).wish.name.c_str();
}
ggml_backend_buffer_t TypeAlloc(ggml_backend_buffer_type_t type, size_t size) {
  return ggml_backend_buffer_init(type, kBufferTable, nullptr, size);
}

// ---- the host's memory for copies: real, though pages come only when they are touched

struct Mapped {
  void* base = nullptr;
  std::size_t size = 0;
};
Mapped& MappedOf(ggml_backend_buffer_t buffer) {
  return *static_cast<Mapped*>(abi::Of(buffer).context);
}
constexpr abi::BufferTable kHostBufferTable{
    .free_buffer =
        [](ggml_backend_buffer_t buffer) {
          ::munmap(MappedOf(buffer).base, MappedOf(buffer).size);
          delete &MappedOf(buffer);
        },
    .get_base = [](ggml_backend_buffer_t buffer) { return MappedOf(buffer).base; },
    .init_tensor = nullptr,
    .memset_tensor = [](ggml_backend_buffer_t, ggml_tensor* tensor, uint8_t value, size_t offset,
                        size_t size) { std::memset(static_cast<char*>(tensor->data) + offset, value, size); },
    .set_tensor = [](ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, size_t offset,
                     size_t size) { std::memcpy(static_cast<char*>(tensor->data) + offset, data, size); },
    .get_tensor = [](ggml_backend_buffer_t, const ggml_tensor* tensor, void* data, size_t offset,
                     size_t size) { std::memcpy(data, static_cast<const char*>(tensor->data) + offset, size); },
    .set_tensor_2d = nullptr,
    .get_tensor_2d = nullptr,
    .cpy_tensor = nullptr,
    .clear =
        [](ggml_backend_buffer_t buffer, uint8_t value) {
          if (value != 0) std::memset(MappedOf(buffer).base, value, MappedOf(buffer).size);  // fresh pages are zero
        },
    .reset = nullptr};
ggml_backend_buffer_t HostAlloc(ggml_backend_buffer_type_t type, size_t size) {
  const std::size_t mapped = std::max<std::size_t>(size, 1);
  void* const base =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  return ggml_backend_buffer_init(type, kHostBufferTable, new Mapped{base, mapped}, size);
}

// ---- a backend that only says who it is

const char* BackendName(ggml_backend_t backend) {
  return PlannedOf(abi::Of(backend).device).wish.name.c_str();
}
void BackendFree(ggml_backend_t backend) {
  delete &abi::Of(backend);
}
ggml_status BackendCompute(ggml_backend_t, ggml_cgraph*) {
  return GGML_STATUS_FAILED;
}

// ---- device

const char* DeviceName(ggml_backend_dev_t device) {
  return PlannedOf(device).wish.name.c_str();
}
void DeviceMemory(ggml_backend_dev_t device, size_t* free, size_t* total) {
  *free = *total = PlannedOf(device).wish.memory_bytes;
}
enum ggml_backend_dev_type DeviceType(ggml_backend_dev_t) {
  return GGML_BACKEND_DEVICE_TYPE_GPU;
}
void DeviceProps(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  props->name = DeviceName(device);
  props->description = "planned";
  props->type = DeviceType(device);
  props->device_id = nullptr;
  DeviceMemory(device, &props->memory_free, &props->memory_total);
  props->caps = {
      .async = true, .host_buffer = true, .buffer_from_host_ptr = false, .events = true, .mmap_support = true};
}
ggml_backend_t DeviceInit(ggml_backend_dev_t device, const char*) {
  static ggml_guid guid = {0x6c, 0x69, 0x6e, 0x6b, 0x63, 0x70, 0x70, 0x2d,
                           0x70, 0x6c, 0x61, 0x6e, 0x6e, 0x65, 0x64, 0x01};
  auto* const backend = new abi::Backend{};
  backend->guid = &guid;
  backend->table.get_name = BackendName;
  backend->table.free = BackendFree;
  backend->table.graph_compute = BackendCompute;
  backend->device = device;
  return abi::Handle(backend);
}
bool DeviceOffloads(ggml_backend_dev_t, const ggml_tensor* op) {
  if (op->op == GGML_OP_GET_ROWS) return false;
  const std::int64_t rows = op->op == GGML_OP_MUL_MAT      ? op->ne[1]
                            : op->op == GGML_OP_MUL_MAT_ID ? op->ne[2]
                                                           : ggml_nrows(op);
  return rows >= kLeastRowsTaken;
}
void NoEvent(ggml_backend_dev_t, ggml_backend_event_t) {}

abi::DeviceTable MakeDeviceTable() {
  abi::DeviceTable table{};
  table.get_name = DeviceName;
  table.get_description = [](ggml_backend_dev_t) { return "planned"; };
  table.get_memory = DeviceMemory;
  table.get_type = DeviceType;
  table.get_props = DeviceProps;
  table.init_backend = DeviceInit;
  table.get_buffer_type = [](ggml_backend_dev_t device) { return abi::Handle(&PlannedOf(device).buffer_type); };
  table.get_host_buffer_type = [](ggml_backend_dev_t device) { return abi::Handle(&PlannedOf(device).host_type); };
  table.supports_op = [](ggml_backend_dev_t, const ggml_tensor*) { return true; };
  table.supports_buft = [](ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return type == abi::Handle(&PlannedOf(device).buffer_type);
  };
  table.offload_op = DeviceOffloads;
  table.event_new = [](ggml_backend_dev_t) -> ggml_backend_event_t { return nullptr; };
  table.event_free = NoEvent;
  table.event_synchronize = NoEvent;
  return table;
}

const char* RegName(ggml_backend_reg_t) {
  return "planned";
}
size_t RegCount(ggml_backend_reg_t) {
  return World().devices.size();
}
ggml_backend_dev_t RegDevice(ggml_backend_reg_t, size_t index) {
  return abi::Handle(&World().devices[index].device);
}

}  // namespace

Result<std::vector<ggml_backend_dev_t>> RegisterPlannedDevices(std::span<const PlannedDevice> devices) {
  // A crash is worse than a refusal: the version is looked at before anything is called through the tables.
  if (std::string_view(ggml_version()).substr(0, 5) != "0.27.") {
    return Fail(FaultCode::kRefused, "planned devices were written for ggml 0.27, and this is {}", ggml_version());
  }
  Planning& world = World();
  std::vector<ggml_backend_dev_t> handles;
  world.reg.api_version = abi::kApiVersion;
  world.reg.table = {RegName, RegCount, RegDevice, nullptr};
  for (const PlannedDevice& wish : devices) {
    if (wish.here) {
      ggml_backend_dev_t device = ggml_backend_dev_by_name(wish.name.c_str());
      if (device == nullptr) return Fail(FaultCode::kRefused, "ggml finds no device {} here", wish.name);
      handles.push_back(device);
      continue;
    }
    Planned& planned = world.devices.emplace_back();
    planned.wish = wish;
    planned.buffer_type.table = {.get_name = TypeName,
                                 .alloc_buffer = TypeAlloc,
                                 .alloc_buffer_n = nullptr,
                                 .get_alignment = [](ggml_backend_buffer_type_t) { return kAlignment; },
                                 .get_max_size = nullptr,
                                 .get_alloc_size = nullptr,
                                 .get_alloc_size_n = nullptr,
                                 .is_host = [](ggml_backend_buffer_type_t) { return false; }};
    planned.buffer_type.device = abi::Handle(&planned.device);
    planned.buffer_type.context = &planned;
    planned.host_name = wish.name + "_Host";
    planned.host_type = planned.buffer_type;
    planned.host_type.table.get_name = [](ggml_backend_buffer_type_t type) {
      return PlannedOf(type).host_name.c_str();
    };
    planned.host_type.table.alloc_buffer = HostAlloc;
    planned.host_type.table.get_alignment = [](ggml_backend_buffer_type_t) { return std::size_t{32}; };  // as the CPU's
    planned.host_type.table.is_host = [](ggml_backend_buffer_type_t) { return true; };
    planned.device.table = MakeDeviceTable();
    planned.device.reg = abi::Handle(&world.reg);
    planned.device.context = &planned;
    handles.push_back(abi::Handle(&planned.device));
  }
  if (!world.devices.empty()) ggml_backend_register(abi::Handle(&world.reg));
  return handles;
}

}  // namespace linkcpp
