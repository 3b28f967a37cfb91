// Where every layer's parts go: attention, router, shared expert and KV on the devices; routed experts layer by layer
// over four tiers, VRAM before RAM before the swarm before the disk. The last layers leave a tier first.
//
// Pure. A layer's experts stay together, but where that would leave much of a device empty (SplitLayers); llama.cpp
// places whole tensors. Says what is missing when it does not fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/known_buffers.h"
#include "planner/machine.h"
#include "planner/memory.h"
#include "planner/model_sizes.h"

namespace linkcpp {

enum class Tier : std::uint8_t { kVram, kRam, kSwarm, kDisk, kNowhere };
const char* TierName(Tier tier);

struct LayerPlace {
  int device = -1;                      // runs attention and holds KV; -1: the CPU
  Tier experts = Tier::kNowhere;        // of a layer that has experts
  std::vector<std::string> vram_parts;  // those of its expert tensors that are on the device all the same
  std::uint64_t vram_bytes = 0;
};

// What is held where, in bytes.
struct Held {
  std::uint64_t backbone = 0, experts = 0, kv = 0, state = 0, compute = 0, reserve = 0;
  std::uint64_t Weights() const { return backbone + experts; }
  std::uint64_t Caches() const { return kv + state; }
  std::uint64_t Total() const { return backbone + experts + kv + state + compute + reserve; }
};

struct Placement {
  bool feasible = false;
  std::uint64_t missing_bytes = 0;  // how much more RAM would make it feasible
  std::uint32_t n_gpu_layers = 0;   // llama.cpp's -ngl: the last so many layers and the output
  bool offloads = false;            // of layers on devices some experts lie elsewhere
  std::vector<LayerPlace> layers;
  int output_device = -1;
  std::vector<std::uint32_t> device_layers;  // how many of the -ngl layers each device has: llama.cpp's -ts
  std::vector<Held> devices;
  Held ram;
  std::uint64_t swarm_bytes = 0, disk_bytes = 0;

  std::uint64_t ExpertBytes(const ModelSizes& sizes, Tier tier) const;
  std::uint64_t DeviceBytes() const;  // weights and caches
  std::uint64_t DeviceExpertBytes() const;
  std::uint64_t SplitHash() const;  // of which layers' tensors are on devices alone; 0: whole layers only
  std::uint32_t CountLayers(const ModelSizes& sizes, Tier tier) const;
};

// llama.cpp's -ngl and -ts for it: prediction layers count among the last ones, though they are not loaded.
std::uint32_t GpuLayersArgument(const ModelSizes& sizes, const Placement& placement);
std::vector<std::uint32_t> TensorSplitArgument(const ModelSizes& sizes, const Machine& machine,
                                               const Placement& placement);  // one device: {}

// Ways to fill a device by single tensors: so many layers are not whole though they would fit, and the tensors of the
// others are taken layer by layer, or kind by kind from this one on (of gate, up, down: 0, 1, 2).
inline constexpr std::size_t kMostFewerLayers = 4;
struct Filling {
  std::size_t fewer_layers = 0;
  std::optional<std::size_t> first_kind = {};
};

// `use_nodes`: may experts go to machine.nodes? `known`: compute buffers someone asked about, used where they apply.
// `filling`: exactly this one; default: layer by layer with as few layers less as fill a device.
Placement PlaceModel(const ModelSizes& sizes, const Machine& machine, const RunOptions& options, bool use_nodes,
                     const KnownBuffers& known = {}, std::optional<Filling> filling = {});

// The machine with those devices left out without which as much or more would lie on the others: llama.cpp gives each a
// compute buffer, and the last one the output. By estimates; one device stays.
Machine WithoutUselessDevices(const ModelSizes& sizes, const Machine& machine, const RunOptions& options);

// Is this device to be filled to the last tensor?
bool IsFilled(const RunOptions& options, const FastDevice& device);

}  // namespace linkcpp
