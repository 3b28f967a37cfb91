#include "cli/ask_layout.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <format>
#include <fstream>
#include <memory>
#include <print>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "base/child.h"
#include "cli/beside.h"
#include "cli/interrupt.h"
#include "gguf/gguf_writer.h"
#include "worker/byte_size.h"

namespace linkcpp {
namespace {

constexpr int kTimeoutS = 10;  // 0.1 s is usual

// All keys but the tokenizer's, all tensors of all splits, no data. false: it is not written.
bool WriteBareHeader(const ModelFile& model, const std::string& path) {
  const TensorInfo* embedding = model.FindTensor("token_embd.weight");
  if (embedding == nullptr) return false;
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
  return file && ::truncate(path.c_str(), static_cast<off_t>(header.size() + writer.data_bytes())) == 0;
}

// A line on a terminal while many questions are asked, which goes away.
class AskingLine {
 public:
  ~AskingLine() {
    if (drawn_) std::print(stderr, "\r{:{}}\r", "", kText.size() + kDigits);
  }
  void Next() {
    ++n_asked_;
    if (::isatty(STDERR_FILENO) == 0 || std::chrono::steady_clock::now() - start_ < std::chrono::milliseconds(300))
      return;
    std::print(stderr, "\r{}{}", kText, n_asked_);
    std::fflush(stderr);
    drawn_ = true;
  }

 private:
  static constexpr std::string_view kText = "asking llama.cpp how it would lay this out: ";
  static constexpr std::size_t kDigits = 4;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int n_asked_ = 0;
  bool drawn_ = false;
};

// One linkcpp-layout for all questions: starting it takes as long as an answer.
class LayoutAsker {
 public:
  LayoutAsker(ScratchFolder folder, const ModelFile& model)
      : folder_(std::move(folder)), bare_(folder_.path() + "/header.gguf"), has_bare_(WriteBareHeader(model, bare_)) {}

  Result<std::vector<LaidOut>> Ask(const LayoutRequest& request) {
    line_.Next();
    if (has_bare_) {
      LayoutRequest of_bare = request;
      of_bare.model_path = bare_;
      auto answer = AskOnce(of_bare);
      if (answer || answer.error().code != FaultCode::kRefused) return answer;
    }
    return AskOnce(request);  // an architecture that wants its vocabulary
  }

 private:
  Result<std::vector<LaidOut>> AskOnce(const LayoutRequest& request) {
    if (request.host_state_bytes > AvailableMemory() / 2) {
      return Fail(FaultCode::kLocal, "libllama would get {} for states here to answer",
                  BinarySizeText(request.host_state_bytes));
    }
    if (child_ == nullptr || devices_ != request.devices) {
      ASSIGN_OR_RETURN(child_, AnsweringChild::Start(CommandFor(request.devices)));
      devices_ = request.devices;
    }
    const auto line = child_->Ask(ToJson(request), InterruptGuard::KeepGoing);
    auto answer = line ? ParseLaidOut(*line) : std::unexpected(line.error());
    if (answer || answer.error().code == FaultCode::kRefused) return answer;
    const int signal = child_->signal();
    child_.reset();
    if (signal != SIGABRT && signal != SIGSEGV) return answer;
    return Fail(FaultCode::kRefused, "{}", answer.error().text);  // as it would in llama-server
  }
  static ChildCommand CommandFor(const std::vector<PlannedDevice>& devices) {
    ChildCommand command{.argv = {ProgramBeside("linkcpp-layout"), "-"}, .timeout_s = kTimeoutS};
    // When libllama aborts, ggml would call a debugger, which takes 20 s. Recurrent states libllama gets and clears for
    // every answer: in huge pages the 149 MiB of the 122B's take 0.03 s less than the 0.1 s they take in small ones.
    command.environment = {
        {"GGML_BACKEND_PATH", ""}, {"GGML_NO_BACKTRACE", "1"}, {"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"}};
    if (std::ranges::none_of(devices, &PlannedDevice::here)) {  // looking for real ones takes longer than the answer
      command.environment.insert(
          command.environment.end(),
          {{"VK_DRIVER_FILES", "/dev/null"}, {"CUDA_VISIBLE_DEVICES", "-1"}, {"HIP_VISIBLE_DEVICES", "-1"}});
    }
    return command;
  }

  const ScratchFolder folder_;
  const std::string bare_;
  const bool has_bare_;
  std::unique_ptr<AnsweringChild> child_;
  std::vector<PlannedDevice> devices_;  // that it was asked about
  AskingLine line_;
};

}  // namespace

AskLayout MakeLayoutAsker(const ModelFile& model) {
  auto folder = ScratchFolder::Make();
  if (!folder) return [fault = folder.error()](const LayoutRequest&) { return std::unexpected(fault); };
  return [asker = std::make_shared<LayoutAsker>(std::move(*folder), model)](const LayoutRequest& request) {
    return asker->Ask(request);
  };
}

}  // namespace linkcpp
