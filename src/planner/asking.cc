#include "planner/asking.h"

#include <algorithm>
#include <format>
#include <functional>
#include <optional>
#include <utility>

#include "planner/wiring.h"

namespace linkcpp {
namespace {

constexpr int kMostRounds = 16;

// What the answer says beyond the weights and caches that the tensors tell.
// kMalformed: an answer that leaves out a device with layers.
Result<ComputeBuffers> BuffersOf(const std::vector<LaidOut>& answer, const ModelSizes& sizes, const Machine& machine,
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
    if (!used && placement.device_layers[d] > 0) {
      return Fail(FaultCode::kMalformed, "the answer does not count {}", machine.devices[d].name);
    }
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

class Asker {
 public:
  Asker(const ModelSizes& sizes, const Machine& machine, const RunOptions& options, const std::string& model_path,
        const AskLayout& ask, KnownBuffers& known)
      : sizes_(sizes), machine_(machine), options_(options), model_path_(model_path), ask_(ask), known_(known) {}

  // The placement that what was heard leads to; of layouts like it, after kMostRounds, and then `exact` is false.
  Result<Placement> Place(bool& exact) {
    exact = true;
    for (int round = 0; round < kMostRounds; ++round) {
      known_.optimistic = round > 0;  // the estimate is mostly right, and then one question is enough
      Placement placement = PlaceModel(sizes_, machine_, options_, true, known_);
      const bool asked_before = Heard(placement) != nullptr;
      const std::uint64_t rest = LeastRest(placement);
      ASSIGN_OR_RETURN(const std::uint64_t over, Settle(placement));
      if (!asked_before) continue;  // it was placed by other buffers
      if (over == 0) {
        known_.optimistic = false;
        return FillBetter(std::move(placement));
      }
      // It was placed by what is known of others like it, and had that much room: the next is smaller.
      known_.margin_bytes = std::max(known_.margin_bytes, rest) + over;
    }
    known_.optimistic = false;
    exact = false;
    return PlaceModel(sizes_, machine_, options_, true, known_);
  }
  int questions() const { return questions_; }
  std::uint64_t excess_bytes() const { return excess_bytes_; }

 private:
  LayoutKey Key(const Placement& placement) const {
    return KeyOf(sizes_, options_, placement.n_gpu_layers, placement.offloads, placement.DeviceExpertBytes(),
                 placement.SplitHash());
  }
  // Of the fullest device, as it was placed; none: 0.
  std::uint64_t LeastRest(const Placement& placement) const {
    std::uint64_t least = UINT64_MAX;
    for (std::size_t d = 0; d < placement.devices.size() && placement.n_gpu_layers > 0; ++d) {
      const std::uint64_t total = placement.devices[d].Total(), capacity = machine_.devices[d].memory_bytes;
      if (!machine_.devices[d].left_out) least = std::min(least, capacity > total ? capacity - total : 0);
    }
    return least == UINT64_MAX ? 0 : least;
  }
  const ComputeBuffers* Heard(const Placement& placement) const { return known_.Find(Key(placement)); }

  // Asks about exactly this layout unless that was done. By how much the fullest device is too small for it.
  Result<std::uint64_t> Settle(Placement& placement) {
    if (Heard(placement) == nullptr) {
      const Wiring wiring = WirePlacement(sizes_, machine_, options_, placement, model_path_, {});
      ASSIGN_OR_RETURN(const std::vector<LaidOut> answer,
                       ask_(LayoutRequestOf(sizes_, machine_, options_, placement, wiring, model_path_)));
      ++questions_;
      ASSIGN_OR_RETURN(ComputeBuffers buffers, BuffersOf(answer, sizes_, machine_, placement, excess_bytes_));
      known_.Add(Key(placement), std::move(buffers));
    }
    const ComputeBuffers& heard = *Heard(placement);
    std::uint64_t over = 0;
    for (std::size_t d = 0; d < placement.devices.size(); ++d) {
      placement.devices[d].compute = placement.n_gpu_layers > 0 ? heard.devices[d] : 0;
      const std::uint64_t total = placement.devices[d].Total(), capacity = machine_.devices[d].memory_bytes;
      over = std::max(over, total > capacity ? total - capacity : 0);
    }
    placement.ram.compute = heard.host;
    return over;
  }

  // A device that is to be filled may hold more with other tensors of its layers: some sums fit better, and what is
  // computed between tensors here and there takes some MiB more or less, which only asking tells (16 MiB on
  // olmoe-1b-7b). Each way of filling is taken to need the least heard of such layouts until it was asked about, and
  // what it answered from then on; the one that would hold most is asked about next.
  Placement FillBetter(Placement best) {
    constexpr std::size_t kKinds = 3;
    constexpr int kMostQuestions = 16;  // 0.05 s each on the 122B
    constexpr std::uint64_t kWorth = 1 << 20;
    constexpr std::uint64_t kMostState = 256 << 20;  // on the CPU, which libllama gets and clears for every answer
    bool fills = false;
    for (const FastDevice& device : machine_.devices) fills = fills || IsFilled(options_, device);
    if (!fills || !best.feasible || !best.offloads || best.n_gpu_layers == 0 || best.ram.state > kMostState)
      return best;
    RunOptions whole_layers = options_;
    whole_layers.split_layers = SplitLayers::kNever;
    Placement whole = PlaceModel(sizes_, machine_, whole_layers, true, known_);
    if (!Settle(whole)) return best;  // takes little

    struct Candidate {
      Filling filling;
      Placement placement;
    };
    std::vector<Candidate> candidates;
    const auto add = [&](const Filling& filling, const ComputeBuffers& buffers) {
      KnownBuffers known;
      known.Add(Key(best), buffers);
      Placement other = PlaceModel(sizes_, machine_, options_, true, known, filling);
      // What every token reads is not traded for experts.
      if (other.feasible && other.n_gpu_layers >= best.n_gpu_layers &&
          other.DeviceBytes() > best.DeviceBytes() + kWorth)
        candidates.push_back({filling, std::move(other)});
    };
    const ComputeBuffers least = known_.LeastLike(Key(best));
    for (std::size_t fewer = 0; fewer <= kMostFewerLayers; ++fewer) {
      add({.fewer_layers = fewer}, least);
      for (std::size_t kind = 0; kind < kKinds; ++kind) add({.fewer_layers = fewer, .first_kind = kind}, least);
    }
    for (const int end = questions_ + kMostQuestions; !candidates.empty() && questions_ < end;) {
      const auto most = std::ranges::max_element(
          candidates, {}, [](const Candidate& candidate) { return candidate.placement.DeviceBytes(); });
      auto [filling, placement] = std::move(*most);
      candidates.erase(most);
      const bool was_heard = Heard(placement) != nullptr;
      const auto over = Settle(placement);
      if (!over) break;
      if (*over == 0 && placement.ram.Total() <= machine_.ram_bytes) return std::move(placement);
      if (!was_heard) add(filling, *Heard(placement));
    }
    return best;
  }

  const ModelSizes& sizes_;
  const Machine& machine_;
  const RunOptions& options_;
  const std::string& model_path_;
  const AskLayout& ask_;
  KnownBuffers& known_;
  std::uint64_t excess_bytes_ = 0;
  int questions_ = 0;
};

}  // namespace

Placement PlaceAsking(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                      const std::string& model_path, const AskLayout& ask, KnownBuffers& known,
                      std::vector<std::string>& assumptions, std::string& refusal) {
  if (ask) {
    Asker asker(sizes, machine, options, model_path, ask, known);
    bool exact = false;
    auto placement = asker.Place(exact);
    if (placement) {
      const char* const plural = asker.questions() == 1 ? "" : "s";
      assumptions.push_back(
          exact ? std::format("compute buffers: the installed llama.cpp says so, asked about {} layout{}",
                              asker.questions(), plural)
                : std::format("compute buffers: as the installed llama.cpp says of {} layouts like this one",
                              asker.questions()));
      if (asker.excess_bytes() > 0) {
        assumptions.push_back(std::format(
            "llama.cpp would take {:.1f} MiB more for weights and caches than the tensors tell: counted as compute",
            static_cast<double>(asker.excess_bytes()) / (1 << 20)));
      }
      return *std::move(placement);
    }
    assumptions.push_back(std::format("compute buffers are estimated: {}", placement.error().text));
    if (placement.error().code == FaultCode::kRefused) refusal = placement.error().text;
    known = {};
  }
  if (sizes.compute_is_a_guess) {
    assumptions.push_back(
        std::format("the compute buffer of {} is not known: the figure is too small, leave room", sizes.architecture));
  }
  return PlaceModel(sizes, machine, options, true, known);
}

}  // namespace linkcpp
