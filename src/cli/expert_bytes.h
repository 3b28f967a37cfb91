// One expert of a model file as the kernel wants it: its shape and its slabs.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "kernel/expert_stack.h"
#include "reference/model_oracle.h"

namespace linkcpp {

struct ExpertBytes : RawExpert {
  ExpertShape shape;
  ExpertSlabs slabs() const;  // views into this
};

// Faults as ReadSlabs.
Result<ExpertBytes> LoadExpertBytes(const ModelFile& model, const LayerPlan& plan, std::uint32_t expert);

}  // namespace linkcpp
