#include "kernel/device.h"

#include <algorithm>
#include <cctype>
#include <new>
#include <thread>

#include "kernel/backends.h"
#include "kernel/ggml_device.h"

namespace linkcpp {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

using DeviceType = enum ggml_backend_dev_type;  // ggml has a function of that name as well

ggml_backend_dev_t FirstOf(const std::vector<ggml_backend_dev_t>& devices, DeviceType type) {
  const auto found = std::ranges::find(devices, type, ggml_backend_dev_type);
  return found == devices.end() ? nullptr : *found;
}

Result<ggml_backend_dev_t> Choose(const std::string& name) {
  const std::vector<ggml_backend_dev_t> devices = UsableDevices();
  const std::string wanted = Lower(name);
  ggml_backend_dev_t chosen = nullptr;
  if (wanted.empty() || wanted == "auto") {
    for (const DeviceType type :
         {GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU, GGML_BACKEND_DEVICE_TYPE_CPU}) {
      if (chosen == nullptr) chosen = FirstOf(devices, type);
    }
  } else if (wanted == "cpu") {
    chosen = FirstOf(devices, GGML_BACKEND_DEVICE_TYPE_CPU);
  } else {
    const auto found =
        std::ranges::find(devices, wanted, [](auto device) { return Lower(ggml_backend_dev_name(device)); });
    if (found != devices.end()) chosen = *found;
  }
  if (chosen != nullptr) return chosen;
  std::string known;
  for (ggml_backend_dev_t device : devices) {
    known += std::format("{}{} ({})", known.empty() ? "" : ", ", ggml_backend_dev_name(device),
                         ggml_backend_dev_description(device));
  }
  return Fail(FaultCode::kRefused, "no device called \"{}\"; there are: {}", name, known.empty() ? "none" : known);
}

std::vector<ggml_backend_buffer_type_t> ExtraBufferTypes(ggml_backend_dev_t device) {
  std::vector<ggml_backend_buffer_type_t> types;
  const auto list = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
  if (list == nullptr) return types;
  for (ggml_backend_buffer_type_t* type = list(device); type != nullptr && *type != nullptr; ++type)
    types.push_back(*type);
  return types;
}

void SetThreads(ggml_backend_dev_t device, ggml_backend_t backend, int n_threads) {
  const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads"));
  if (set != nullptr) set(backend, n_threads);
}

// The products that llama.cpp asks about before it places a weight; src[0] is that weight.
constexpr std::int64_t kTokens = 512;
ggml_tensor* MatrixProduct(ggml_context* context, ggml_type type, std::int64_t n_in, std::int64_t n_out) {
  ggml_tensor* weight = ggml_new_tensor_2d(context, type, n_in, n_out);
  return ggml_mul_mat(context, weight, ggml_new_tensor_2d(context, GGML_TYPE_F32, n_in, kTokens));
}
ggml_tensor* ExpertProduct(ggml_context* context, ggml_type type, std::int64_t n_in, std::int64_t n_out,
                           std::int64_t n_experts, std::int64_t n_used) {
  ggml_tensor* weight = ggml_new_tensor_3d(context, type, n_in, n_out, n_experts);
  ggml_tensor* rows = ggml_new_tensor_3d(context, GGML_TYPE_F32, n_in, n_used, kTokens);
  ggml_tensor* ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, n_used, kTokens);
  return ggml_mul_mat_id(context, weight, rows, ids);
}

bool Takes(ggml_backend_dev_t device, ggml_backend_buffer_type_t buffer_type, ggml_tensor* weight,
           const ggml_tensor* product) {
  const GgmlBuffer empty(ggml_backend_buft_alloc_buffer(buffer_type, 0));  // a device may look at its type only
  weight->buffer = empty.get();
  const bool takes = ggml_backend_dev_supports_op(device, product);
  weight->buffer = nullptr;
  return takes;
}

constexpr int kMaxThreads = 512;  // ggml's own limit

}  // namespace

GgmlContext NewContext(std::size_t n_tensors, std::size_t n_nodes) {
  const std::size_t graph = n_nodes == 0 ? 0 : ggml_graph_overhead_custom(n_nodes, false);
  return GgmlContext(
      ggml_init({.mem_size = n_tensors * ggml_tensor_overhead() + graph, .mem_buffer = nullptr, .no_alloc = true}));
}

Result<std::unique_ptr<Device>> Device::Open(const DeviceOptions& options, LogSink& log) try {
  ggml_backend_dev_t chosen = nullptr;
  if (!options.backend_path.empty()) {
    ASSIGN_OR_RETURN(ggml_backend_reg_t registration, LoadBackend(options, log));
    if (ggml_backend_reg_dev_count(registration) == 0) {
      return Fail(FaultCode::kLocal, "{} has no device on this machine", options.backend_path);
    }
    chosen = ggml_backend_reg_dev_get(registration, 0);
  } else {
    RETURN_IF_FAULT(EnsureBackends(options, log));
    ASSIGN_OR_RETURN(chosen, Choose(options.name));
  }
  if (options.n_threads < 0 || options.n_threads > kMaxThreads) {
    return Fail(FaultCode::kLocal, "{} threads asked for; give 1 to {}, or 0 for one per core", options.n_threads,
                kMaxThreads);
  }
  ggml_backend_t backend = ggml_backend_dev_init(chosen, nullptr);
  if (backend == nullptr) {
    return Fail(FaultCode::kLocal, "device {} does not start; try another (cpu)", ggml_backend_dev_name(chosen));
  }
  const int cores = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  return std::make_unique<GgmlDevice>(chosen, backend, options.n_threads > 0 ? options.n_threads : cores, log);
} catch (const std::exception& error) {
  return Fail(FaultCode::kLocal, "opening device \"{}\": {}", options.name, error.what());
}

Result<DeviceInfo> Device::Find(const std::string& name) try {
  NullLog log;
  RETURN_IF_FAULT(EnsureBackends(DeviceOptions{}, log));
  ASSIGN_OR_RETURN(const ggml_backend_dev_t device, Choose(name));
  return Describe(device);
} catch (const std::exception& error) {
  return Fail(FaultCode::kLocal, "looking for device \"{}\": {}", name, error.what());
}

std::vector<DeviceInfo> Device::List() try {
  NullLog log;
  std::vector<DeviceInfo> list;
  if (!EnsureBackends(DeviceOptions{}, log)) return list;
  for (ggml_backend_dev_t device : UsableDevices()) list.push_back(Describe(device));
  return list;
} catch (const std::exception&) {
  return {};
}

bool Device::TakesWeight(const std::string& name, std::uint32_t type, std::uint32_t n_in, std::uint32_t n_out,
                         std::uint32_t n_experts, std::uint32_t n_used) try {
  NullLog log;
  if (!EnsureBackends(DeviceOptions{}, log)) return true;
  const std::vector<ggml_backend_dev_t> devices = UsableDevices();
  const auto device = std::ranges::find(devices, name, ggml_backend_dev_name);
  if (device == devices.end()) return true;
  const GgmlContext context = NewContext(4);
  const auto ggml = static_cast<ggml_type>(type);
  const ggml_tensor* product = n_experts > 0 ? ExpertProduct(context.get(), ggml, n_in, n_out, n_experts, n_used)
                                             : MatrixProduct(context.get(), ggml, n_in, n_out);
  return Takes(*device, ggml_backend_dev_buffer_type(*device), product->src[0], product);
} catch (const std::exception&) {
  return true;
}

GgmlDevice::GgmlDevice(ggml_backend_dev_t device, ggml_backend_t backend, int n_threads, LogSink& log)
    : device_(device),
      backend_(backend),
      n_threads_(n_threads),
      log_(log),
      info_(Describe(device)),
      kernel_class_(KernelClass(device)),
      extra_buffer_types_(ExtraBufferTypes(device)),
      allocator_(ggml_gallocr_new(default_buffer_type())) {
  SetThreads(device_, backend_, n_threads_);
  ForwardGgmlLog(log_);
}

GgmlDevice::~GgmlDevice() {
  allocator_.reset();
  ggml_backend_free(backend_);
  StopGgmlLog(log_);
}

ggml_backend_buffer_type_t GgmlDevice::ChooseWeightBuffer(ggml_type type, std::int64_t n_in, std::int64_t n_out,
                                                          std::int64_t n_slots) const {
  constexpr std::int64_t kExperts = 64;
  // lavapipe binds at most 128 MB: 48 experts of the 122B's down in Q6_K, where a stack may have fewer slots than that.
  ggml_backend_buffer_type_t chosen = ChooseWeightBufferFor(type, n_in, n_out, kExperts);
  return chosen != nullptr || n_slots >= kExperts ? chosen : ChooseWeightBufferFor(type, n_in, n_out, n_slots);
}

ggml_backend_buffer_type_t GgmlDevice::ChooseWeightBufferFor(ggml_type type, std::int64_t n_in, std::int64_t n_out,
                                                             std::int64_t n_experts) const {
  constexpr std::int64_t kUsed = 8;
  const GgmlContext context = NewContext(4);
  const ggml_tensor* product = ExpertProduct(context.get(), type, n_in, n_out, n_experts, kUsed);
  return FirstThatTakes(product->src[0], product);
}

ggml_backend_buffer_type_t GgmlDevice::ChooseMatrixBuffer(ggml_type type, std::int64_t n_in, std::int64_t n_out) const {
  const GgmlContext context = NewContext(3);
  const ggml_tensor* product = MatrixProduct(context.get(), type, n_in, n_out);
  return FirstThatTakes(product->src[0], product);
}

ggml_backend_buffer_type_t GgmlDevice::FirstThatTakes(ggml_tensor* weight, const ggml_tensor* product) const {
  std::vector<ggml_backend_buffer_type_t> candidates = extra_buffer_types_;
  candidates.push_back(default_buffer_type());
  for (ggml_backend_buffer_type_t candidate : candidates) {
    if (Takes(device_, candidate, weight, product)) return candidate;
  }
  return nullptr;
}

Result<void> GgmlDevice::Allocate(ggml_cgraph* graph) {
  const std::size_t before = ggml_gallocr_get_buffer_size(allocator_.get(), 0);
  // Reserve always: alone, alloc_graph would reuse the last graph's plan for any graph with as many and as large nodes.
  const bool allocated =
      ggml_gallocr_reserve(allocator_.get(), graph) && ggml_gallocr_alloc_graph(allocator_.get(), graph);
  if (!allocated || ggml_gallocr_get_buffer_size(allocator_.get(), 0) != before) ++generation_;
  if (allocated) return {};
  allocator_.reset(ggml_gallocr_new(default_buffer_type()));  // after a failure the old one believes in memory it lacks
  return Fail(FaultCode::kLocal, "device {} has no memory left for a dispatch's intermediate rows: hold fewer experts",
              info_.name);
}

Result<void> GgmlDevice::Compute(ggml_cgraph* graph) {
  try {
    const ggml_status status = ggml_backend_graph_compute(backend_, graph);
    if (status == GGML_STATUS_SUCCESS) return {};
    return Fail(FaultCode::kLocal, "device {} failed to compute: {}", info_.name, ggml_status_to_string(status));
  } catch (const std::exception& error) {
    // ggml's CPU backend frees its work memory before it asks for more; when that throws, the backend must not be used
    // or freed again. It is left behind and a new one takes its place.
    if (ggml_backend_t fresh = ggml_backend_dev_init(device_, nullptr)) {
      backend_ = fresh;
      SetThreads(device_, backend_, n_threads_);
    }
    return Fail(FaultCode::kLocal, "device {} failed to compute: {}", info_.name, error.what());
  }
}

}  // namespace linkcpp
