#include "planner/placement.h"

#include <algorithm>
#include <array>
#include <format>
#include <functional>
#include <optional>
#include <ranges>
#include <string>
#include <utility>

#include "planner/fill_room.h"

namespace linkcpp {
namespace {

constexpr std::array kTierNames{"VRAM", "RAM", "swarm", "disk", "nowhere"};

class Placer {
 public:
  Placer(const ModelSizes& sizes, const Machine& machine, const RunOptions& options, bool use_nodes,
         const KnownBuffers& known, std::optional<Filling> filling)
      : sizes_(sizes), machine_(machine), options_(options), use_nodes_(use_nodes), known_(known), filling_(filling) {
    for (std::uint32_t i = 0; i < sizes.layers.size(); ++i) {
      if (sizes.layers[i].expert_bytes > 0) moe_.push_back(i);
    }
    for (std::size_t d = 0; d < machine.devices.size(); ++d) {
      if (!machine.devices[d].left_out) last_device_ = d;
    }
  }

  Placement Run() {
    const auto n_layers = static_cast<std::uint32_t>(sizes_.layers.size());
    const std::uint32_t most = std::min(n_layers + 1, options_.max_gpu_layers.value_or(n_layers + 1));
    bool on_devices = false;
    if (last_device_) {
      // All layers on the devices with as many layers' experts as fit; else fewer layers and no experts.
      for (std::size_t keep = moe_.size() + 1; keep-- > 0 && !on_devices;) {
        on_devices = Try(most, keep);
        if (on_devices) FillDevices(most, keep);
      }
      for (std::uint32_t n = most; n-- > 1 && !on_devices;) {
        on_devices = Try(n, 0);
        if (on_devices) FillDevices(n, 0);
      }
    }
    if (!on_devices) Try(0, 0);
    PlaceRest();
    return std::move(place_);
  }

 private:
  // Without its experts.
  std::uint64_t LayerBytes(std::size_t d, const LayerSizes& layer) const {
    return BackboneBytes(d, layer) + KvBytes(sizes_, layer, options_) + StateBytes(layer, options_);
  }
  std::uint64_t BackboneBytes(std::size_t d, const LayerSizes& layer) const {
    return layer.backbone_bytes - machine_.devices[d].RefusedBytes(layer);
  }
  bool Takes(std::size_t d, const LayerSizes::ExpertPart& part) const { return machine_.devices[d].Takes(part.kind); }
  bool TakesWhole(std::size_t d, std::uint32_t il) const {
    return std::ranges::all_of(sizes_.layers[il].expert_parts, [&](const auto& part) { return Takes(d, part); });
  }
  std::uint64_t TakenBytes(std::size_t d, std::uint32_t il) const {
    if (TakesWhole(d, il)) return sizes_.layers[il].expert_bytes;
    std::uint64_t bytes = 0;
    for (const LayerSizes::ExpertPart& part : sizes_.layers[il].expert_parts) bytes += Takes(d, part) ? part.bytes : 0;
    return bytes;
  }

  // What is known of the same layout or of one like it; else the estimate.
  template <class Pick>
  std::uint64_t Compute(std::uint64_t device_experts, const Pick& pick, std::uint64_t estimate) const {
    const LayoutKey key =
        KeyOf(sizes_, options_, place_.n_gpu_layers, place_.offloads, device_experts, place_.SplitHash());
    if (const ComputeBuffers* exact = known_.Find(key)) return pick(*exact);
    if (const ComputeBuffers* near = known_.Nearest(key)) {
      const bool of_other_layers = near->n_gpu_layers != place_.n_gpu_layers;
      return known_.optimistic && of_other_layers ? pick(*near) / 8 * 7 : pick(*near);
    }
    return known_.optimistic ? estimate / 4 * 3 : estimate;
  }
  std::uint64_t DeviceCompute(std::size_t d, std::uint64_t device_experts) const {
    const bool has_output = d == last_device_;
    return Compute(
        device_experts, [d](const ComputeBuffers& buffers) { return buffers.devices[d]; },
        GpuComputeBytes(sizes_, options_, has_output, place_.offloads));
  }
  std::uint64_t HostCompute(bool runs_layers, bool has_output) const {
    return Compute(
        place_.DeviceExpertBytes(), [](const ComputeBuffers& buffers) { return buffers.host; },
        runs_layers ? CpuComputeBytes(sizes_, options_, has_output) : HostBufferBytes(sizes_, options_));
  }
  std::uint64_t Capacity(std::size_t d) const {
    const std::uint64_t bytes = machine_.devices[d].memory_bytes;
    return bytes > known_.margin_bytes ? bytes - known_.margin_bytes : 0;
  }

  // Layers n_layers - (ngl - 1) and up and the output on the devices, each device taking as many as it holds; the first
  // `keep` MoE layers with their experts. False: does not fit.
  bool Try(std::uint32_t ngl, std::size_t keep) {
    const auto n_layers = static_cast<std::uint32_t>(sizes_.layers.size());
    place_ = {};
    place_.n_gpu_layers = ngl;
    place_.layers.resize(n_layers);
    place_.devices.resize(machine_.devices.size());
    place_.device_layers.resize(machine_.devices.size());
    if (ngl == 0) return true;
    const std::uint32_t first = n_layers + 1 - ngl;
    const std::uint32_t end_of_kept = keep == moe_.size() ? n_layers : moe_[keep];
    place_.offloads = end_of_kept < n_layers;
    std::uint64_t kept_bytes = 0;
    for (std::uint32_t i = first; i < end_of_kept; ++i) {
      kept_bytes += sizes_.layers[i].expert_bytes;
      place_.offloads = place_.offloads || AnyDevice([&](std::size_t d) { return !TakesWhole(d, i); });
    }
    std::uint32_t il = first;
    for (std::size_t d = 0; d < machine_.devices.size(); ++d) {
      if (machine_.devices[d].left_out) continue;
      Held& held = place_.devices[d];
      held.reserve = kDeviceReserveBytes;
      const bool last = d == last_device_;
      held.compute = DeviceCompute(d, kept_bytes);
      if (last) held.backbone = sizes_.output_bytes - machine_.devices[d].RefusedOutputBytes(sizes_);
      for (; il < n_layers; ++il) {
        const LayerSizes& layer = sizes_.layers[il];
        const bool with_experts = layer.expert_bytes > 0 && il < end_of_kept;
        const bool is_whole = with_experts && TakesWhole(d, il);
        if (with_experts && !is_whole && options_.split_layers == SplitLayers::kNever) return false;
        const std::uint64_t experts = with_experts ? TakenBytes(d, il) : 0;
        if (held.Total() + LayerBytes(d, layer) + experts > Capacity(d)) break;
        held.backbone += BackboneBytes(d, layer);
        held.kv += KvBytes(sizes_, layer, options_);
        held.state += StateBytes(layer, options_);
        held.experts += experts;
        place_.layers[il].device = static_cast<int>(d);
        ++place_.device_layers[d];
        if (is_whole) place_.layers[il].experts = Tier::kVram;
        if (!with_experts || is_whole) continue;  // what a device does not take stays in RAM
        for (const LayerSizes::ExpertPart& part : layer.expert_parts) {
          if (Takes(d, part)) AddPart(place_.layers[il], part);
        }
      }
      if (last) {
        place_.output_device = static_cast<int>(d);
        ++place_.device_layers[d];
        if (il < n_layers) return false;
      }
      if (held.Total() > Capacity(d)) return false;  // without any layer it has a compute buffer too
    }
    return true;
  }

  // Single tensors of the layers on devices whose experts did not fit. Where a device is to be filled, a few whole
  // layers fewer with tensors in their place may do it better, since more sums can be reached.
  void FillDevices(std::uint32_t ngl, std::size_t keep) {
    constexpr std::uint64_t kFull = 1 << 20;
    if (!AnyDevice([this](std::size_t d) { return HasRoomForParts(d); })) return;
    const bool fills = AnyDevice([this](std::size_t d) { return IsFilled(options_, machine_.devices[d]); });
    const std::size_t tradable = fills ? keep : 0;
    if (filling_) {
      if (filling_->fewer_layers <= tradable) FillWith(*filling_, ngl, keep);
      return;
    }
    Placement best = place_;
    for (std::size_t fewer = 0; fewer <= std::min(kMostFewerLayers, tradable); ++fewer) {
      if (!FillWith({.fewer_layers = fewer}, ngl, keep)) continue;
      if (place_.DeviceBytes() > best.DeviceBytes()) best = place_;
      if (!AnyDevice([this](std::size_t d) { return Rest(d) >= kFull; })) break;
    }
    place_ = std::move(best);
  }
  bool FillWith(const Filling& filling, std::uint32_t ngl, std::size_t keep) {
    const std::size_t whole = keep - filling.fewer_layers;
    if (whole < keep && !Try(ngl, whole)) return false;
    for (std::size_t d = 0; d < machine_.devices.size(); ++d) {
      if (!machine_.devices[d].left_out && HasRoomForParts(d))
        FillWithParts(static_cast<int>(d), whole, filling.first_kind);
    }
    return true;
  }
  template <class Holds>
  bool AnyDevice(const Holds& holds) const {
    return std::ranges::any_of(std::views::iota(std::size_t{0}, machine_.devices.size()),
                               [&](std::size_t d) { return !machine_.devices[d].left_out && holds(d); });
  }
  bool HasRoomForParts(std::size_t d) const {
    const FastDevice& device = machine_.devices[d];
    if (options_.split_layers == SplitLayers::kNever) return false;
    return Rest(d) > (IsFilled(options_, device) ? 0 : device.memory_bytes / kLargeRest);
  }
  std::uint64_t Rest(std::size_t d) const { return Capacity(d) - std::min(Capacity(d), place_.devices[d].Total()); }
  void FillWithParts(int d, std::size_t first_left_out, std::optional<std::size_t> first_kind) {
    struct Part {
      std::size_t rank;
      std::uint32_t layer;
      const LayerSizes::ExpertPart* part;
    };
    Held& held = place_.devices[static_cast<std::size_t>(d)];
    std::vector<Part> parts;  // the nearest layers first
    for (std::size_t k = first_left_out; k < moe_.size(); ++k) {
      if (place_.layers[moe_[k]].device != d) continue;
      const auto& kinds = sizes_.layers[moe_[k]].expert_parts;
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        if (!Takes(static_cast<std::size_t>(d), kinds[i])) continue;
        const std::size_t rank = first_kind ? (i + kinds.size() - *first_kind % kinds.size()) % kinds.size() : 0;
        parts.push_back({rank, moe_[k], &kinds[i]});
      }
    }
    std::ranges::stable_sort(parts, {}, &Part::rank);
    std::vector<std::uint64_t> sizes;
    for (const Part& part : parts) sizes.push_back(part.part->bytes);
    for (const std::size_t i : FillRoom(sizes, Rest(static_cast<std::size_t>(d)))) {
      const auto& [rank, il, part] = parts[i];
      held.experts += part->bytes;
      AddPart(place_.layers[il], *part);
    }
    for (std::size_t k = first_left_out; k < moe_.size(); ++k) {
      LayerPlace& layer = place_.layers[moe_[k]];
      if (layer.device != d || layer.vram_parts.size() < sizes_.layers[moe_[k]].expert_parts.size()) continue;
      layer = {.device = d, .experts = Tier::kVram};  // whole after all
    }
  }
  static void AddPart(LayerPlace& layer, const LayerSizes::ExpertPart& part) {
    layer.vram_bytes += part.bytes;
    layer.vram_parts.push_back(part.name);
  }
  void GiveBackParts(LayerPlace& layer) {
    if (layer.vram_bytes == 0) return;
    place_.devices[static_cast<std::size_t>(layer.device)].experts -= layer.vram_bytes;
    layer.vram_bytes = 0;
    layer.vram_parts.clear();
  }

  const FastDevice& DeviceAt(int d) const { return machine_.devices[static_cast<std::size_t>(d)]; }

  // The host's share, then the experts that are left: RAM, swarm, disk.
  void PlaceRest() {
    Held& ram = place_.ram;
    ram.backbone = sizes_.embedding_bytes;
    const bool cpu_only = place_.output_device < 0;
    if (cpu_only && !sizes_.tied_embeddings) ram.backbone += sizes_.output_bytes;
    if (cpu_only && sizes_.tied_embeddings) ram.backbone += sizes_.output_bytes - sizes_.embedding_bytes;
    if (cpu_only && machine_.amx) ram.backbone += sizes_.output_amx_bytes;
    // With tied embeddings the output is then the embedding itself.
    if (!cpu_only && !sizes_.tied_embeddings) ram.backbone += DeviceAt(place_.output_device).RefusedOutputBytes(sizes_);
    bool cpu_runs_layers = cpu_only;
    for (std::size_t i = 0; i < sizes_.layers.size(); ++i) {
      if (place_.layers[i].device >= 0) {
        ram.backbone += DeviceAt(place_.layers[i].device).RefusedBytes(sizes_.layers[i]);
        continue;
      }
      cpu_runs_layers = true;
      ram.backbone += sizes_.layers[i].backbone_bytes + (machine_.amx ? sizes_.layers[i].amx_bytes : 0);
      ram.kv += KvBytes(sizes_, sizes_.layers[i], options_);
      ram.state += StateBytes(sizes_.layers[i], options_);
    }
    ram.compute = HostCompute(cpu_runs_layers, cpu_only);
    const std::uint64_t overdraft = ram.Total() > machine_.ram_bytes ? ram.Total() - machine_.ram_bytes : 0;

    std::vector<std::uint64_t> node_left;
    if (use_nodes_) {
      for (const Node& node : machine_.nodes) node_left.push_back(node.memory_bytes);
    }
    // The nearest layers first, and once a tier is full it stays full: each tier holds one run of layers.
    Tier tier = Tier::kRam;
    std::uint64_t nowhere = 0;
    for (const std::uint32_t il : moe_) {
      if (place_.layers[il].experts == Tier::kVram) continue;
      const LayerSizes& layer = sizes_.layers[il];
      if (tier == Tier::kRam) {
        const std::uint64_t rest = layer.expert_bytes - place_.layers[il].vram_bytes;
        if (overdraft == 0 && ram.Total() + rest <= machine_.ram_bytes) {
          ram.experts += rest;
          place_.layers[il].experts = Tier::kRam;
          continue;
        }
        tier = Tier::kSwarm;
      }
      GiveBackParts(place_.layers[il]);  // only what is in RAM is shared with a device
      if (tier == Tier::kSwarm) {
        if (TakeSlices(node_left, layer)) {
          place_.swarm_bytes += layer.expert_bytes;
          place_.layers[il].experts = Tier::kSwarm;
          continue;
        }
        tier = Tier::kDisk;
      }
      if (machine_.disk_gbs > 0) {
        place_.disk_bytes += layer.expert_bytes;
        place_.layers[il].experts = Tier::kDisk;
      } else {
        nowhere += layer.expert_bytes;
      }
    }
    place_.feasible = overdraft == 0 && nowhere == 0;
    if (!place_.feasible) {
      const std::uint64_t left = machine_.ram_bytes > ram.Total() ? machine_.ram_bytes - ram.Total() : 0;
      place_.missing_bytes = overdraft + (nowhere > left ? nowhere - left : 0);
    }
  }

  // All slices of a layer onto nodes that have room, the emptiest first. False, and nothing taken: no room.
  static bool TakeSlices(std::vector<std::uint64_t>& node_left, const LayerSizes& layer) {
    std::uint64_t room = 0;
    for (const std::uint64_t left : node_left) room += left / layer.slice_bytes;
    if (room < layer.n_experts) return false;
    for (std::uint32_t e = 0; e < layer.n_experts; ++e) *std::ranges::max_element(node_left) -= layer.slice_bytes;
    return true;
  }

  const ModelSizes& sizes_;
  const Machine& machine_;
  const RunOptions& options_;
  const bool use_nodes_;
  const KnownBuffers& known_;
  const std::optional<Filling> filling_;
  std::vector<std::uint32_t> moe_;
  std::optional<std::size_t> last_device_;  // that is not left out; nullopt: none
  Placement place_;
};

}  // namespace

bool IsFilled(const RunOptions& options, const FastDevice& device) {
  return options.split_layers == SplitLayers::kAlways ||
         (options.split_layers == SplitLayers::kByDevice && device.here);
}

const char* TierName(Tier tier) {
  return kTierNames[static_cast<std::size_t>(tier)];
}

std::uint64_t Placement::ExpertBytes(const ModelSizes& sizes, Tier tier) const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (tier == Tier::kVram) sum += layers[i].vram_bytes;
    if (sizes.layers[i].expert_bytes > 0 && layers[i].experts == tier)
      sum += sizes.layers[i].expert_bytes - layers[i].vram_bytes;
  }
  return sum;
}

std::uint64_t Placement::DeviceBytes() const {
  std::uint64_t sum = 0;
  for (const Held& held : devices) sum += held.Weights() + held.Caches();
  return sum;
}

std::uint64_t Placement::DeviceExpertBytes() const {
  std::uint64_t sum = 0;
  for (const Held& held : devices) sum += held.experts;
  return sum;
}

std::uint64_t Placement::SplitHash() const {
  std::string text;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const std::string& part : layers[i].vram_parts) text += std::format("{} {},", i, part);
  }
  return text.empty() ? 0 : std::hash<std::string>{}(text);
}

std::uint32_t Placement::CountLayers(const ModelSizes& sizes, Tier tier) const {
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (sizes.layers[i].expert_bytes > 0 && layers[i].experts == tier) ++count;
  }
  return count;
}

std::uint32_t GpuLayersArgument(const ModelSizes& sizes, const Placement& placement) {
  return placement.n_gpu_layers > 0 ? placement.n_gpu_layers + sizes.n_skipped_layers : 0;
}

std::vector<std::uint32_t> TensorSplitArgument(const ModelSizes& sizes, const Machine& machine,
                                               const Placement& placement) {
  std::vector<std::uint32_t> split;
  for (std::size_t d = 0; d < machine.devices.size() && placement.n_gpu_layers > 0; ++d) {
    if (!machine.devices[d].left_out) split.push_back(placement.device_layers[d]);
  }
  if (split.size() < 2) return {};
  split.back() += sizes.n_skipped_layers;
  return split;
}

Machine WithoutUselessDevices(const ModelSizes& sizes, const Machine& machine, const RunOptions& options) {
  if (machine.devices.size() < 2) return machine;
  const auto worth = [&](const Machine& one) {
    const Placement place = PlaceModel(sizes, one, options, true);
    return std::pair(place.feasible, place.DeviceBytes());
  };
  Machine best = machine;
  auto most = worth(best);
  for (bool better = true; better;) {
    better = false;
    const Machine from = best;
    for (std::size_t d = 0; d < machine.devices.size(); ++d) {
      Machine fewer = from;
      fewer.devices[d].left_out = true;
      if (from.devices[d].left_out || std::ranges::all_of(fewer.devices, &FastDevice::left_out)) continue;
      // One that makes no difference is left out too, but not before one that does.
      const auto bytes = worth(fewer);
      if (bytes < most || (bytes == most && better)) continue;
      best = std::move(fewer);
      most = bytes;
      better = true;
    }
  }
  return best;
}

Placement PlaceModel(const ModelSizes& sizes, const Machine& machine, const RunOptions& options, bool use_nodes,
                     const KnownBuffers& known, std::optional<Filling> filling) {
  Placement placement = Placer(sizes, machine, options, use_nodes, known, filling).Run();
  if (placement.swarm_bytes == 0 || options.split_layers == SplitLayers::kNever) return placement;
  RunOptions whole = options;  // a layer that nodes share with a device would be no slice's
  whole.split_layers = SplitLayers::kNever;
  return Placer(sizes, machine, whole, use_nodes, known, {}).Run();
}

}  // namespace linkcpp
