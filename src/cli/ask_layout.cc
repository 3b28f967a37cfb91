#include "cli/ask_layout.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <format>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "cli/beside.h"
#include "cli/interrupt.h"
#include "gguf/gguf_writer.h"
#include "matrix/child.h"

namespace linkcpp {
namespace {

constexpr int kTimeoutS = 10;  // 0.1 s is usual

// All keys but the tokenizer's, all tensors of all splits, no data.
Result<void> WriteBareHeader(const ModelFile& model, const std::string& path) {
  const TensorInfo* embedding = model.FindTensor("token_embd.weight");
  if (embedding == nullptr) return Fail(FaultCode::kRefused, "{} has no token_embd.weight", model.name());
  const std::string n_vocab = model.architecture() + ".vocab_size";
  GgufWriter writer;
  for (const auto& [key, value] : model.keys()) {
    const std::string_view name = key;
    if (name.starts_with("tokenizer.") || name.starts_with("split.") || name == "general.alignment" || name == n_vocab)
      continue;
    writer.Value(key, value);
  }
  writer.Text("tokenizer.ggml.model", "no_vocab");
  writer.U32(n_vocab, static_cast<std::uint32_t>(embedding->ne[1]));
  for (const TensorInfo& tensor : model.tensors())
    writer.Tensor(tensor.name, tensor.type, tensor.ne, tensor.size_bytes);
  const std::string header = writer.Header();
  std::ofstream file(path, std::ios::binary);
  file << header;
  file.close();
  if (!file || ::truncate(path.c_str(), static_cast<off_t>(header.size() + writer.data_bytes())) != 0) {
    return Fail(FaultCode::kLocal, "{} cannot be written", path);
  }
  return {};
}

Result<std::vector<LaidOut>> AskOnce(const LayoutRequest& request) {
  ChildCommand command{.argv = {ProgramBeside("linkcpp-layout"), ToJson(request)}, .timeout_s = kTimeoutS};
  // When libllama aborts, ggml would call a debugger, which takes 20 s.
  command.environment = {{"GGML_BACKEND_PATH", ""}, {"GGML_NO_BACKTRACE", "1"}};
  if (std::ranges::none_of(request.devices,
                           &PlannedDevice::here)) {  // looking for real ones takes longer than the answer
    command.environment.insert(
        command.environment.end(),
        {{"VK_DRIVER_FILES", "/dev/null"}, {"CUDA_VISIBLE_DEVICES", "-1"}, {"HIP_VISIBLE_DEVICES", "-1"}});
  }
  ASSIGN_OR_RETURN(const ChildOutcome outcome, RunChild(command, InterruptGuard::KeepGoing));
  if (outcome.stopped) return Fail(FaultCode::kLocal, "interrupted");
  // It says no with status 1; whatever else ended it is no answer.
  if (outcome.status != 0) {
    return Fail(outcome.status == 1 ? FaultCode::kRefused : FaultCode::kLocal, "{}", outcome.LastWords());
  }
  return ParseLaidOut(outcome.out);
}

}  // namespace

AskLayout MakeLayoutAsker(const ModelFile& model) {
  auto folder = ScratchFolder::Make();
  if (!folder) return [fault = folder.error()](const LayoutRequest&) { return std::unexpected(fault); };
  const auto kept = std::make_shared<ScratchFolder>(std::move(*folder));
  const std::string bare = kept->path() + "/header.gguf";
  const bool has_bare = WriteBareHeader(model, bare).has_value();
  return [kept, bare, has_bare](const LayoutRequest& request) -> Result<std::vector<LaidOut>> {
    if (has_bare) {
      LayoutRequest of_bare = request;
      of_bare.model_path = bare;
      auto answer = AskOnce(of_bare);
      if (answer || answer.error().code != FaultCode::kRefused) return answer;
    }
    return AskOnce(request);  // an architecture that wants its vocabulary
  };
}

}  // namespace linkcpp
