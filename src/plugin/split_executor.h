// Computes one split of the host's graph: expert calls through the model's runtime, the rest on ggml's CPU backend.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <functional>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "plugin/expert_graph.h"
#include "plugin/model_runtime.h"

namespace linkcpp {

// One per backend instance (one per llama_context). One thread at a time.
class SplitExecutor {
 public:
  // `model_of` leads from an expert weight to its model; nullptr when it is not one of ours.
  SplitExecutor(ggml_backend_buffer_type_t ours, std::function<ModelRuntime*(const ggml_tensor*)> model_of);
  ~SplitExecutor();
  SplitExecutor(const SplitExecutor&) = delete;
  SplitExecutor& operator=(const SplitExecutor&) = delete;

  Result<void> Run(ggml_cgraph* graph);

 private:
  // Rows and pairs of a call, read before a later node can reuse their memory.
  struct Gathered {
    std::vector<float> copy;  // empty: the host's own memory serves
    std::span<const float> x;
    std::vector<Pair> pairs;
    std::uint32_t n_in = 0;
  };
  Result<Gathered> Gather(const ExpertCall& call) const;
  Result<void> RunCall(const ExpertCall& call, const Gathered& gathered);
  Result<void> RunHostOps(const std::vector<ggml_tensor*>& nodes);

  ggml_backend_buffer_type_t ours_;
  std::function<ModelRuntime*(const ggml_tensor*)> model_of_;
  ggml_backend_t cpu_ = nullptr;  // made when the first plain operation comes
};

}  // namespace linkcpp
