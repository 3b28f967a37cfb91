#include "planner/asking.h"

#include <algorithm>
#include <format>

#include "planner/wiring.h"

namespace linkcpp {
namespace {

constexpr int kMostRounds = 16;

// What the answer says beyond the weights and caches that the tensors tell.
ComputeBuffers Heard(const std::vector<LaidOut>& answer, const ModelSizes& sizes, const Machine& machine,
                     const Placement& placement, std::uint64_t& excess) {
  ComputeBuffers buffers;
  LaidOut host;
  for (const LaidOut& one : answer) {
    if (std::ranges::contains(machine.devices, one.buffer_type, &FastDevice::name)) continue;
    host.model_bytes += one.model_bytes;
    host.context_bytes += one.context_bytes;
    host.compute_bytes += one.compute_bytes;
  }
  excess = 0;
  const auto add_up = [&excess](const LaidOut& heard, std::uint64_t derived) {
    const std::uint64_t asked = heard.model_bytes + heard.context_bytes;
    const std::uint64_t more = asked > derived + derived / 1000 ? asked - derived : 0;  // padding is less than that
    excess += more;
    return heard.compute_bytes + more;
  };
  for (std::size_t d = 0; d < machine.devices.size(); ++d) {
    const auto found = std::ranges::find(answer, machine.devices[d].name, &LaidOut::buffer_type);
    const bool used = found != answer.end() && d < placement.devices.size();
    buffers.devices.push_back(used ? add_up(*found, placement.devices[d].Weights() + placement.devices[d].Caches())
                                   : 0);
  }
  // To llama.cpp all experts outside the devices are the host's: those on nodes, on disk, and those without a place
  // too.
  std::uint64_t elsewhere = 0;
  for (const Tier tier : {Tier::kSwarm, Tier::kDisk, Tier::kNowhere}) elsewhere += placement.ExpertBytes(sizes, tier);
  buffers.host = add_up(host, placement.ram.Weights() + placement.ram.Caches() + elsewhere);
  return buffers;
}

// With what was heard about exactly this layout: by how much the fullest device is too small for it.
std::uint64_t Settle(const ComputeBuffers& heard, const Machine& machine, Placement& placement) {
  std::uint64_t over = 0;
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    placement.devices[d].compute = placement.n_gpu_layers > 0 ? heard.devices[d] : 0;
    const std::uint64_t total = placement.devices[d].Total(), capacity = machine.devices[d].memory_bytes;
    over = std::max(over, total > capacity ? total - capacity : 0);
  }
  return over;
}

}  // namespace

Placement PlaceAsking(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                      const std::string& model_path, const AskLayout& ask, KnownBuffers& known,
                      std::vector<std::string>& assumptions, std::string& refusal) {
  const auto estimate = [&] {
    if (sizes.compute_is_a_guess) {
      assumptions.push_back(std::format("the compute buffer of {} is not known: the figure is too small, leave room",
                                        sizes.architecture));
    }
    return PlaceModel(sizes, machine, options, true, known);
  };
  if (!ask) return estimate();
  std::uint64_t excess = 0;
  int questions = 0;
  known.optimistic = true;
  for (int round = 0; round < kMostRounds; ++round) {
    Placement placement = PlaceModel(sizes, machine, options, true, known);
    const LayoutKey key =
        KeyOf(sizes, options, placement.n_gpu_layers, placement.offloads, placement.DeviceExpertBytes());
    if (const ComputeBuffers* heard = known.Find(key)) {
      const std::uint64_t over = Settle(*heard, machine, placement);
      known.margin_bytes += over;  // it was placed by what is known of others like it: the next is smaller
      if (over > 0) continue;
      known.optimistic = false;
      assumptions.push_back(std::format("compute buffers: the installed llama.cpp says so, asked about {} layout{}",
                                        questions, questions == 1 ? "" : "s"));
      if (excess > 0) {
        assumptions.push_back(std::format(
            "llama.cpp would take {:.1f} MiB more for weights and caches than the tensors tell: counted as compute",
            static_cast<double>(excess) / (1 << 20)));
      }
      return placement;
    }
    const Wiring wiring = WirePlacement(sizes, machine, options, placement, model_path, {});
    const auto answer = ask(LayoutRequestOf(sizes, machine, options, placement, wiring, model_path));
    if (!answer) {
      assumptions.push_back(std::format("compute buffers are estimated: {}", answer.error().text));
      if (answer.error().code == FaultCode::kRefused) refusal = answer.error().text;
      known = {};
      return estimate();
    }
    ++questions;
    known.Add(key, Heard(*answer, sizes, machine, placement, excess));
  }
  known.optimistic = false;
  assumptions.push_back(
      std::format("compute buffers: as the installed llama.cpp says of {} layouts like this one", questions));
  return PlaceModel(sizes, machine, options, true, known);
}

}  // namespace linkcpp
