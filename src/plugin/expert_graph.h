// Reads the host's graph: which nodes compute routed experts, and what recipe they follow.
//
// A node is a *pair value* when it holds one row per (token, selected expert): a MUL_MAT_ID on expert weights, and what
// the host does to its result element by element before anything mixes experts (activation, bias, scale, clamp, …).
// The patterns differ between architectures, so nothing is counted: values are followed from node to node by what they
// are. Both questions the host asks — "do you take this operation?" and "compute this split" — are answered from here.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/ids.h"
#include "base/recipe.h"
#include "gguf/model.h"

namespace linkcpp {

// Which expert tensor of which layer a weight is; nullopt for everything else. Only tensors in our buffers count.
std::optional<ExpertTensorName> ExpertWeightOf(const ggml_tensor* tensor, ggml_backend_buffer_type_t ours);

// True when the operation's result is a pair value, or a per-expert table that only feeds one (RESHAPE, REPEAT and
// GET_ROWS of expert scales). `op` may be the loader's dummy, whose weight has a name and a buffer type but no data.
bool TakesOperation(const ggml_tensor* op, ggml_backend_buffer_type_t ours);

// A pair value that must exist in memory, and how to make it from memory.
struct ExpertCall {
  const ggml_tensor* result = nullptr;  // [n_out, k, T] f32: the host wants its rows here
  const ggml_tensor* input = nullptr;   // [n_in, 1 or k, T] f32
  const ggml_tensor* ids = nullptr;     // [k, T] i32
  const ggml_tensor* weight = nullptr;  // one of its weights: leads to the model
  LayerId layer;
  Recipe recipe;
  int first_node = 0;  // input and ids are surely intact before this node runs
};

// One piece of work of a split, in order.
struct SplitStep {
  enum class Kind { kCall, kHostOps };
  Kind kind = Kind::kHostOps;
  int node = 0;                     // position of its (last) result
  ExpertCall call;                  // kCall
  std::vector<ggml_tensor*> nodes;  // kHostOps: computed as they are, on the CPU backend
};

// Splits the nodes of one graph into calls and plain operations. Every node that is not interior to a call is covered.
std::vector<SplitStep> PlanSplit(ggml_cgraph* graph, ggml_backend_buffer_type_t ours);

}  // namespace linkcpp
