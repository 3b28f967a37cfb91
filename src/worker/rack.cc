#include "worker/rack.h"

#include <chrono>
#include <new>
#include <numeric>

#include "gguf/shard.h"

namespace linkcpp {

std::uint32_t Rack::Slots(LayerId layer) const {
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(layer);
  return it == places_.end() || !it->second.now.stack ? 0 : it->second.now.stack->n_slots();
}

std::uint64_t Rack::device_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [layer, place] : places_) {
    if (place.now.stack) bytes += place.now.stack->device_bytes();
    if (place.next && place.next->stack) bytes += place.next->stack->device_bytes();
  }
  return bytes;
}

std::vector<std::uint16_t> Rack::Advertised(const Shelf& shelf) {
  std::vector<std::uint16_t> experts;
  for (std::size_t expert = 0; expert < shelf.slot_of.size(); ++expert) {
    if (shelf.Advertised(static_cast<std::uint16_t>(expert))) experts.push_back(static_cast<std::uint16_t>(expert));
  }
  return experts;
}

std::vector<std::uint16_t> Rack::Experts(LayerId layer) const {
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(layer);
  return it == places_.end() ? std::vector<std::uint16_t>() : Advertised(it->second.now);
}

std::vector<LayerId> Rack::Layers() const {
  const std::lock_guard lock(mutex_);
  std::vector<LayerId> layers;
  for (const auto& [layer, place] : places_) layers.push_back(layer);
  return layers;
}

Result<void> Rack::Prepare(LayerId layer, const ExpertShape& shape, std::uint32_t n_slots) {
  Shelf shelf;
  ASSIGN_OR_RETURN(shelf.stack, make_stack_(shape, n_slots));
  shelf.free_slots.resize(shelf.stack->n_slots());
  std::iota(shelf.free_slots.rbegin(), shelf.free_slots.rend(), 0u);  // slot 0 is taken first
  const std::lock_guard lock(mutex_);
  Place& place = places_[layer];
  if (place.now.stack) {
    place.next = std::move(shelf);
  } else {
    place.now = std::move(shelf);
  }
  return {};
}

void Rack::Commit(LayerId layer) {
  Shelf old;  // freed outside of the lock
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(layer);
  if (it == places_.end() || !it->second.next) return;
  old = std::move(it->second.now);
  it->second.now = std::move(*it->second.next);
  it->second.next.reset();
}

void Rack::Abandon(LayerId layer) {
  std::optional<Shelf> old;
  const std::lock_guard lock(mutex_);
  if (const auto it = places_.find(layer); it != places_.end()) old.swap(it->second.next);
}

void Rack::Remove(LayerId layer) {
  Place old;
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(layer);
  if (it == places_.end()) return;
  old = std::move(it->second);
  places_.erase(it);
}

Result<void> Rack::Load(SliceId slice, const ExpertSlabs& slabs) {
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(slice.layer);
  if (it == places_.end()) return Fail(FaultCode::kBusy, "layer {} has no stack", slice.layer.value);
  Shelf& shelf = it->second.next ? *it->second.next : it->second.now;
  const std::size_t expert = slice.expert.value;
  if (shelf.slot_of.size() <= expert) {
    shelf.slot_of.resize(expert + 1, kNone);
    shelf.withdrawn.resize(expert + 1, false);
  }
  if (shelf.slot_of[expert] != kNone) {
    shelf.withdrawn[expert] = false;
    return {};
  }
  if (shelf.free_slots.empty()) return Fail(FaultCode::kBusy, "layer {} has no free slot", slice.layer.value);
  const std::uint32_t slot = shelf.free_slots.back();
  if (auto loaded = shelf.stack->Load(slot, slabs); !loaded) {
    return Wrap(loaded.error(), std::format("loading layer {} expert {}", slice.layer.value, slice.expert.value));
  }
  shelf.free_slots.pop_back();
  shelf.slot_of[expert] = static_cast<std::int32_t>(slot);
  shelf.withdrawn[expert] = false;
  return {};
}

void Rack::Withdraw(SliceId slice) {
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(slice.layer);
  if (it == places_.end() || it->second.now.Slot(slice.expert.value) == kNone) return;
  it->second.now.withdrawn[slice.expert.value] = true;
}

void Rack::Drop(SliceId slice) {
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(slice.layer);
  if (it == places_.end()) return;
  Shelf& shelf = it->second.now;
  const std::int32_t slot = shelf.Slot(slice.expert.value);
  if (slot == kNone) return;
  shelf.slot_of[slice.expert.value] = kNone;
  shelf.free_slots.push_back(static_cast<std::uint32_t>(slot));
}

std::vector<LayerHoldings> Rack::Ready() const {
  const std::lock_guard lock(mutex_);
  std::vector<LayerHoldings> ready;
  for (const auto& [layer, place] : places_) {
    const auto experts = Advertised(place.now);
    if (!experts.empty()) ready.push_back({.layer = layer.value, .experts = FormatRanges(experts)});
  }
  return ready;
}

std::uint64_t Rack::n_ready() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t n = 0;
  for (const auto& [layer, place] : places_) n += Advertised(place.now).size();
  return n;
}

const Result<ExpertStack::Lengths>& Rack::Verdict(Shelf& shelf, const Recipe& recipe) {
  for (const auto& [known, verdict] : shelf.verdicts) {
    if (known == recipe) return verdict;
  }
  constexpr std::size_t kMaxVerdicts = 16;  // an honest backbone sends one to four
  if (shelf.verdicts.size() >= kMaxVerdicts) shelf.verdicts.erase(shelf.verdicts.begin());
  return shelf.verdicts.emplace_back(recipe, shelf.stack->Check(recipe)).second;
}

Result<Rack::Output> Rack::Compute(const DispatchMessage& dispatch, std::span<const float> x,
                                   std::uint64_t max_output_bytes, std::vector<float>& y) try {
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(dispatch.layer);
  if (it == places_.end() || !it->second.now.stack) {
    return Fail(FaultCode::kRefused, "layer {} is not held here", dispatch.layer.value);
  }
  Shelf& shelf = it->second.now;
  slot_pairs_.clear();
  slot_pairs_.reserve(dispatch.pairs.size());
  for (const PairMessage& pair : dispatch.pairs) {
    const std::int32_t slot = shelf.Slot(pair.expert);
    if (slot == kNone) {
      return Fail(FaultCode::kRefused, "layer {} expert {} is not held here", dispatch.layer.value, pair.expert);
    }
    slot_pairs_.push_back({.row = pair.row, .slot = static_cast<std::uint32_t>(slot)});
  }
  const Result<ExpertStack::Lengths>& lengths = Verdict(shelf, dispatch.recipe);
  if (!lengths) return std::unexpected(lengths.error());
  if (lengths->n_in != dispatch.row_len) {
    return Fail(FaultCode::kRefused, "layer {} takes rows of {}, not {}", dispatch.layer.value, lengths->n_in,
                dispatch.row_len);
  }
  const std::uint64_t n_values = std::uint64_t{lengths->n_out} * slot_pairs_.size();
  if (n_values * sizeof(float) > max_output_bytes) {
    return Fail(FaultCode::kRefused, "{} result rows of {} are more than {} bytes: send smaller dispatches",
                slot_pairs_.size(), lengths->n_out, max_output_bytes);
  }
  if (y.size() < n_values) y.resize(n_values);
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_FAULT(shelf.stack->Run(dispatch.recipe, x, dispatch.n_rows, slot_pairs_, std::span(y).first(n_values)));
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  return Output{.n_out = lengths->n_out, .compute_us = static_cast<std::uint32_t>(took.count())};
} catch (const std::bad_alloc&) {
  return Fail(FaultCode::kBusy, "out of memory for a dispatch of {} pairs", dispatch.pairs.size());
}

}  // namespace linkcpp
