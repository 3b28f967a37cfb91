// The backbone's side of the data plane: who holds what, and getting a layer's pairs computed, whatever happens.
//
// Compute() sends one frame per chosen worker, computes what nobody holds through the LocalExperts it was given, gathers,
// and moves pairs whose worker died, stalled or erred to another holder or to local. Every pair is answered exactly once
// or the call fails. Purity makes retry and hedging safe. Knows nothing of ggml, files or HTTP.
#pragma once

#include <chrono>
#include <cstdint>
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
#include "wire/control.h"

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
  bool allow_local = true;                          // LINKCPP_LOCAL
  std::chrono::milliseconds deadline{10'000};       // a worker that has not answered by then is cut off
  std::chrono::milliseconds hedge_after{0};         // 0: adaptive; ask another holder too when an answer is this late
  std::uint32_t max_pairs_per_frame = 4096;         // bigger layers are sent as several frames
};

class Swarm {
 public:
  // `local` may be nullptr (then allow_local has no effect). Everything borrowed must outlive the swarm.
  static std::unique_ptr<Swarm> Create(const SwarmOptions& options, LocalExperts* local, const Clock& clock, LogSink& log);
  virtual ~Swarm() = default;

  // A link that has passed the handshake (data_port.h): the swarm starts it and owns it. Any thread.
  virtual void AddWorker(std::string node_id, std::string kernel_class, std::unique_ptr<Link> link) = 0;

  // x: [n_rows, n_in] f32; y: [pairs.size(), n_out] f32, y[i] answers pairs[i]; caller-owned, must not overlap. Blocks.
  // One call at a time. kGone or kBusy: a pair has no holder and local is not allowed (the text names layer and expert).
  virtual Result<void> Compute(LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                               std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out) = 0;

  // Slices with at least one usable holder, of those asked for; for waiting until a model is covered. Any thread.
  virtual std::uint64_t CoveredSlices() const = 0;

  virtual BackboneReport Report() const = 0;  // any thread
};

}  // namespace linkcpp
