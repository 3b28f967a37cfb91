// The slices a worker holds on its device: one ExpertStack a layer, and the dispatches that run through them.
//
// Two threads meet here. The loader makes stacks, fills slots and frees them; the compute thread runs dispatches. One
// mutex orders them: a dispatch sees a slice wholly or not at all, and waits for at most the loading of one slice.
// Knows nothing of links, files or orders.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kernel/expert_stack.h"
#include "wire/control.h"
#include "wire/messages.h"

namespace linkcpp {

class Rack {
 public:
  using MakeStack =
      std::function<Result<std::unique_ptr<ExpertStack>>(const ExpertShape& shape, std::uint32_t n_slots)>;
  explicit Rack(MakeStack make_stack) : make_stack_(std::move(make_stack)) {}

  // ---- the loader's side

  // Slots of the layer's stack: 0 when there is none. device_bytes: of all stacks.
  std::uint32_t Slots(LayerId layer) const;
  std::uint64_t device_bytes() const;
  std::vector<std::uint16_t> Experts(LayerId layer) const;  // held and not withdrawn, ascending
  std::vector<LayerId> Layers() const;

  // A new stack for the layer. When it has one already, that one keeps answering until Commit; slices loaded from now
  // on go into the new one. Faults as ExpertStack::Create.
  Result<void> Prepare(LayerId layer, const ExpertShape& shape, std::uint32_t n_slots);
  // The new stack takes over and the old one is freed. Slices that were not loaded again are gone.
  void Commit(LayerId layer);
  void Abandon(LayerId layer);  // frees a new stack that was not committed, if there is one
  void Remove(LayerId layer);

  // kBusy: no free slot. Otherwise as ExpertStack::Load. A slice that is there already is not loaded twice.
  Result<void> Load(SliceId slice, const ExpertSlabs& slabs);

  // A withdrawn slice is not advertised any more but still answers until it is dropped.
  void Withdraw(SliceId slice);
  void Drop(SliceId slice);

  // ---- anyone

  std::vector<LayerHoldings> Ready() const;  // held and not withdrawn
  std::uint64_t n_ready() const;

  // ---- the compute thread

  struct Output {
    std::uint32_t n_out = 0;
    std::uint32_t compute_us = 0;
  };
  // x: [n_rows, row_len]; y grows to [pairs, n_out] and never shrinks. kRefused: a slice that is not held (named), a
  // recipe or row length that does not fit, a result of more than max_output_bytes.
  Result<Output> Compute(const DispatchMessage& dispatch, std::span<const float> x, std::uint64_t max_output_bytes,
                         std::vector<float>& y);

 private:
  static constexpr std::int32_t kNone = -1;
  struct Shelf {  // one stack and what is in it
    std::unique_ptr<ExpertStack> stack;
    std::vector<std::int32_t> slot_of;  // by expert; kNone: not held
    std::vector<bool> withdrawn;        // by expert
    std::vector<std::uint32_t> free_slots;
    // Recipes this stack was asked to run before. A full comparison, not a key: recipes come from the network.
    std::vector<std::pair<Recipe, Result<ExpertStack::Lengths>>> verdicts;

    std::int32_t Slot(std::uint16_t expert) const { return expert < slot_of.size() ? slot_of[expert] : kNone; }
    bool Advertised(std::uint16_t expert) const { return Slot(expert) != kNone && !withdrawn[expert]; }
  };
  struct Place {
    Shelf now;
    std::optional<Shelf> next;
  };
  static const Result<ExpertStack::Lengths>& Verdict(Shelf& shelf, const Recipe& recipe);
  static std::vector<std::uint16_t> Advertised(const Shelf& shelf);

  MakeStack make_stack_;
  mutable std::mutex mutex_;
  std::map<LayerId, Place> places_;   // guarded by mutex_
  std::vector<SlotPair> slot_pairs_;  // the compute thread's, kept between dispatches
};

}  // namespace linkcpp
