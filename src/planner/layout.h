// A question to the installed llama.cpp, "what would you allocate for this, where?", and its answer. Asked by whoever
// plans (cli/ask_layout.h), answered by the program linkcpp-layout. JSON between the two.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace linkcpp {

struct PlannedDevice {
  std::string name;  // distinct
  std::uint64_t memory_bytes = 0;
  bool here = false;  // ggml's own device of that name on this machine; else a GPU that need not be there

  friend bool operator==(const PlannedDevice&, const PlannedDevice&) = default;
};

struct LayoutRequest {
  std::string model_path;  // headers are enough: the data may be a hole
  std::vector<PlannedDevice> devices;
  std::int32_t n_gpu_layers = 0;
  std::vector<float> tensor_split;     // a share for each device; empty: llama.cpp's own
  std::vector<std::string> overrides;  // patterns of tensors that stay in plain memory
  std::uint32_t n_context = 0, n_seq_max = 1, n_ubatch = 512;
  std::string kv_type = "f16";  // f16, q8_0, q4_0
  bool flash_attention = true;
  bool repack = true;                  // false: llama.cpp's --no-repack
  std::uint64_t host_state_bytes = 0;  // recurrent state on the CPU, which libllama really gets in order to answer

  friend bool operator==(const LayoutRequest&, const LayoutRequest&) = default;
};

// Bytes in one kind of memory: "CPU", "CPU_REPACK", a device's name. context: KV cache and recurrent state.
struct LaidOut {
  std::string buffer_type;
  std::uint64_t model_bytes = 0, context_bytes = 0, compute_bytes = 0;
};

// One line each. kRefused: not such a request; of an answer that is a refusal, its words. kMalformed: not such an
// answer.
std::string ToJson(const LayoutRequest& request);
Result<LayoutRequest> ParseLayoutRequest(std::string_view json);
std::string ToJson(const std::vector<LaidOut>& laid_out);
std::string RefusalJson(std::string_view why);
Result<std::vector<LaidOut>> ParseLaidOut(std::string_view json);

}  // namespace linkcpp
