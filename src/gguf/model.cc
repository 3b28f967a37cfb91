#include "gguf/model.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <new>

namespace linkcpp {
namespace {

// "dir/name-00002-of-00005.gguf" = prefix "dir/name", number 1, count 5.
struct SplitName {
  std::string prefix;
  std::uint32_t number = 0;
  std::uint32_t count = 0;

  static std::optional<SplitName> Parse(std::string_view path) {
    constexpr std::string_view kShape = "-00000-of-00000.gguf";
    if (path.size() <= kShape.size()) return std::nullopt;
    const std::string_view tail = path.substr(path.size() - kShape.size());
    for (std::size_t i = 0; i < kShape.size(); ++i) {
      const bool digit = tail[i] >= '0' && tail[i] <= '9';
      if (kShape[i] == '0' ? !digit : tail[i] != kShape[i]) return std::nullopt;
    }
    SplitName name;
    std::from_chars(tail.data() + 1, tail.data() + 6, name.number);
    std::from_chars(tail.data() + 10, tail.data() + 15, name.count);
    if (name.number == 0 || name.number > name.count) return std::nullopt;
    --name.number;
    name.prefix = path.substr(0, path.size() - kShape.size());
    return name;
  }

  std::string Path(std::uint32_t i) const { return std::format("{}-{:05}-of-{:05}.gguf", prefix, i + 1, count); }
};

const GgufValue* FindKey(const GgufKeys& keys, std::string_view key) {
  const auto found = keys.find(key);
  return found == keys.end() ? nullptr : &found->second;
}

std::optional<std::uint64_t> AsInteger(const GgufValue* value) {
  if (value == nullptr) return std::nullopt;
  if (const auto* natural = std::get_if<std::uint64_t>(value)) return *natural;
  if (const auto* integer = std::get_if<std::int64_t>(value); integer != nullptr && *integer >= 0) {
    return static_cast<std::uint64_t>(*integer);
  }
  return std::nullopt;
}

// What a header says of its place among splits must be what we take it for.
Result<void> CheckSplit(const GgufHeader& header, std::size_t number, std::size_t count, std::string_view name) {
  const std::uint64_t says_count = AsInteger(FindKey(header.keys, "split.count")).value_or(1);
  const std::uint64_t says_number = AsInteger(FindKey(header.keys, "split.no")).value_or(0);
  // Tools write a count of 0 into a model that was never split.
  if (std::max<std::uint64_t>(says_count, 1) != count || says_number != number) {
    return Fail(FaultCode::kMalformed, "{}: its keys say it is split {} of {}, it was opened as {} of {}", name,
                says_number + 1, says_count, number + 1, count);
  }
  return {};
}

}  // namespace

ModelFile::ModelFile() = default;
ModelFile::ModelFile(ModelFile&&) noexcept = default;
ModelFile& ModelFile::operator=(ModelFile&&) noexcept = default;
ModelFile::~ModelFile() = default;

Result<ModelFile> ModelFile::Open(const std::string& path) try {
  std::vector<std::string> names{path};
  std::vector<std::unique_ptr<ByteSource>> sources;
  ASSIGN_OR_RETURN(auto first, OpenFileSource(path));
  Hasher hasher;
  ASSIGN_OR_RETURN(auto header, ParseGgufHeader(*first, path, 0, hasher));
  const std::uint64_t count = AsInteger(FindKey(header.keys, "split.count")).value_or(1);
  if (count <= 1) {
    sources.push_back(std::move(first));
    std::vector<GgufHeader> headers;
    headers.push_back(std::move(header));
    return Assemble(std::move(names), std::move(sources), std::move(headers), hasher.Finish());
  }
  const auto split = SplitName::Parse(path);
  if (!split || split->count != count) {
    return Fail(FaultCode::kLocal,
                "{} is one of {} splits, so its name must end in -0000i-of-{:05}.gguf: rename it back", path, count,
                count);
  }
  names.clear();
  for (std::uint32_t i = 0; i < split->count; ++i) {
    names.push_back(split->Path(i));
    auto source = OpenFileSource(names.back());
    if (!source) return Wrap(source.error(), std::format("split {} of {}", i + 1, count));
    sources.push_back(std::move(*source));
  }
  return FromSources(std::move(names), std::move(sources));
} catch (const std::bad_alloc&) {
  return Fail(FaultCode::kLocal, "{}: not enough memory for its header", path);
}

Result<ModelFile> ModelFile::FromSources(std::vector<std::string> names,
                                         std::vector<std::unique_ptr<ByteSource>> sources) try {
  if (sources.empty() || sources.size() > 65535 || names.size() != sources.size()) {
    return Fail(FaultCode::kLocal, "a model of {} files", sources.size());
  }
  Hasher hasher;
  std::vector<GgufHeader> headers;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    ASSIGN_OR_RETURN(auto header, ParseGgufHeader(*sources[i], names[i], static_cast<std::uint16_t>(i), hasher));
    headers.push_back(std::move(header));
  }
  return Assemble(std::move(names), std::move(sources), std::move(headers), hasher.Finish());
} catch (const std::bad_alloc&) {
  return Fail(FaultCode::kLocal, "not enough memory for the model's header");
}

Result<ModelFile> ModelFile::Assemble(std::vector<std::string> names, std::vector<std::unique_ptr<ByteSource>> sources,
                                      std::vector<GgufHeader> headers, const Hash& header_hash) {
  ModelFile model;
  model.paths_ = std::move(names);
  model.sources_ = std::move(sources);
  model.header_hash_ = header_hash;
  const auto n_tensors = AsInteger(FindKey(headers[0].keys, "split.tensors.count"));
  for (std::size_t i = 0; i < headers.size(); ++i) {
    RETURN_IF_FAULT(CheckSplit(headers[i], i, headers.size(), model.paths_[i]));
    model.data_offsets_.push_back(headers[i].data_offset);
    std::ranges::move(headers[i].tensors, std::back_inserter(model.tensors_));
    model.keys_.merge(headers[i].keys);
  }
  if (headers.size() > 1 && n_tensors && *n_tensors != model.tensors_.size()) {
    return Fail(FaultCode::kMalformed, "{}: the splits have {} tensors together, split.tensors.count says {}",
                model.paths_[0], model.tensors_.size(), *n_tensors);
  }
  for (std::size_t i = 0; i < model.tensors_.size(); ++i) {
    if (!model.index_.try_emplace(model.tensors_[i].name, i).second) {
      return Fail(FaultCode::kMalformed, "{}: tensor '{}' is in two splits", model.paths_[0], model.tensors_[i].name);
    }
  }
  auto layers = FindMoeLayers(model.tensors_);
  if (!layers) return Wrap(layers.error(), model.paths_[0]);
  model.moe_layers_ = std::move(*layers);
  return model;
}

std::string ModelFile::name() const {
  const std::string& path = paths_[0];
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

const TensorInfo* ModelFile::FindTensor(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::string ModelFile::architecture() const {
  return Text("general.architecture").value_or("");
}

std::optional<std::uint64_t> ModelFile::Integer(std::string_view key) const {
  return AsInteger(FindKey(keys_, key));
}

std::optional<double> ModelFile::Number(std::string_view key) const {
  const GgufValue* value = FindKey(keys_, key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* natural = std::get_if<std::uint64_t>(value)) return static_cast<double>(*natural);
  if (const auto* integer = std::get_if<std::int64_t>(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

std::optional<bool> ModelFile::Flag(std::string_view key) const {
  const GgufValue* value = FindKey(keys_, key);
  const bool* flag = value == nullptr ? nullptr : std::get_if<bool>(value);
  return flag == nullptr ? std::nullopt : std::optional(*flag);
}

std::optional<std::string> ModelFile::Text(std::string_view key) const {
  const GgufValue* value = FindKey(keys_, key);
  const std::string* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return text == nullptr ? std::nullopt : std::optional(*text);
}

const GgufArray* ModelFile::Array(std::string_view key) const {
  const GgufValue* value = FindKey(keys_, key);
  return value == nullptr ? nullptr : std::get_if<GgufArray>(value);
}

std::optional<std::uint64_t> ModelFile::ArchInteger(std::string_view suffix, std::size_t layer) const {
  const std::string key = std::format("{}.{}", architecture(), suffix);
  if (const GgufArray* array = Array(key)) {
    if (layer >= array->integers.size() || static_cast<std::int64_t>(array->integers[layer]) < 0) return std::nullopt;
    return array->integers[layer];
  }
  return Integer(key);
}

const MoeLayer* ModelFile::FindMoeLayer(LayerId layer) const {
  const auto found = std::ranges::lower_bound(moe_layers_, layer, {}, &MoeLayer::layer);
  return found == moe_layers_.end() || found->layer != layer ? nullptr : &*found;
}

std::uint64_t ModelFile::total_expert_bytes() const {
  std::uint64_t total = 0;
  for (const MoeLayer& layer : moe_layers_) total += layer.slice_bytes * layer.n_experts;
  return total;
}

std::uint64_t ModelFile::n_slices() const {
  std::uint64_t total = 0;
  for (const MoeLayer& layer : moe_layers_) total += layer.n_experts;
  return total;
}

std::uint32_t ModelFile::max_experts() const {
  std::uint32_t most = 0;
  for (const MoeLayer& layer : moe_layers_) most = std::max(most, layer.n_experts);
  return most;
}

std::uint64_t ModelFile::total_bytes() const {
  std::uint64_t total = 0;
  for (const auto& source : sources_) total += source->size_bytes();
  return total;
}

Result<void> ModelFile::RequireExperts() const {
  if (!moe_layers_.empty()) return {};
  return Fail(FaultCode::kRefused, "{} is a dense model: it has no routed experts", name());
}

Result<std::vector<SlabRef>> ModelFile::Slabs(SliceId slice) const {
  const MoeLayer* layer = FindMoeLayer(slice.layer);
  if (layer == nullptr) {
    RETURN_IF_FAULT(RequireExperts());
    return Fail(FaultCode::kRefused, "layer {} of {} has no routed experts: layers {} to {} may", slice.layer.value,
                name(), moe_layers_.front().layer.value, moe_layers_.back().layer.value);
  }
  if (slice.expert.value >= layer->n_experts) {
    return Fail(FaultCode::kRefused, "layer {} of {} has experts 0 to {}, not {}", slice.layer.value, name(),
                layer->n_experts - 1, slice.expert.value);
  }
  std::vector<SlabRef> slabs;
  slabs.reserve(layer->tensors.size());
  for (const ExpertTensor& tensor : layer->tensors) {
    slabs.push_back({tensor.projection, tensor.kind, tensor.tensor->file,
                     tensor.tensor->offset + slice.expert.value * tensor.slab_bytes, tensor.slab_bytes});
  }
  return slabs;
}

Result<void> ModelFile::ReadAt(std::uint16_t file, std::uint64_t offset, std::span<std::byte> bytes) const {
  if (file >= sources_.size()) {
    return Fail(FaultCode::kLocal, "{} has {} files, none has the number {}", name(), sources_.size(), file);
  }
  return sources_[file]->ReadAt(offset, bytes);
}

}  // namespace linkcpp
