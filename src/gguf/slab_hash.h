// One slab of a model file by the name the control plane uses, and its hash: how a backbone shows that its file is the
// coordinator's.
#pragma once

#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/ids.h"
#include "base/result.h"
#include "gguf/model.h"

namespace linkcpp {

std::string SlabName(Projection projection, SlabKind kind);  // "down", "gate.bias": the weight has no suffix

// Reads a piece at a time. kRefused: no such layer, expert or tensor. kLocal: reading failed.
Result<Hash> HashSlab(const ModelFile& model, SliceId slice, std::string_view name);

}  // namespace linkcpp
