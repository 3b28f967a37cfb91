#include "gguf/manifest_codec.h"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <tuple>

namespace linkcpp {
namespace {

constexpr std::string_view kMagic = "lkmanif1";
constexpr std::string_view kModelIdDomain = "linkcpp model 1";
constexpr std::size_t kHashBytes = sizeof(Hash::bytes);

template <std::unsigned_integral Number>
void Put(std::string& out, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i) out.push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

void Put(std::string& out, const Hash& hash) {
  out.append(reinterpret_cast<const char*>(hash.bytes.data()), kHashBytes);
}

class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}

  std::size_t left() const { return bytes_.size(); }

  template <std::unsigned_integral Number>
  bool Get(Number& number) {
    if (bytes_.size() < sizeof number) return false;
    number = 0;
    for (std::size_t i = 0; i < sizeof number; ++i) {
      number = static_cast<Number>(number | static_cast<Number>(static_cast<unsigned char>(bytes_[i])) << (8 * i));
    }
    bytes_.remove_prefix(sizeof number);
    return true;
  }
  bool Get(Hash& hash) {
    if (bytes_.size() < kHashBytes) return false;
    std::memcpy(hash.bytes.data(), bytes_.data(), kHashBytes);
    bytes_.remove_prefix(kHashBytes);
    return true;
  }
  bool GetText(std::string_view text) {
    if (!bytes_.starts_with(text)) return false;
    bytes_.remove_prefix(text.size());
    return true;
  }

 private:
  std::string_view bytes_;
};

// One layer's slabs, the same for all of its experts but for the hashes.
bool GetLayer(Bytes& in, Manifest::Slices& slices) {
  std::uint16_t layer = 0;
  std::uint32_t n_experts = 0;
  std::uint8_t n_slabs = 0;
  if (!in.Get(layer) || !in.Get(n_experts) || !in.Get(n_slabs)) return false;
  if (!slices.empty() && slices.back().first.layer.value >= layer) return false;
  if (n_experts == 0 || n_experts > 65536 || n_slabs == 0 || n_slabs > 4 * kProjections) return false;
  std::vector<SlabHash> slabs(n_slabs);
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    std::uint8_t projection = 0;
    std::uint8_t kind = 0;
    if (!in.Get(projection) || !in.Get(kind) || !in.Get(slabs[i].size_bytes)) return false;
    if (projection >= kProjections || kind > static_cast<std::uint8_t>(SlabKind::kInputScale)) return false;
    slabs[i].projection = static_cast<Projection>(projection);
    slabs[i].kind = static_cast<SlabKind>(kind);
    if (i > 0 &&
        std::tuple(slabs[i - 1].kind, slabs[i - 1].projection) >= std::tuple(slabs[i].kind, slabs[i].projection)) {
      return false;
    }
  }
  if (in.left() / (slabs.size() * kHashBytes) < n_experts) return false;
  for (std::uint32_t expert = 0; expert < n_experts; ++expert) {
    for (SlabHash& slab : slabs) {
      if (!in.Get(slab.hash)) return false;
    }
    slices.emplace_back(SliceId{LayerId(layer), ExpertId(static_cast<std::uint16_t>(expert))}, slabs);
  }
  return true;
}

}  // namespace

Hash ModelIdOf(const Hash& header_hash, const Manifest::Slices& slices) {
  Hasher hasher;
  hasher.Update(kModelIdDomain);
  std::string bytes;
  Put(bytes, header_hash);
  for (const auto& [slice, slabs] : slices) {
    Put(bytes, slice.layer.value);
    Put(bytes, slice.expert.value);
    for (const SlabHash& slab : slabs) {
      Put(bytes, static_cast<std::uint8_t>(slab.projection));
      Put(bytes, static_cast<std::uint8_t>(slab.kind));
      Put(bytes, slab.size_bytes);
      Put(bytes, slab.hash);
    }
    hasher.Update(bytes);
    bytes.clear();
  }
  hasher.Update(bytes);  // the header hash of a model without slices
  return hasher.Finish();
}

std::string EncodeManifest(const Hash& model_id, const Hash& header_hash, const Manifest::Slices& slices) {
  std::string out(kMagic);
  Put(out, model_id);
  Put(out, header_hash);
  const auto same_layer = [](const auto& a, const auto& b) { return a.first.layer == b.first.layer; };
  std::uint32_t n_layers = 0;
  std::string layers;
  for (auto first = slices.begin(); first != slices.end(); ++n_layers) {
    const auto last =
        std::find_if_not(first, slices.end(), [&](const auto& slice) { return same_layer(*first, slice); });
    Put(layers, first->first.layer.value);
    Put(layers, static_cast<std::uint32_t>(last - first));
    Put(layers, static_cast<std::uint8_t>(first->second.size()));
    for (const SlabHash& slab : first->second) {
      Put(layers, static_cast<std::uint8_t>(slab.projection));
      Put(layers, static_cast<std::uint8_t>(slab.kind));
      Put(layers, slab.size_bytes);
    }
    for (; first != last; ++first) {
      for (const SlabHash& slab : first->second) Put(layers, slab.hash);
    }
  }
  Put(out, n_layers);
  return out + layers;
}

Result<ManifestParts> DecodeManifest(std::string_view bytes) {
  Bytes in(bytes);
  ManifestParts parts;
  std::uint32_t n_layers = 0;
  if (!in.GetText(kMagic)) return Fail(FaultCode::kMalformed, "not a manifest (it does not begin with \"{}\")", kMagic);
  if (!in.Get(parts.model_id) || !in.Get(parts.header_hash) || !in.Get(n_layers)) {
    return Fail(FaultCode::kMalformed, "a manifest of only {} bytes", bytes.size());
  }
  for (std::uint32_t i = 0; i < n_layers; ++i) {
    if (!GetLayer(in, parts.slices)) {
      return Fail(FaultCode::kMalformed, "a manifest that breaks off or makes no sense {} bytes before its end",
                  in.left());
    }
  }
  if (in.left() != 0) return Fail(FaultCode::kMalformed, "a manifest with {} bytes too many", in.left());
  return parts;
}

}  // namespace linkcpp
