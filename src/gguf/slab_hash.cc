#include "gguf/slab_hash.h"

#include <algorithm>
#include <vector>

namespace linkcpp {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

}  // namespace

std::string SlabName(Projection projection, SlabKind kind) {
  std::string name = ProjectionName(projection);
  if (kind != SlabKind::kWeight) name += std::string(".") + SlabKindName(kind);
  return name;
}

Result<Hash> HashSlab(const ModelFile& model, SliceId slice, std::string_view name) {
  ASSIGN_OR_RETURN(const auto slabs, model.Slabs(slice));
  for (const SlabRef& slab : slabs) {
    if (SlabName(slab.projection, slab.kind) != name) continue;
    Hasher hasher;
    std::vector<std::byte> piece(std::min(kPieceBytes, slab.size_bytes));
    for (std::uint64_t done = 0; done < slab.size_bytes;) {
      const auto bytes = std::span(piece).first(std::min<std::uint64_t>(piece.size(), slab.size_bytes - done));
      RETURN_IF_FAULT(model.ReadAt(slab.file, slab.offset + done, bytes));
      hasher.Update(bytes);
      done += bytes.size();
    }
    return hasher.Finish();
  }
  return Fail(FaultCode::kRefused, "layer {} has no tensor '{}'", slice.layer.value, name);
}

}  // namespace linkcpp
