// A recipe as a ggml graph for a given arrangement of pairs.
//
// ggml's MUL_MAT_ID takes a table of expert numbers, `used` per token. Three arrangements of a dispatch fit it:
//   shared rows: token t is row t of x and has `used` pairs (a whole decode or prefill on one holder); x [n_in, 1,
//   tokens] one token:   all pairs are one token's, every slot at most once; x has a row per pair          x [n_in,
//   pairs, 1] one each:    every pair is a token of its own; x has a row per pair                            x [n_in,
//   1, pairs]
// In all of them the result is [n_out, used, tokens] with pairs in order. A slot must not repeat within a token: ggml's
// repacked kernels count on it.
#pragma once

#include <array>

#include "base/recipe.h"
#include "base/result.h"
#include "kernel/ggml_device.h"
#include "kernel/recipe_plan.h"

namespace linkcpp {

// A stack's tensors, as far as its shape has them.
struct StackTensors {
  struct Tensors {
    ggml_tensor* weight = nullptr;  // [n_in, n_out, n_slots]
    ggml_tensor* bias = nullptr;    // [n_out, n_slots] f32
    ggml_tensor* scale = nullptr;   // [1, n_slots] f32
  };
  std::array<Tensors, kProjections> projections;
};

struct Arrangement {
  std::int64_t used = 1;
  std::int64_t tokens = 1;
  bool shared_rows = false;
  std::int64_t n_pairs() const { return used * tokens; }
  std::int64_t rows_per_token() const { return shared_rows ? 1 : used; }
  friend bool operator==(const Arrangement&, const Arrangement&) = default;
};

struct RecipeGraph {
  GgmlContext context;
  ggml_cgraph* graph = nullptr;
  ggml_tensor* x = nullptr;    // f32 [n_in, rows_per_token, tokens]
  ggml_tensor* ids = nullptr;  // i32 [used, tokens]
  ggml_tensor* y = nullptr;    // f32 [n_out, used, tokens]
};

// Tensors are not allocated. `plan` is PlanRecipe of the same recipe for the stack's shape; shared_rows only if the
// plan allows it.
RecipeGraph BuildRecipeGraph(const Recipe& recipe, const RecipePlan& plan, const StackTensors& stack,
                             const Arrangement& arrangement);

// kRefused: the first operation the device can not run.
Result<void> CheckOperations(const RecipeGraph& graph, const GgmlDevice& device);

}  // namespace linkcpp
