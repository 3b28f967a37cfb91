#include "layout/lay_out.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <llama.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <format>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "gguf/model.h"
#include "layout/planned_devices.h"

namespace linkcpp {
namespace {

// libllama's own account of a context, exported but declared in no header the distribution ships. What it returns is
// checked against what libllama logs (Agrees below) before it is believed.
struct Breakdown {
  std::size_t model = 0, context = 0, compute = 0;
};
using GetBreakdown = std::map<ggml_backend_buffer_type_t, Breakdown> (*)(const llama_context*);
constexpr const char* kGetBreakdown = "_Z26llama_get_memory_breakdownPK13llama_context";

struct Heard {
  std::string error;
  double logged_compute_mib = 0;
  int n_compute_buffers = 0;
};

void Listen(ggml_log_level level, const char* text, void* data) {
  auto& heard = *static_cast<Heard*>(data);
  const std::string_view line(text);
  if (level == GGML_LOG_LEVEL_ERROR && !heard.error.contains("error loading model")) {  // what follows says less
    heard.error = line.substr(0, line.find_last_not_of(" \n") + 1);
  }
  constexpr std::string_view kSize = "compute buffer size =";
  if (const std::size_t at = line.find(kSize); at != std::string_view::npos) {
    heard.logged_compute_mib += std::strtod(text + at + kSize.size(), nullptr);
    ++heard.n_compute_buffers;
  }
}

std::optional<ggml_type> CacheType(std::string_view name) {
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    if (name == ggml_type_name(type)) return type;
  }
  return std::nullopt;
}

using Model = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

bool Agrees(const std::map<ggml_backend_buffer_type_t, Breakdown>& breakdown, const Heard& heard) {
  double sum_mib = 0;
  for (const auto& [type, bytes] : breakdown) sum_mib += static_cast<double>(bytes.compute) / (1 << 20);
  return std::abs(sum_mib - heard.logged_compute_mib) < 0.01 * (heard.n_compute_buffers + 1);  // logged with two digits
}

// They are registered for good, so the first request's are the only ones.
Result<std::vector<ggml_backend_dev_t>> DevicesFor(const std::vector<PlannedDevice>& wanted) {
  struct Registered {
    std::vector<PlannedDevice> wanted;
    std::vector<ggml_backend_dev_t> handles;
  };
  static std::optional<Registered> registered;
  if (!registered) {
    ggml_backend_load_all();
    ASSIGN_OR_RETURN(std::vector<ggml_backend_dev_t> handles, RegisterPlannedDevices(wanted));
    registered = Registered{.wanted = wanted, .handles = std::move(handles)};
  }
  if (registered->wanted != wanted) return Fail(FaultCode::kRefused, "other devices than those asked about before");
  return registered->handles;
}

}  // namespace

Result<std::vector<LaidOut>> LayOut(const LayoutRequest& request) {
  static Heard heard;  // libllama logs whenever it likes
  heard = {};
  llama_log_set(Listen, &heard);
  const auto cache_type = CacheType(request.kv_type);
  if (!cache_type) return Fail(FaultCode::kRefused, "'{}' is no type of a KV cache", request.kv_type);
  const auto get_breakdown = reinterpret_cast<GetBreakdown>(::dlsym(RTLD_DEFAULT, kGetBreakdown));
  if (get_breakdown == nullptr) {
    return Fail(FaultCode::kRefused, "this libllama ({}) does not account for its memory", llama_print_system_info());
  }
  ASSIGN_OR_RETURN(std::vector<ggml_backend_dev_t> devices, DevicesFor(request.devices));
  devices.push_back(nullptr);

  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (cpu == nullptr) return Fail(FaultCode::kRefused, "ggml found no CPU backend");
  std::vector<llama_model_tensor_buft_override> overrides;
  for (const std::string& pattern : request.overrides) {
    overrides.push_back({pattern.c_str(), ggml_backend_dev_buffer_type(cpu)});
  }
  overrides.push_back({nullptr, nullptr});
  std::vector<float> split = request.tensor_split;
  split.resize(llama_max_devices());

  llama_model_params model_params = llama_model_default_params();
  model_params.devices = devices.data();
  model_params.n_gpu_layers = request.n_gpu_layers;
  if (!request.tensor_split.empty()) model_params.tensor_split = split.data();
  if (!request.overrides.empty()) model_params.tensor_buft_overrides = overrides.data();
  model_params.use_extra_bufts = request.repack;
  model_params.load_mode = LLAMA_LOAD_MODE_NONE;  // no_alloc wants it: a mapping would be an allocation
  model_params.no_alloc = true;
  const Model model(llama_model_load_from_file(request.model_path.c_str(), model_params), llama_model_free);
  if (model == nullptr) return Fail(FaultCode::kRefused, "libllama does not load it: {}", heard.error);

  llama_context_params context_params = llama_context_default_params();
  context_params.n_ctx = request.n_context;
  context_params.n_batch = std::max<std::uint32_t>(2048, request.n_ubatch);  // as llama-server starts
  context_params.n_ubatch = request.n_ubatch;
  context_params.n_seq_max = request.n_seq_max;
  context_params.type_k = context_params.type_v = *cache_type;
  context_params.swa_full = false;
  context_params.flash_attn_type =
      request.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  const Context context(llama_init_from_model(model.get(), context_params), llama_free);
  if (context == nullptr) return Fail(FaultCode::kRefused, "libllama makes no context: {}", heard.error);

  const auto breakdown = get_breakdown(context.get());
  if (!Agrees(breakdown, heard)) {
    return Fail(FaultCode::kRefused, "this libllama accounts for its memory in another way than 0.7");
  }
  std::vector<LaidOut> laid_out;
  for (const auto& [type, bytes] : breakdown) {
    laid_out.push_back({.buffer_type = ggml_backend_buft_name(type),
                        .model_bytes = bytes.model,
                        .context_bytes = bytes.context,
                        .compute_bytes = bytes.compute});
  }
  return laid_out;
}

std::string LayoutQuestion(const LayoutRequest& request) {
  if (std::ranges::any_of(request.devices, &PlannedDevice::here)) return "";
  const auto model = ModelFile::Open(request.model_path);
  if (!model) return "";
  LayoutRequest elsewhere = request;
  elsewhere.model_path = model->header_hash().Hex();
  struct stat self{};
  if (::stat("/proc/self/exe", &self) != 0) return "";
  std::string question =
      std::format("{}\n{} {}.{}", ToJson(elsewhere), self.st_size, self.st_mtim.tv_sec, self.st_mtim.tv_nsec);
  for (void* const function :
       {reinterpret_cast<void*>(&llama_model_load_from_file), reinterpret_cast<void*>(&ggml_backend_load_all),
        reinterpret_cast<void*>(&ggml_version)}) {
    Dl_info info{};
    struct stat file{};
    if (::dladdr(function, &info) == 0 || ::stat(info.dli_fname, &file) != 0) return "";
    question += std::format("\n{} {} {}.{}", info.dli_fname, file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
  }
  return question;
}

}  // namespace linkcpp
