// What a shard says of itself.
#include <algorithm>

#include "gguf/shard.h"

namespace linkcpp {
namespace {

Result<Hash> HashKey(const ModelFile& shard, std::string_view key) {
  const auto text = shard.Text(key);
  if (!text) return Fail(FaultCode::kMalformed, "{}: key '{}' is missing", shard.name(), key);
  auto hash = Hash::FromHex(*text);
  return hash ? hash : Wrap(hash.error(), std::format("{}: key '{}'", shard.name(), key));
}

// Ascending numbers below 65536.
Result<std::vector<std::uint16_t>> Numbers(const ModelFile& shard, std::string_view key) {
  const GgufArray* array = shard.Array(key);
  std::vector<std::uint16_t> numbers;
  if (array != nullptr && array->integers.size() == array->count) {
    for (const std::uint64_t integer : array->integers) {
      if (integer > 65535 || (!numbers.empty() && integer <= numbers.back())) break;
      numbers.push_back(static_cast<std::uint16_t>(integer));
    }
  }
  if (array == nullptr || numbers.size() != array->count || numbers.empty()) {
    return Fail(FaultCode::kMalformed, "{}: key '{}' is not a list of ascending numbers", shard.name(), key);
  }
  return numbers;
}

}  // namespace

std::optional<std::uint32_t> ShardInfo::LocalIndex(ExpertId expert) const {
  const auto found = std::ranges::lower_bound(experts, expert.value);
  if (found == experts.end() || *found != expert.value) return std::nullopt;
  return static_cast<std::uint32_t>(found - experts.begin());
}

bool IsShard(const ModelFile& file) {
  return file.keys().contains("linkcpp.format");
}

Result<ShardInfo> ReadShardInfo(const ModelFile& shard) {
  if (!IsShard(shard)) return Fail(FaultCode::kRefused, "{} is not a shard made by linkcpp", shard.name());
  if (const auto format = shard.Integer("linkcpp.format"); format != kShardFormat) {
    return Fail(FaultCode::kRefused, "{} has the shard format {}, this program knows {}", shard.name(),
                format.value_or(0), kShardFormat);
  }
  ShardInfo info;
  ASSIGN_OR_RETURN(info.model_id, HashKey(shard, "linkcpp.model_id"));
  ASSIGN_OR_RETURN(info.header_hash, HashKey(shard, "linkcpp.header_hash"));
  ASSIGN_OR_RETURN(info.layers, Numbers(shard, "linkcpp.layers"));
  ASSIGN_OR_RETURN(info.experts, Numbers(shard, "linkcpp.experts"));
  const auto layer_number = [](const MoeLayer& layer) { return layer.layer.value; };
  if (!std::ranges::equal(shard.moe_layers(), info.layers, {}, layer_number)) {
    return Fail(FaultCode::kMalformed, "{}: it says layers {}, its tensors are of others", shard.name(),
                FormatRanges(info.layers));
  }
  for (const MoeLayer& layer : shard.moe_layers()) {
    if (layer.n_experts != info.experts.size()) {
      return Fail(FaultCode::kMalformed, "{}: it says {} experts, layer {} has {}", shard.name(), info.experts.size(),
                  layer.layer.value, layer.n_experts);
    }
  }
  return info;
}

Result<Hash> ShardSlabHash(const ModelFile& shard, const ExpertTensor& tensor, std::uint32_t local_index) {
  const std::string key = "linkcpp.slab_hashes." + tensor.tensor->name;
  const GgufArray* array = shard.Array(key);
  if (array == nullptr || local_index >= array->strings.size()) {
    return Fail(FaultCode::kMalformed, "{}: key '{}' has no hash {}", shard.name(), key, local_index);
  }
  auto hash = Hash::FromHex(array->strings[local_index]);
  return hash ? hash : Wrap(hash.error(), std::format("{}: key '{}'", shard.name(), key));
}

Result<void> VerifyShard(const ModelFile& shard, int n_threads, const Manifest::Progress& progress) {
  ASSIGN_OR_RETURN(const auto info, ReadShardInfo(shard));
  ASSIGN_OR_RETURN(const auto manifest, Manifest::Compute(shard, n_threads, progress));
  for (const auto& [slice, slabs] : manifest.slices()) {
    const MoeLayer& layer = *shard.FindMoeLayer(slice.layer);
    for (std::size_t i = 0; i < slabs.size(); ++i) {
      ASSIGN_OR_RETURN(const auto expected, ShardSlabHash(shard, layer.tensors[i], slice.expert.value));
      if (slabs[i].hash == expected) continue;
      return Fail(FaultCode::kMalformed,
                  "{}: '{}' of expert {} is damaged (its hash differs): cut or download it again", shard.name(),
                  layer.tensors[i].tensor->name, info.experts[slice.expert.value]);
    }
  }
  return {};
}

}  // namespace linkcpp
