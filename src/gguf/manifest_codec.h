// A manifest as bytes, and the model id as a function of what is in it. Both are defined in docs/slice.md.
#pragma once

#include <string>
#include <string_view>

#include "base/hash.h"
#include "gguf/manifest.h"

namespace linkcpp {

struct ManifestParts {
  Hash model_id;
  Hash header_hash;
  Manifest::Slices slices;
};

Hash ModelIdOf(const Hash& header_hash, const Manifest::Slices& slices);

std::string EncodeManifest(const Hash& model_id, const Hash& header_hash, const Manifest::Slices& slices);

// kMalformed: too short or too long, not sorted, unknown numbers. Does not check the model id.
Result<ManifestParts> DecodeManifest(std::string_view bytes);

}  // namespace linkcpp
