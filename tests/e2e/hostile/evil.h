// What the hostile worker does to its answers, and when. Built for tests only, never installed.
//
// Everything else of it is the honest worker's own code: it misbehaves where an attacker with that code would, between
// the transport and the dispatcher (frames), and between the rack and the kernel (numbers).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/rng.h"
#include "kernel/expert_stack.h"
#include "net/link.h"

namespace linkcpp {

enum class Evil {
  kNone,
  // What the backbone can see from the frame alone.
  kDrop,   // one row too few
  kTwice,  // the same answer twice
  kStale,  // the answer under the id of an earlier one
  kLate,   // long after it was asked
  // Wrong numbers in right frames.
  kSwap,         // other experts of the layer than were asked for
  kZero,         // one pair is left out: its row is zeros
  kRenormalise,  // every row scaled to length 1
  kNan,          // one NaN
  kOtherLayer,   // the same experts of another layer
  kWrongRow,     // right rows, each at its neighbour's place
  kNibble,       // a kernel that reads nibbles in the wrong order
  kScale,        // a kernel that reads one scale of each block wrong
  kActivation,   // a kernel without the activation
};
std::optional<Evil> EvilNamed(std::string_view name);
std::string EvilNames();  // "drop, twice, …"

struct EvilOptions {
  Evil kind = Evil::kNone;
  double share = 1;         // of dispatches, once it begins
  std::uint64_t after = 0;  // honest dispatches first
  std::chrono::milliseconds late{3000};
};

// Decides and counts; says on standard error, a line a time, "evil 3: swap". Any thread.
class EvilPlan {
 public:
  explicit EvilPlan(const EvilOptions& options) : options_(options) {}
  // One dispatch comes to where `kind` is done. True: do it.
  bool Strikes(Evil kind);
  Evil kind() const { return options_.kind; }
  std::chrono::milliseconds late() const { return options_.late; }

 private:
  const EvilOptions options_;
  std::mutex mutex_;
  Rng rng_{1};
  std::uint64_t seen_ = 0, struck_ = 0;
};

// A link whose frames are tampered with. other_layer: a layer that is held too, or the same one.
using OtherLayer = std::function<LayerId(LayerId layer)>;
std::unique_ptr<Link> MakeEvilLink(std::unique_ptr<Link> link, EvilPlan& plan, OtherLayer other_layer);

// A stack whose results are wrong when the plan strikes. Holds every expert twice, right and misread, for the kinds
// that misread.
Result<std::unique_ptr<ExpertStack>> MakeEvilStack(const ExpertShape& shape, std::uint32_t n_slots, Device& device,
                                                   EvilPlan& plan);

}  // namespace linkcpp
