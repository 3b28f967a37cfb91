#include "plugin/plugin.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "abi/ggml_abi.h"
#include "base/log.h"
#include "plugin/config.h"
#include "plugin/expert_graph.h"
#include "plugin/model_runtime.h"
#include "plugin/self_check.h"
#include "plugin/split_executor.h"

namespace linkcpp {
namespace {

constexpr std::size_t kAlignment = 64;

// The whole plug-in. Made on the first ggml_backend_init and kept until the process ends, as ggml keeps the library.
struct Plugin {
  explicit Plugin(const PluginConfig& with) : config(with), models(with, *log) {}

  PluginConfig config;
  std::unique_ptr<LogSink> log = MakeStderrLog("linkcpp");
  ModelRegistry models;
  abi::BufferType buffer_type{};
  abi::Device device{};
  abi::Reg reg{};

  ggml_backend_buffer_type_t ours() { return abi::Handle(&buffer_type); }
};
Plugin* g_plugin = nullptr;  // the one place a C callback without context can come from

// Memory of ours, or a borrowed range of the host's model mapping.
struct BufferState {
  void* base = nullptr;
  std::size_t size = 0;
  bool owned = false;
  std::shared_ptr<ModelRuntime> model;       // weights only
  bool refused = false;                      // no runtime could be made: said once
  std::unordered_set<const void*> released;  // weights whose bytes were given back
};

BufferState& StateOf(ggml_backend_buffer_t buffer) {
  return *static_cast<BufferState*>(abi::Of(buffer).context);
}

// ---- buffer

void BufferFree(ggml_backend_buffer_t buffer) {
  BufferState* const state = &StateOf(buffer);
  if (state->owned) ::munmap(state->base, state->size);
  delete state;
}
void* BufferBase(ggml_backend_buffer_t buffer) {
  return StateOf(buffer).base;
}
void BufferMemset(ggml_backend_buffer_t, ggml_tensor* tensor, uint8_t value, size_t offset, size_t size) {
  std::memset(static_cast<char*>(tensor->data) + offset, value, size);
}
void BufferSet(ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
  std::memcpy(static_cast<char*>(tensor->data) + offset, data, size);
}
void BufferGet(ggml_backend_buffer_t, const ggml_tensor* tensor, void* data, size_t offset, size_t size) {
  std::memcpy(data, static_cast<const char*>(tensor->data) + offset, size);
}
bool BufferCopy(ggml_backend_buffer_t, const ggml_tensor* src, ggml_tensor* dst) {
  if (!ggml_backend_buffer_is_host(src->buffer)) return false;
  std::memcpy(dst->data, src->data, ggml_nbytes(src));
  return true;
}
void BufferClear(ggml_backend_buffer_t buffer, uint8_t value) {
  const BufferState& state = StateOf(buffer);
  if (state.owned && value != 0) std::memset(state.base, value, state.size);  // fresh pages are zero already
  if (state.owned && value == 0) ::madvise(state.base, state.size, MADV_DONTNEED);
}

constexpr abi::BufferTable kBufferTable{.free_buffer = BufferFree,
                                        .get_base = BufferBase,
                                        .init_tensor = nullptr,
                                        .memset_tensor = BufferMemset,
                                        .set_tensor = BufferSet,
                                        .get_tensor = BufferGet,
                                        .set_tensor_2d = nullptr,
                                        .get_tensor_2d = nullptr,
                                        .cpy_tensor = BufferCopy,
                                        .clear = BufferClear,
                                        .reset = nullptr};

// ---- buffer type

const char* BufferTypeName(ggml_backend_buffer_type_t) {
  return kDeviceName;
}
ggml_backend_buffer_t BufferTypeAlloc(ggml_backend_buffer_type_t type, size_t size) {
  // Pages come when they are touched: a weight buffer whose bytes are not kept costs address space only.
  const std::size_t mapped = std::max<std::size_t>(size, 1);
  void* const base =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    g_plugin->log->Error("cannot reserve {} bytes: {}", size, std::strerror(errno));
    return nullptr;
  }
  return ggml_backend_buffer_init(type, kBufferTable, new BufferState{base, mapped, true, nullptr, false, {}}, size);
}
size_t BufferTypeAlignment(ggml_backend_buffer_type_t) {
  return kAlignment;
}
bool BufferTypeIsHost(ggml_backend_buffer_type_t) {
  return true;
}

// ---- backend

struct BackendState {
  SplitExecutor executor;
};

const char* BackendName(ggml_backend_t) {
  return kDeviceName;
}
void BackendFree(ggml_backend_t backend) {
  abi::Backend* const ours = &abi::Of(backend);
  delete static_cast<BackendState*>(ours->context);
  delete ours;
}
ggml_status BackendCompute(ggml_backend_t backend, ggml_cgraph* graph) {
  try {
    const auto done = static_cast<BackendState*>(abi::Of(backend).context)->executor.Run(graph);
    if (done) return GGML_STATUS_SUCCESS;
    g_plugin->log->Error("this decode fails: {}", done.error().text);
  } catch (const std::exception& error) {
    g_plugin->log->Error("this decode fails: {}", error.what());
  }
  return GGML_STATUS_FAILED;
}

// ---- device

const char* DeviceName(ggml_backend_dev_t) {
  return kDeviceName;
}
const char* DeviceDescription(ggml_backend_dev_t) {
  return "routed experts on linkcpp workers";
}
void DeviceMemory(ggml_backend_dev_t, size_t* free, size_t* total) {
  *free = *total = 0;
}
enum ggml_backend_dev_type DeviceType(ggml_backend_dev_t) {
  return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}
void DeviceProps(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  props->name = DeviceName(device);
  props->description = DeviceDescription(device);
  props->type = DeviceType(device);
  props->device_id = nullptr;
  DeviceMemory(device, &props->memory_free, &props->memory_total);
  props->caps = {
      .async = false, .host_buffer = false, .buffer_from_host_ptr = true, .events = false, .mmap_support = true};
}
// The host did not map the model (--load-mode none, dio) and has read it into a buffer of ours: the model is found by
// its path, and the bytes of the weight go, since the file serves what is computed here. Biases and scales stay.
void TakeOver(BufferState& state, const ggml_tensor* weight) {
  static std::mutex mutex;  // several contexts of one model may compute at once
  const std::lock_guard lock(mutex);
  if (state.model == nullptr && !state.refused) {
    std::uint16_t file = 0;
    std::uint64_t file_offset = 0;
    if (auto model = g_plugin->models.ForMapping(nullptr, &file, &file_offset)) {
      state.model = std::move(*model);
    } else {
      state.refused = true;
      g_plugin->log->Error("{}", model.error().text);
    }
  }
  if (state.model == nullptr || !state.released.insert(weight->data).second) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(weight->data);
  const std::uintptr_t begin = (at + page - 1) / page * page;
  const std::uintptr_t end = (at + ggml_nbytes(weight)) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

ModelRuntime* ModelOf(const ggml_tensor* weight) {
  if (weight->buffer == nullptr || ggml_backend_buffer_get_type(weight->buffer) != g_plugin->ours()) return nullptr;
  BufferState& state = StateOf(weight->buffer);
  if (state.owned) TakeOver(state, weight);
  return state.model.get();
}
ggml_backend_t DeviceInit(ggml_backend_dev_t device, const char*) {
  static ggml_guid guid = {0x6c, 0x69, 0x6e, 0x6b, 0x63, 0x70, 0x70, 0x2d,
                           0x65, 0x78, 0x70, 0x65, 0x72, 0x74, 0x73, 0x01};
  auto* const backend = new abi::Backend{};
  backend->guid = &guid;
  backend->table.get_name = BackendName;
  backend->table.free = BackendFree;
  backend->table.graph_compute = BackendCompute;
  backend->device = device;
  backend->context = new BackendState{SplitExecutor(g_plugin->ours(), ModelOf)};
  return abi::Handle(backend);
}
ggml_backend_buffer_type_t DeviceBufferType(ggml_backend_dev_t) {
  return g_plugin->ours();
}
ggml_backend_buffer_t DeviceMap(ggml_backend_dev_t, void* base, size_t size, size_t) {
  try {
    std::uint16_t file = 0;
    std::uint64_t file_offset = 0;
    auto model = g_plugin->models.ForMapping(base, &file, &file_offset);
    if (!model) {
      g_plugin->log->Error("{}", model.error().text);
      return nullptr;
    }
    (*model)->AdviseMapping(file, file_offset, size, base);
    return ggml_backend_buffer_init(g_plugin->ours(), kBufferTable,
                                    new BufferState{base, size, false, std::move(*model), false, {}}, size);
  } catch (const std::exception& error) {
    g_plugin->log->Error("taking the experts failed: {}", error.what());
    return nullptr;
  }
}
bool DeviceSupportsOp(ggml_backend_dev_t, const ggml_tensor* op) {
  return TakesOperation(op, g_plugin->ours());
}
bool DeviceSupportsBuffer(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return type == g_plugin->ours() || ggml_backend_buft_is_host(type);
}

// ---- registry

const char* RegName(ggml_backend_reg_t) {
  return kDeviceName;
}
size_t RegDeviceCount(ggml_backend_reg_t) {
  return 1;
}
ggml_backend_dev_t RegDevice(ggml_backend_reg_t, size_t) {
  return abi::Handle(&g_plugin->device);
}
void* RegProcAddress(ggml_backend_reg_t, const char*) {
  return nullptr;
}

ggml_backend_reg_t MakePlugin() {
  const auto config = ReadConfig([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  });
  if (!config) {
    MakeStderrLog("linkcpp")->Error("{}", config.error().text);
    return nullptr;
  }
  // Never freed: ggml keeps the library loaded, and the host may compute until its very end.
  g_plugin = new Plugin(*config);
  g_plugin->buffer_type.table = {.get_name = BufferTypeName,
                                 .alloc_buffer = BufferTypeAlloc,
                                 .alloc_buffer_n = nullptr,
                                 .get_alignment = BufferTypeAlignment,
                                 .get_max_size = nullptr,
                                 .get_alloc_size = nullptr,
                                 .get_alloc_size_n = nullptr,
                                 .is_host = BufferTypeIsHost};
  g_plugin->buffer_type.device = abi::Handle(&g_plugin->device);
  abi::DeviceTable& device = g_plugin->device.table;
  device.get_name = DeviceName;
  device.get_description = DeviceDescription;
  device.get_memory = DeviceMemory;
  device.get_type = DeviceType;
  device.get_props = DeviceProps;
  device.init_backend = DeviceInit;
  device.get_buffer_type = DeviceBufferType;
  device.buffer_from_host_ptr = DeviceMap;
  device.supports_op = DeviceSupportsOp;
  device.supports_buft = DeviceSupportsBuffer;
  g_plugin->device.reg = abi::Handle(&g_plugin->reg);
  g_plugin->reg.api_version = abi::kApiVersion;
  g_plugin->reg.table = {RegName, RegDeviceCount, RegDevice, RegProcAddress};

  if (const auto fits = SelfCheck(abi::Handle(&g_plugin->reg), g_plugin->ours(), kDeviceName, kAlignment); !fits) {
    g_plugin->log->Error("{}", fits.error().text);
    return nullptr;
  }
  return abi::Handle(&g_plugin->reg);
}

}  // namespace

ggml_backend_reg_t PluginRegistry() {
  static ggml_backend_reg_t const registry = []() -> ggml_backend_reg_t {
    try {
      return MakePlugin();
    } catch (const std::exception&) {
      return nullptr;
    }
  }();
  return registry;
}

}  // namespace linkcpp
