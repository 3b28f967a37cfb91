#include "swarm/routing_table.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace linkcpp {
namespace {

Result<std::uint32_t> ReadNumber(std::string_view text, std::string_view all) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(FaultCode::kMalformed, "'{}' in the holdings '{}' is not a number", text.substr(0, 20),
                all.substr(0, 60));
  }
  if (number > kMaxExpertsPerLayer) {
    return Fail(FaultCode::kMalformed, "the holdings '{}' name expert {}, more than {}", all.substr(0, 60), number,
                kMaxExpertsPerLayer);
  }
  return number;
}

// The notation of gguf/shard.h without its "all": a worker has to say what it has. Appends; not sorted.
Result<void> ReadRanges(std::string_view text, std::vector<std::uint16_t>& out) {
  const std::string_view all = text;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const std::size_t colon = part.find(':');
    ASSIGN_OR_RETURN(const std::uint32_t first, ReadNumber(part.substr(0, colon), all));
    std::uint32_t past = first + 1;
    if (colon != std::string_view::npos) {
      ASSIGN_OR_RETURN(past, ReadNumber(part.substr(colon + 1), all));
    }
    if (past <= first || past > kMaxExpertsPerLayer) {
      return Fail(FaultCode::kMalformed, "the holdings '{}' have an empty or too long range", all.substr(0, 60));
    }
    if (out.size() + (past - first) > 4 * std::size_t{kMaxExpertsPerLayer}) {
      return Fail(FaultCode::kMalformed, "the holdings '{}…' name experts over and over", all.substr(0, 60));
    }
    for (std::uint32_t expert = first; expert < past; ++expert) out.push_back(static_cast<std::uint16_t>(expert));
  }
  return {};
}

}  // namespace

Result<SliceLists> SpellOut(std::span<const LayerHoldings> ready) {
  SliceLists lists;
  for (const LayerHoldings& layer : ready) RETURN_IF_FAULT(ReadRanges(layer.experts, lists[layer.layer]));
  std::uint64_t n_slices = 0;
  for (auto& [layer, experts] : lists) {
    std::ranges::sort(experts);
    experts.erase(std::unique(experts.begin(), experts.end()), experts.end());
    n_slices += experts.size();
  }
  std::erase_if(lists, [](const auto& entry) { return entry.second.empty(); });
  if (n_slices > kMaxSlicesPerWorker) {
    return Fail(FaultCode::kMalformed, "holdings of {} slices, more than {}", n_slices, kMaxSlicesPerWorker);
  }
  return lists;
}

void RoutingTable::Add(WorkerNumber worker, SliceId slice) {
  auto& layer = holders_[slice.layer.value];
  if (layer.size() <= slice.expert.value) layer.resize(slice.expert.value + std::size_t{1});
  auto& holders = layer[slice.expert.value];
  if (holders.empty()) ++covered_;
  holders.insert(std::ranges::lower_bound(holders, worker), worker);
}

void RoutingTable::Take(WorkerNumber worker, SliceId slice) {
  const auto layer = holders_.find(slice.layer.value);
  if (layer == holders_.end() || layer->second.size() <= slice.expert.value) return;
  auto& holders = layer->second[slice.expert.value];
  if (std::erase(holders, worker) != 0 && holders.empty()) --covered_;
}

void RoutingTable::Replace(WorkerNumber worker, SliceLists slices) {
  if (const auto old = slices_.find(worker); old != slices_.end()) {
    for (const auto& [layer, experts] : old->second) {
      for (const std::uint16_t expert : experts) Take(worker, {LayerId(layer), ExpertId(expert)});
    }
    slices_.erase(old);
  }
  if (slices.empty()) return;
  for (const auto& [layer, experts] : slices) {
    for (const std::uint16_t expert : experts) Add(worker, {LayerId(layer), ExpertId(expert)});
  }
  slices_.emplace(worker, std::move(slices));
}

void RoutingTable::Drop(WorkerNumber worker, SliceId slice) {
  const auto entry = slices_.find(worker);
  if (entry == slices_.end()) return;
  const auto layer = entry->second.find(slice.layer.value);
  if (layer == entry->second.end() || std::erase(layer->second, slice.expert.value) == 0) return;
  Take(worker, slice);
}

std::span<const WorkerNumber> RoutingTable::Holders(LayerId layer, ExpertId expert) const {
  const auto entry = holders_.find(layer.value);
  if (entry == holders_.end() || entry->second.size() <= expert.value) return {};
  return entry->second[expert.value];
}

}  // namespace linkcpp
