// What is read from files that came from elsewhere: models, shards, manifests. Any bytes give a value or a fault.
//
// Input that begins like a manifest goes to its decoder, all else to the GGUF reader. What opens must be usable: every
// slab lies inside the file, a shard of it reads back, a decoded manifest encodes to the same bytes.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/manifest.h"
#include "gguf/model.h"
#include "gguf/shard.h"

namespace linkcpp {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

Result<ModelFile> Open(std::string bytes) {
  std::vector<std::unique_ptr<ByteSource>> sources;
  sources.push_back(std::make_unique<MemorySource>(std::move(bytes)));
  return ModelFile::FromSources({"fuzz"}, std::move(sources));
}

void ReadManifest(std::string_view bytes) {
  const auto manifest = Manifest::Decode(bytes);
  if (manifest) Require(manifest->Encode() == bytes);
}

void ReadModel(std::string_view bytes) {
  const auto model = Open(std::string(bytes));
  if (!model) return;
  for (const MoeLayer& layer : model->moe_layers()) {
    const auto slabs = model->Slabs({layer.layer, ExpertId(static_cast<std::uint16_t>(layer.n_experts - 1))});
    Require(slabs.has_value());
    for (const SlabRef& slab : *slabs) Require(slab.offset + slab.size_bytes <= bytes.size());
  }
  if (IsShard(*model)) {
    static_cast<void>(VerifyShard(*model, 1, {}));
    return;
  }
  if (model->moe_layers().empty() || model->n_slices() > 64) return;
  const auto manifest = Manifest::Compute(*model, 1, {});
  Require(manifest.has_value());
  const std::vector<std::uint16_t> layers{model->moe_layers().back().layer.value};
  const std::vector<std::uint16_t> experts{static_cast<std::uint16_t>(model->moe_layers().back().n_experts - 1)};
  const auto shard = Shard::Plan(*model, *manifest, layers, experts);
  Require(shard.has_value());
  std::string cut(shard->size_bytes(), '\0');
  Require(shard->Read(0, std::as_writable_bytes(std::span(cut))).has_value());
  const auto again = Open(std::move(cut));
  Require(again.has_value() && VerifyShard(*again, 1, {}).has_value());
}

}  // namespace
}  // namespace linkcpp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with("lkmanif1")) {
    linkcpp::ReadManifest(bytes);
  } else {
    linkcpp::ReadModel(bytes);
  }
  return 0;
}
