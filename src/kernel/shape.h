// The shape of a layer's experts, as the model file says it.
#pragma once

#include "base/result.h"
#include "gguf/model.h"
#include "kernel/expert_stack.h"

namespace linkcpp {

// kRefused: tensors that do not fit one another (a bias without its weight, lengths or counts that differ).
Result<ExpertShape> ShapeOf(const MoeLayer& layer);

}  // namespace linkcpp
