// The backbone's side of the data plane: who holds what, and getting a layer's pairs computed, whatever happens.
//
// Compute() sends one frame per chosen worker, computes what nobody holds through the LocalExperts it was given,
// gathers, and moves pairs whose worker died, stalled or erred to another holder or to local. Every pair is answered
// exactly once or the call fails. Purity makes retry and hedging safe. Knows nothing of ggml, files or HTTP.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/recipe.h"
#include "base/result.h"
#include "net/link.h"
#include "swarm/checks.h"
#include "wire/control.h"
#include "wire/messages.h"

namespace linkcpp {

struct Pair {
  std::uint32_t row = 0;  // index into x
  ExpertId expert;
};

// Experts computed in this process: the plug-in's own kernel over the mapped file, or a test's fake.
class LocalExperts {
 public:
  virtual ~LocalExperts() = default;
  // As Swarm::Compute, all pairs. May be called from the thread that calls Swarm::Compute only.
  virtual Result<void> Compute(LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                               std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out) = 0;
};

struct SwarmOptions {
  bool allow_local = true;                       // LINKCPP_LOCAL
  std::chrono::milliseconds deadline{10'000};    // a worker that has not answered by then is cut off
  std::chrono::milliseconds hedge_after{0};      // 0: adaptive; ask another holder too when an answer is this late
  std::chrono::milliseconds local_after{1'000};  // so late and nobody else to ask: compute it here too, if allowed
  std::uint32_t max_pairs_per_frame = 4096;      // bigger layers are sent as several frames
  RowType row_type = RowType::kF32;              // what rows travel as; anything but f32 gives up bit-identity.
  RowType reply_type = RowType::kF32;            // q8_0 falls back to f32 where the row length does not divide
  std::chrono::microseconds spin{0};             // how long a waiting Compute spins before it blocks (docs/swarm.md)
  // True: what a worker holds is asked for only after Admit, layer by layer. Decided by src/admission.
  bool gated = false;
  double spot_share = 0;  // of live pairs, kept for TakeSamples
  // Called after a worker has stated its holdings or a sample was taken. Any thread; must only wake somebody.
  std::function<void()> on_news;
  // For tests on a fake clock, one thread: called instead of blocking, again and again; delivers frames, moves the
  // clock.
  std::function<void(TimePoint until)> pump;
};

// The largest payload either side may send on a data link; frames are split to stay below it.
inline constexpr std::uint32_t kMaxDataPayloadBytes = 1u << 26;

class Swarm {
 public:
  // `local` may be nullptr (then allow_local has no effect). Everything borrowed must outlive the swarm.
  static std::unique_ptr<Swarm> Create(const SwarmOptions& options, LocalExperts* local, const Clock& clock,
                                       LogSink& log);
  virtual ~Swarm() = default;  // closes all links; not from a link's handler

  // A link that has passed the handshake (data_port.h): the swarm starts it and owns it. An older link of the same node
  // is closed. Any thread, a link's handler included.
  virtual void AddWorker(std::string node_id, std::string kernel_class, std::unique_ptr<Link> link) = 0;

  // x: [n_rows, n_in] f32; y: [pairs.size(), n_out] f32, y[i] answers pairs[i]; caller-owned, must not overlap. Blocks,
  // for twice the deadline and the local computing at most. On a fault y is partly written. One call at a time.
  // kGone or kBusy: a pair has no holder and local is not allowed (the text names layer and expert). Else the local
  // experts' fault.
  virtual Result<void> Compute(LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                               std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out) = 0;

  // Pings idle links, closes dead and overdue ones, frees closed ones. About once a second, from one thread that is not
  // a link's; the session does it.
  virtual void Tick() = 0;

  // ---- for admission; any thread

  virtual std::vector<WorkerOffer> Offers() const = 0;  // connected, not leaving
  // From now on this worker is asked for what it holds of these layers. Nothing if it has gone.
  virtual void Admit(WorkerNumber worker, std::span<const std::uint16_t> layers) = 0;
  // Cuts the worker off and tells it why. No later link of the same node is taken.
  virtual void Expel(WorkerNumber worker, const std::string& reason) = 0;
  // Pairs for this worker alone, admitted or not, outside any Compute; rows and answers travel as f32. A fault (gone,
  // refused, no answer within the deadline) is an answer too. Not counted as dispatches.
  virtual void Ask(WorkerNumber worker, LayerId layer, const Recipe& recipe, std::span<const float> x,
                   std::uint32_t n_in, std::span<const Pair> pairs, std::uint32_t n_out, OnAnswer on_answer) = 0;
  virtual std::vector<LiveSample> TakeSamples() = 0;  // since the last call; the newest 64 when there were more
  virtual void Record(const NodeCheck& check) = 0;    // what is known of a node: for Report

  // Slices with at least one usable holder; for waiting until a model is covered. Any thread.
  virtual std::uint64_t CoveredSlices() const = 0;

  virtual BackboneReport Report() const = 0;  // any thread; one LinkReport per node ever seen
};

}  // namespace linkcpp
