#include "gguf/shard.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "gguf/gguf_writer.h"

namespace linkcpp {
namespace {

// What a reader of the shard may want to know of the model; all else is in the model.
constexpr std::string_view kKeptArchKeys[] = {"block_count",       "embedding_length",           "expert_count",
                                              "expert_used_count", "expert_feed_forward_length", "feed_forward_length"};

void PutModelKeys(GgufWriter& writer, const ModelFile& model) {
  writer.Text("general.architecture", model.architecture());
  for (const std::string_view key : {"general.name", "general.quantization_version"}) {
    if (const auto found = model.keys().find(key); found != model.keys().end()) writer.Value(key, found->second);
  }
  for (const std::string_view suffix : kKeptArchKeys) {
    const std::string key = std::format("{}.{}", model.architecture(), suffix);
    if (const auto found = model.keys().find(key); found != model.keys().end()) writer.Value(key, found->second);
  }
}

std::vector<std::uint32_t> Widen(std::span<const std::uint16_t> numbers) {
  return {numbers.begin(), numbers.end()};
}

Result<void> Check(const ModelFile& model, const Manifest& manifest, std::span<const std::uint16_t> layers,
                   std::span<const std::uint16_t> experts) {
  RETURN_IF_FAULT(model.RequireExperts());
  if (IsShard(model)) return Fail(FaultCode::kRefused, "{} is itself a shard: cut from the model", model.name());
  if (manifest.header_hash() != model.header_hash()) {
    return Fail(FaultCode::kRefused, "the manifest is of another model than {}", model.name());
  }
  if (layers.empty() || experts.empty()) return Fail(FaultCode::kRefused, "no layers or no experts to take");
  if (!std::ranges::is_sorted(layers, std::less_equal()) || !std::ranges::is_sorted(experts, std::less_equal())) {
    return Fail(FaultCode::kRefused, "layers and experts must ascend without doubles");
  }
  for (const std::uint16_t layer : layers) {
    // The last expert is there if any is missing: they ascend.
    RETURN_IF_FAULT(model.Slabs({LayerId(layer), ExpertId(experts.back())}));
  }
  return {};
}

}  // namespace

Result<Shard> Shard::Plan(const ModelFile& model, const Manifest& manifest, std::span<const std::uint16_t> layers,
                          std::span<const std::uint16_t> experts) try {
  RETURN_IF_FAULT(Check(model, manifest, layers, experts));
  // Larger ones exist only to waste space: the header is padded to it.
  const auto alignment =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(model.Integer("general.alignment").value_or(32), 65536));
  GgufWriter writer(alignment);
  PutModelKeys(writer, model);
  writer.U32("general.alignment", alignment);
  writer.U32("linkcpp.format", kShardFormat);
  writer.Text("linkcpp.model_id", manifest.model_id().Hex());
  writer.Text("linkcpp.header_hash", manifest.header_hash().Hex());
  writer.U32s("linkcpp.layers", Widen(layers));
  writer.U32s("linkcpp.experts", Widen(experts));

  Shard shard;
  shard.model_ = &model;
  shard.n_slices_ = layers.size() * experts.size();
  for (const std::uint16_t number : layers) {
    const MoeLayer& layer = *model.FindMoeLayer(LayerId(number));
    for (std::size_t slab = 0; slab < layer.tensors.size(); ++slab) {
      const ExpertTensor& tensor = layer.tensors[slab];
      std::vector<std::uint64_t> ne(tensor.tensor->ne.begin(),
                                    tensor.tensor->ne.begin() + ExpertDimension(tensor.kind));
      ne.push_back(experts.size());
      std::uint64_t offset =
          writer.Tensor(tensor.tensor->name, tensor.tensor->type, ne, experts.size() * tensor.slab_bytes);
      std::vector<std::string> hashes;
      for (const std::uint16_t expert : experts) {
        const std::uint64_t source_offset = tensor.tensor->offset + expert * tensor.slab_bytes;
        const auto* found = manifest.Find({layer.layer, ExpertId(expert)});
        if (found == nullptr || found->size() != layer.tensors.size()) {
          return Fail(FaultCode::kRefused, "the manifest lacks layer {}, expert {}", number, expert);
        }
        hashes.push_back((*found)[slab].hash.Hex());
        if (!shard.pieces_.empty() && shard.pieces_.back().offset + shard.pieces_.back().size_bytes == offset &&
            shard.pieces_.back().file == tensor.tensor->file &&
            shard.pieces_.back().source_offset + shard.pieces_.back().size_bytes == source_offset) {
          shard.pieces_.back().size_bytes += tensor.slab_bytes;
        } else {
          shard.pieces_.push_back({offset, tensor.slab_bytes, tensor.tensor->file, source_offset});
        }
        offset += tensor.slab_bytes;
      }
      writer.Texts("linkcpp.slab_hashes." + tensor.tensor->name, hashes);
    }
  }
  shard.header_ = writer.Header();
  for (Piece& piece : shard.pieces_) piece.offset += shard.header_.size();
  shard.size_bytes_ = shard.header_.size() + writer.data_bytes();
  return shard;
} catch (const std::bad_alloc&) {
  return Fail(FaultCode::kLocal, "not enough memory for the header of a shard");
}

std::string Shard::etag() const {
  return std::format("\"{}\"", HashOf(header_).Hex());
}

Result<void> Shard::Read(std::uint64_t offset, std::span<std::byte> bytes) const {
  if (offset > size_bytes_ || bytes.size() > size_bytes_ - offset) {
    return Fail(FaultCode::kRefused, "{} bytes at {} go past the shard's end at {}", bytes.size(), offset, size_bytes_);
  }
  if (offset < header_.size()) {
    const auto n_bytes = std::min<std::size_t>(bytes.size(), header_.size() - static_cast<std::size_t>(offset));
    std::memcpy(bytes.data(), header_.data() + offset, n_bytes);
    bytes = bytes.subspan(n_bytes);
    offset += n_bytes;
  }
  auto piece = std::ranges::upper_bound(pieces_, offset, {}, [](const Piece& p) { return p.offset + p.size_bytes; });
  while (!bytes.empty()) {
    if (piece == pieces_.end() || offset < piece->offset) {
      const std::uint64_t gap = (piece == pieces_.end() ? size_bytes_ : piece->offset) - offset;
      const auto n_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(gap, bytes.size()));
      std::memset(bytes.data(), 0, n_bytes);
      bytes = bytes.subspan(n_bytes);
      offset += n_bytes;
      continue;
    }
    const std::uint64_t inside = offset - piece->offset;
    const auto n_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(piece->size_bytes - inside, bytes.size()));
    RETURN_IF_FAULT(model_->ReadAt(piece->file, piece->source_offset + inside, bytes.first(n_bytes)));
    bytes = bytes.subspan(n_bytes);
    offset += n_bytes;
    ++piece;
  }
  return {};
}

}  // namespace linkcpp
