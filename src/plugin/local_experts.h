// Experts that nobody holds, computed in the host's process from the model file.
//
// Slices are read when they are needed and kept, least recently used first to go, within a memory budget. They are held
// as the host itself would hold them (kernel/expert_stack.h), so the bits are those of the host alone. Nothing is
// allocated before the first pair comes.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "gguf/model.h"
#include "kernel/device.h"
#include "kernel/expert_stack.h"
#include "swarm/swarm.h"

namespace linkcpp {

class CpuExperts final : public LocalExperts {
 public:
  // `model` must outlive this. memory_bytes 0: a quarter of what is free, 1 GiB at most.
  CpuExperts(const ModelFile& model, std::uint64_t memory_bytes, int n_threads, LogSink& log);

  Result<void> Compute(LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                       std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out) override;

 private:
  // All layers of one shape share a stack.
  struct Pool {
    std::unique_ptr<ExpertStack> stack;
    std::list<SliceId> by_use;  // most recent first
    struct Held {
      std::uint32_t slot;
      std::list<SliceId>::iterator use;
    };
    std::unordered_map<SliceId, Held> held;
  };

  Result<Pool*> PoolFor(const MoeLayer& layer);
  Result<std::uint32_t> SlotFor(Pool& pool, const MoeLayer& layer, ExpertId expert);

  const ModelFile& model_;
  const std::uint64_t memory_bytes_;
  const int n_threads_;
  LogSink& log_;
  std::unique_ptr<Device> device_;
  std::map<ExpertShape, Pool> pools_;
  std::vector<std::byte> scratch_;
};

}  // namespace linkcpp
