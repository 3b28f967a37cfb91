#include "planner/predict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace linkcpp {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12;
constexpr std::uint64_t kStatePasses = 6;
constexpr double kHopsBesideRoundTrip = 4;
constexpr double kWorkerSteps =
    3;  // of a worker's graph beside products: rows gathered, the activation, rows put in order

double Seconds(double bytes, double gbs) {
  return gbs > 0 ? bytes / (gbs * kGiga) : 0;
}

double MbitSeconds(double bytes, double mbits) {
  return mbits > 0 ? bytes * 8 / (mbits * 1e6) : 0;
}

// P(every node w gets at most limit[w] of n draws), draws independent, node w with probability p[w].
double NoneAbove(std::span<const double> p, std::span<const int> limit, int n) {
  std::vector<double> ways(static_cast<std::size_t>(n) + 1, 0.0), next(ways.size());
  ways[0] = 1;  // ways[j]: the sum over the nodes so far of prod p^m / m!, with j draws given out
  for (std::size_t w = 0; w < p.size(); ++w) {
    std::ranges::fill(next, 0.0);
    double term = 1;
    for (int m = 0; m <= std::min(limit[w], n); ++m) {
      if (m > 0) term *= p[w] / m;
      for (int j = 0; j + m <= n; ++j)
        next[static_cast<std::size_t>(j + m)] += ways[static_cast<std::size_t>(j)] * term;
    }
    std::swap(ways, next);
  }
  double factorial = 1;
  for (int i = 2; i <= n; ++i) factorial *= i;
  return std::clamp(ways.back() * factorial, 0.0, 1.0);
}

// The expectation of the largest of fixed[w] + m_w * each[w] over nodes that got m_w > 0 of n draws.
double ExpectedSlowest(std::span<const double> p, std::span<const double> fixed, std::span<const double> each, int n) {
  std::vector<double> times;
  for (std::size_t w = 0; w < p.size(); ++w) {
    for (int m = 1; m <= n; ++m) times.push_back(fixed[w] + m * each[w]);
  }
  std::ranges::sort(times);
  times.erase(std::ranges::unique(times).begin(), times.end());
  double expectation = 0, before = 0;
  std::vector<int> limit(p.size());
  for (const double time : times) {
    for (std::size_t w = 0; w < p.size(); ++w) {
      if (fixed[w] + each[w] > time) {
        limit[w] = 0;
      } else if (fixed[w] + n * each[w] <= time) {
        limit[w] = n;
      } else {
        limit[w] = static_cast<int>(std::floor((time - fixed[w]) / each[w] + 1e-9));
      }
    }
    const double at_most = NoneAbove(p, limit, n);
    expectation += time * std::max(0.0, at_most - before);
    before = std::max(before, at_most);
  }
  return expectation;
}

std::vector<double> NodeShares(std::span<const Node> nodes) {
  double total = 0;
  for (const Node& node : nodes) total += static_cast<double>(node.memory_bytes);
  std::vector<double> shares;
  for (const Node& node : nodes) shares.push_back(static_cast<double>(node.memory_bytes) / total);
  return shares;
}

// Adds up seconds by (what, bound).
class Sum {
 public:
  void Add(const std::string& what, const std::string& bound, double seconds) { by_[{what, bound}] += seconds; }
  // The slower of reading and computing is what counts.
  void AddWork(const std::string& what, double reading, double computing) {
    Add(what, reading >= computing ? "bandwidth" : "computing", std::max(reading, computing));
  }
  Speed Of(double n_tokens) const {
    Speed speed;
    double total = 0;
    for (const auto& [key, seconds] : by_) {
      if (seconds <= 0) continue;
      total += seconds;
      speed.shares.push_back({.what = key.first, .bound = key.second, .seconds = seconds});
    }
    std::ranges::stable_sort(speed.shares, std::greater(), &Share::seconds);
    speed.tokens_per_second = total > 0 ? n_tokens / total : 0;
    return speed;
  }

 private:
  std::map<std::pair<std::string, std::string>, double> by_;
};

class Predictor {
 public:
  Predictor(const ModelSizes& sizes, const Machine& machine, const RunOptions& options, const Placement& placement)
      : sizes_(sizes), machine_(machine), options_(options), place_(placement), row_bytes_(4ull * sizes.n_embd) {}

  Prediction Run() {
    Prediction result;
    result.decode = Decode(0);
    result.decode_full = Decode(1);
    result.prefill = Prefill();
    const std::uint32_t n_swarm = place_.CountLayers(sizes_, Tier::kSwarm);
    if (n_swarm > 0) {
      double rtt = 0, up = 0, layers = 0, workers = 0;
      for (const Node& node : machine_.nodes) {
        rtt = std::max(rtt, node.rtt_ms);
        up = up == 0 ? node.up_mbits : std::min(up, node.up_mbits);
      }
      for (std::size_t il = 0; il < place_.layers.size(); ++il) {
        if (place_.layers[il].experts != Tier::kSwarm) continue;
        workers += PredictSwarmLayer(sizes_.layers[il], machine_, row_bytes_).workers;
        ++layers;
      }
      result.round_trip_ceiling = RoundTripCeiling(n_swarm, rtt);
      result.uplink_ceiling = UplinkCeiling(n_swarm, workers / layers, row_bytes_, up);
    }
    return result;
  }

 private:
  // Name, GB/s and Tflop/s of what runs a layer: a device, or the CPU.
  struct Engine {
    std::string name;
    double gbs;         // matrices
    double memory_gbs;  // state
    double cache_gbs;   // K and V
    double tflops;
    bool is_cpu;
  };
  Engine EngineOf(int device) const {
    if (device < 0) {
      return {"RAM",
              machine_.dense_gbs > 0 ? machine_.dense_gbs : machine_.ram_gbs,
              machine_.ram_gbs,
              machine_.attention_gbs > 0 ? machine_.attention_gbs : machine_.ram_gbs,
              machine_.cpu_tflops,
              true};
    }
    const FastDevice& fast = machine_.devices[static_cast<std::size_t>(device)];
    return {"VRAM", fast.read_gbs, fast.read_gbs, fast.read_gbs, fast.tflops, false};
  }
  double ExpertGbs() const { return machine_.expert_gbs > 0 ? machine_.expert_gbs : machine_.ram_gbs; }

  // A matrix of b bytes and the type's ~4.5 to 8.5 bits a weight: weights ~ b * 8 / bits. Two operations a weight.
  double WeightsPerByte() const {
    const double bytes = static_cast<double>(sizes_.ExpertBytes() + sizes_.BackboneBytes() + sizes_.skipped_bytes);
    return bytes > 0 ? static_cast<double>(sizes_.n_weights) / bytes : 1;
  }

  Speed Decode(double fill) const {
    Sum sum;
    const Engine output = EngineOf(place_.output_device);
    sum.Add(output.name, "bandwidth", Seconds(static_cast<double>(sizes_.output_bytes), output.gbs));
    sum.Add("host", "steps", machine_.token_seconds);
    RunOptions one = options_;
    one.context = CellsPerSequence(sizes_, options_);
    one.n_parallel = 1;
    for (std::size_t il = 0; il < sizes_.layers.size(); ++il) {
      const LayerSizes& layer = sizes_.layers[il];
      const Engine engine = EngineOf(place_.layers[il].device);
      // llama.cpp copies the state out of the cache, reads and writes it, and copies it back: six times over memory.
      const auto state = static_cast<double>(kStatePasses * layer.recurrent_bytes);
      const double cache = fill * static_cast<double>(KvBytes(sizes_, layer, one));
      sum.Add(engine.name, "bandwidth",
              Seconds(static_cast<double>(layer.backbone_bytes), engine.gbs) + Seconds(state, engine.memory_gbs) +
                  Seconds(cache, engine.cache_gbs));
      if (engine.is_cpu) {
        sum.Add(engine.name, "steps",
                layer.n_steps * machine_.step_seconds + (layer.k_elements > 0 ? machine_.attention_seconds : 0) +
                    (layer.n_experts > 0 ? machine_.router_seconds : 0));
      }
      if (layer.expert_bytes == 0) continue;
      const double used = static_cast<double>(layer.slice_bytes) * layer.n_used;
      switch (place_.layers[il].experts) {
        case Tier::kVram: sum.Add("VRAM", "bandwidth", Seconds(used, engine.gbs)); break;
        case Tier::kRam: {
          const double part =
              static_cast<double>(place_.layers[il].vram_bytes) / static_cast<double>(layer.expert_bytes);
          sum.Add("VRAM", "bandwidth", part * Seconds(used, engine.gbs));
          sum.Add("RAM", "bandwidth", (1 - part) * Seconds(used, ExpertGbs()));
          break;
        }
        case Tier::kDisk: sum.Add("disk", "bandwidth", Seconds(used, machine_.disk_gbs)); break;
        case Tier::kSwarm: AddSwarmDecode(sum, layer); break;
        case Tier::kNowhere: break;
      }
    }
    return sum.Of(1);
  }

  void AddSwarmDecode(Sum& sum, const LayerSizes& layer) const {
    const SwarmLayer swarm = PredictSwarmLayer(layer, machine_, row_bytes_);
    double rtt = 0;
    for (const Node& node : machine_.nodes) rtt = std::max(rtt, node.rtt_ms / 1000);
    const double wire = std::max(0.0, swarm.seconds - swarm.kernel_seconds - swarm.hop_seconds);
    sum.Add("swarm", "worker", std::min(swarm.seconds, swarm.kernel_seconds));
    sum.Add("swarm", "wake-ups", swarm.hop_seconds);
    sum.Add("swarm", "round trip", std::min(wire, rtt));
    sum.Add("swarm", "uplink", std::max(0.0, wire - rtt));
  }

  // One batch of n_batch tokens.
  Speed Prefill() const {
    Sum sum;
    const double n = options_.n_batch;
    const double flops_per_byte = 2 * WeightsPerByte();
    for (std::size_t il = 0; il < sizes_.layers.size(); ++il) {
      const LayerSizes& layer = sizes_.layers[il];
      const Engine engine = EngineOf(place_.layers[il].device);
      const auto trunk = static_cast<double>(layer.backbone_bytes);
      sum.AddWork(engine.name, Seconds(trunk, engine.gbs), n * trunk * flops_per_byte / (engine.tflops * kTera));
      if (layer.expert_bytes == 0) continue;
      const double touched = DistinctExperts(layer.n_experts, layer.n_used, n) * static_cast<double>(layer.slice_bytes);
      const double flops = 2 * n * layer.n_used * static_cast<double>(layer.expert_elements) / layer.n_experts;
      const auto work = [&](const std::string& what, double gbs, double tflops) {
        sum.AddWork(what, Seconds(touched, gbs), flops / (tflops * kTera));
      };
      switch (place_.layers[il].experts) {
        case Tier::kVram: work("VRAM", engine.gbs, engine.tflops); break;
        case Tier::kRam:
        case Tier::kDisk: {
          const bool disk = place_.layers[il].experts == Tier::kDisk;
          const double source = disk ? machine_.disk_gbs : machine_.ram_gbs;
          const std::string what = disk ? "disk" : "RAM";
          // llama.cpp copies them to the layer's device for a batch; with no device the CPU computes.
          if (place_.layers[il].device >= 0 && place_.swarm_bytes == 0) {
            const double copying = Seconds(touched, std::min(source, machine_.link_gbs));
            sum.Add(source < machine_.link_gbs ? what : "copying to the device", "bandwidth", copying);
            sum.AddWork("VRAM", Seconds(touched, engine.gbs), flops / (engine.tflops * kTera));
          } else {
            work(what, source, machine_.cpu_tflops);
          }
          break;
        }
        case Tier::kSwarm: AddSwarmPrefill(sum, layer, touched, flops); break;
        case Tier::kNowhere: break;
      }
    }
    return sum.Of(n);
  }

  // A batch is large enough for every node to get its share: the slowest node's share is what the layer waits for.
  void AddSwarmPrefill(Sum& sum, const LayerSizes& layer, double touched, double flops) const {
    const std::vector<double> shares = NodeShares(machine_.nodes);
    double slowest = 0, worker = 0, rtt = 0;
    for (std::size_t w = 0; w < shares.size(); ++w) {
      const Node& node = machine_.nodes[w];
      const double sent = options_.n_batch * (1 - std::pow(1 - shares[w], layer.n_used));  // tokens with an expert here
      const double back = options_.n_batch * layer.n_used * shares[w];                     // a row for each pair
      const double compute =
          std::max(Seconds(touched * shares[w], node.read_gbs), flops * shares[w] / (node.tflops * kTera));
      const auto row = static_cast<double>(row_bytes_);
      const double all = node.rtt_ms / 1000 + compute + MbitSeconds(sent * row, node.up_mbits) +
                         MbitSeconds(back * row, node.down_mbits);
      if (all <= slowest) continue;
      slowest = all;
      worker = compute;
      rtt = node.rtt_ms / 1000;
    }
    sum.Add("swarm", "worker", worker);
    sum.Add("swarm", "round trip", rtt);
    sum.Add("swarm", "uplink", std::max(0.0, slowest - worker - rtt));
  }

  const ModelSizes& sizes_;
  const Machine& machine_;
  const RunOptions& options_;
  const Placement& place_;
  const std::uint64_t row_bytes_;
};

}  // namespace

double RoundTripCeiling(std::uint32_t n_layers, double rtt_ms) {
  return n_layers > 0 && rtt_ms > 0 ? 1000 / (n_layers * rtt_ms) : 0;
}

double UplinkCeiling(std::uint32_t n_layers, double n_workers, std::uint64_t row_bytes, double up_mbits) {
  const double seconds = MbitSeconds(n_layers * n_workers * static_cast<double>(row_bytes), up_mbits);
  return seconds > 0 ? 1 / seconds : 0;
}

double BreakEvenRttMs(std::uint64_t local_bytes, double local_gbs, std::uint64_t remote_bytes, double remote_gbs) {
  return 1000 * (Seconds(static_cast<double>(local_bytes), local_gbs) -
                 Seconds(static_cast<double>(remote_bytes), remote_gbs));
}

double DistinctExperts(std::uint32_t n_experts, std::uint32_t n_used, double n_tokens) {
  if (n_experts == 0) return 0;
  return n_experts * (1 - std::pow(1 - static_cast<double>(n_used) / n_experts, n_tokens));
}

SwarmLayer PredictSwarmLayer(const LayerSizes& layer, const Machine& machine, std::uint64_t row_bytes) {
  SwarmLayer result;
  const std::span<const Node> nodes = machine.nodes;
  if (nodes.empty()) return result;
  const std::vector<double> shares = NodeShares(nodes);
  std::vector<double> fixed, each, kernel, nothing(nodes.size(), 0.0);
  const auto row = static_cast<double>(row_bytes), slice = static_cast<double>(layer.slice_bytes);
  double here_share = 0, workers_here = 0;
  for (std::size_t w = 0; w < nodes.size(); ++w) {
    const Node& node = nodes[w];
    kernel.push_back(Seconds(slice, node.read_gbs));
    fixed.push_back(node.rtt_ms / 1000 + MbitSeconds(row, node.up_mbits));
    each.push_back(kernel.back() + MbitSeconds(row, node.down_mbits));
    const double distinct = 1 - std::pow(1 - shares[w], layer.n_used);
    result.workers += distinct;
    if (node.here) {
      here_share += shares[w];
      workers_here += distinct;
    }
  }
  result.seconds = ExpectedSlowest(shares, fixed, each, static_cast<int>(layer.n_used));
  result.kernel_seconds = ExpectedSlowest(shares, nothing, kernel, static_cast<int>(layer.n_used));
  // Workers here share memory and cores: together they are no faster than this machine.
  const double together = Seconds(here_share * layer.n_used * slice, machine.expert_gbs);
  if (together > result.kernel_seconds) {
    result.seconds += together - result.kernel_seconds;
    result.kernel_seconds = together;
  }
  // A dispatch wakes the link's thread, the worker's kernel, its link again and the host, beside the two that a round
  // trip counts; three graphs start and end: the worker's, and the host's around it. On workers here all of that runs
  // on the same cores, one worker after the other, and so does the loopback round trip.
  const double hops = kHopsBesideRoundTrip * machine.wake_seconds;
  const double first = workers_here > 0 ? hops + 2 * machine.wake_seconds : hops;
  const double further = std::max(0.0, workers_here - 1) * (hops + 2 * machine.wake_seconds);
  result.hop_seconds = first + further + 3 * machine.graph_seconds + kWorkerSteps * machine.step_seconds;
  result.seconds += result.hop_seconds;
  return result;
}

Prediction Predict(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                   const Placement& placement) {
  return Predictor(sizes, machine, options, placement).Run();
}

}  // namespace linkcpp
