#include "planner/predict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "planner/swarm_layer.h"

namespace linkcpp {
namespace {

constexpr double kTera = 1e12;
constexpr std::uint64_t kStatePasses = 6;
constexpr std::uint32_t kDeltaNetSteps = 27;      // of LayerSizes::n_steps, of which
constexpr std::uint32_t kDeltaNetPlainSteps = 3;  // are as large as a row and not measured with the recurrence
// llama.cpp's own work for a row of a batch, between graphs: masks, positions, ids; 2.4 and 3.4 ms for 512 rows on two
// models (a Sapphire Rapids Xeon, 0.7.0).
constexpr double kHostSecondsARow = 5.5e-6;

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
  static bool HasDeltaNet(const LayerSizes& layer) {
    return layer.recurrent_bytes > 0 && layer.n_steps >= kDeltaNetSteps;
  }
  double ExpertGbs() const { return machine_.expert_gbs > 0 ? machine_.expert_gbs : machine_.ram_gbs; }

  // A matrix of b bytes and the type's ~4.5 to 8.5 bits a weight: weights ~ b * 8 / bits. Two operations a weight.
  double WeightsPerByte() const {
    const double bytes = static_cast<double>(sizes_.ExpertBytes() + sizes_.BackboneBytes() + sizes_.skipped_bytes);
    return bytes > 0 ? static_cast<double>(sizes_.n_weights) / bytes : 1;
  }

  // What its device does not compute with stays in RAM, and the CPU computes it.
  std::uint64_t RefusedBytes(std::size_t il) const {
    const int device = place_.layers[il].device;
    return device < 0 ? 0 : machine_.devices[static_cast<std::size_t>(device)].RefusedBytes(sizes_.layers[il]);
  }
  bool TakesExperts(std::size_t il) const {
    const int device = place_.layers[il].device;
    return device >= 0 && std::ranges::all_of(sizes_.layers[il].expert_parts, [&](const auto& part) {
             return machine_.devices[static_cast<std::size_t>(device)].Takes(part.kind);
           });
  }
  void AddOutput(Sum& sum) const {  // one row
    const int device = place_.output_device;
    const std::uint64_t refused =
        device < 0 ? 0 : machine_.devices[static_cast<std::size_t>(device)].RefusedOutputBytes(sizes_);
    for (const auto& [engine, bytes] :
         {std::pair(EngineOf(device), sizes_.output_bytes - refused), std::pair(EngineOf(-1), refused)}) {
      sum.Add(engine.name, "bandwidth", Seconds(static_cast<double>(bytes), engine.gbs));
    }
  }

  Speed Decode(double fill) const {
    Sum sum;
    AddOutput(sum);
    sum.Add("host", "steps", machine_.token_seconds);
    RunOptions one = options_;
    one.context = CellsPerSequence(sizes_, options_);
    one.n_parallel = 1;
    for (std::size_t il = 0; il < sizes_.layers.size(); ++il) {
      const LayerSizes& layer = sizes_.layers[il];
      const Engine engine = EngineOf(place_.layers[il].device);
      // llama.cpp copies the state out of the cache, reads and writes it, and copies it back: six times over memory.
      const bool measured = engine.is_cpu && HasDeltaNet(layer) && machine_.delta_net_seconds > 0;
      const auto state = measured ? 0 : static_cast<double>(kStatePasses * layer.recurrent_bytes);
      const double cache = fill * static_cast<double>(KvBytes(sizes_, layer, one));
      const std::uint64_t refused = RefusedBytes(il);
      sum.Add("RAM", "bandwidth", Seconds(static_cast<double>(refused), EngineOf(-1).gbs));
      sum.Add(engine.name, "bandwidth",
              Seconds(static_cast<double>(layer.backbone_bytes - refused), engine.gbs) +
                  Seconds(state, engine.memory_gbs) + Seconds(cache, engine.cache_gbs));
      if (engine.is_cpu) {
        const std::uint32_t n_steps = measured ? layer.n_steps - kDeltaNetSteps + kDeltaNetPlainSteps : layer.n_steps;
        sum.Add(engine.name, "steps",
                n_steps * machine_.step_seconds + (measured ? machine_.delta_net_seconds : 0) +
                    (layer.k_elements > 0 ? machine_.attention_seconds : 0) +
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

  // One batch of n_batch tokens, into an empty cache. Of the last layer's experts only one row is asked for: llama.cpp
  // needs the logits of a prompt's last token.
  Speed Prefill() const {
    Sum sum;
    const double n = options_.n_batch;
    AddOutput(sum);
    sum.Add("host", "steps", machine_.token_seconds > 0 ? machine_.token_seconds + n * kHostSecondsARow : 0);
    for (std::size_t il = 0; il < sizes_.layers.size(); ++il) {
      const LayerSizes& layer = sizes_.layers[il];
      const Engine engine = EngineOf(place_.layers[il].device);
      const bool last = il + 1 == sizes_.layers.size();
      const std::uint64_t refused = RefusedBytes(il);
      AddProducts(sum, engine, layer.backbone_bytes - refused);
      AddProducts(sum, EngineOf(-1), refused);
      AddSteps(sum, layer, engine, last);
      if (layer.expert_bytes == 0) continue;
      const double rows = last ? 1 : n;
      const double touched =
          DistinctExperts(layer.n_experts, layer.n_used, rows) * static_cast<double>(layer.slice_bytes);
      const double flops = 2 * rows * layer.n_used * static_cast<double>(layer.expert_elements) / layer.n_experts;
      switch (place_.layers[il].experts) {
        case Tier::kVram: sum.AddWork("VRAM", Seconds(touched, engine.gbs), flops / (engine.tflops * kTera)); break;
        case Tier::kRam:
        case Tier::kDisk: {
          const bool disk = place_.layers[il].experts == Tier::kDisk;
          const double source = disk ? machine_.disk_gbs : machine_.ram_gbs;
          const std::string what = disk ? "disk" : "RAM";
          // llama.cpp copies them to the layer's device for a batch, if that takes them; else the CPU computes.
          if (TakesExperts(il) && place_.swarm_bytes == 0) {
            const double copying = Seconds(touched, std::min(source, machine_.link_gbs));
            sum.Add(source < machine_.link_gbs ? what : "copying to the device", "bandwidth", copying);
            sum.AddWork("VRAM", Seconds(touched, engine.gbs), flops / (engine.tflops * kTera));
          } else {
            const double pairs = rows * layer.n_used * static_cast<double>(layer.slice_bytes);
            const double computing = machine_.batch.expert_gbs > 0 && !last ? Seconds(pairs, machine_.batch.expert_gbs)
                                                                            : flops / (machine_.cpu_tflops * kTera);
            sum.AddWork(what, Seconds(touched, disk ? source : last ? ExpertGbs() : source), computing);
          }
          break;
        }
        case Tier::kSwarm:
          if (last) {
            AddSwarmDecode(sum, layer);
          } else {
            AddSwarmPrefill(sum, layer, touched, flops);
          }
          break;
        case Tier::kNowhere: break;
      }
    }
    return sum.Of(n);
  }

  // A batch times the matrices of a layer that are no experts. A router's counts twice, here and in router_seconds: it
  // is small.
  void AddProducts(Sum& sum, const Engine& engine, std::uint64_t matrices) const {
    const double n = options_.n_batch;
    const auto bytes = static_cast<double>(matrices);
    const BatchRates& batch = machine_.batch;
    const double computing = engine.is_cpu && batch.dense_gbs > 0
                                 ? Seconds(bytes * n, batch.dense_gbs)
                                 : n * bytes * 2 * WeightsPerByte() / (engine.tflops * kTera);
    sum.AddWork(engine.name, Seconds(bytes, engine.gbs), computing);
  }

  // What a layer on the CPU does beside its products.
  void AddSteps(Sum& sum, const LayerSizes& layer, const Engine& engine, bool last) const {
    const double n = options_.n_batch;
    const BatchRates& batch = machine_.batch;
    if (!engine.is_cpu || batch.n_rows == 0) return;
    std::uint32_t n_steps = layer.n_steps;
    double seconds = 0;
    if (HasDeltaNet(layer) && batch.delta_net_seconds > 0) {
      n_steps -= kDeltaNetSteps - kDeltaNetPlainSteps;
      seconds += batch.delta_net_seconds;
    }
    seconds += n_steps * batch.step_seconds + (layer.k_elements > 0 ? batch.attention_seconds : 0);
    // What was measured or assumed is of n_rows rows.
    sum.Add(engine.name, "steps", seconds * n / batch.n_rows);
    if (layer.n_experts > 0)
      sum.Add(engine.name, "steps", last ? machine_.router_seconds : batch.router_seconds * n / batch.n_rows);
  }

  // A batch is large enough for every node to get its share: the slowest node's share is what the layer waits for.
  // Workers here share cores, and what goes over loopback is copied by the same cores.
  void AddSwarmPrefill(Sum& sum, const LayerSizes& layer, double touched, double flops) const {
    const std::vector<double> shares = NodeShares(machine_.nodes);
    double slowest = 0, worker = 0, rtt = 0;
    double here_pairs = 0, here_wire = 0, here_rtt = 0;
    std::vector<std::pair<double, std::uint32_t>> here;
    for (std::size_t w = 0; w < shares.size(); ++w) {
      const Node& node = machine_.nodes[w];
      const double sent = options_.n_batch * (1 - std::pow(1 - shares[w], layer.n_used));  // tokens with an expert here
      const double back = options_.n_batch * layer.n_used * shares[w];                     // a row for each pair
      const double compute = node.batch_gbs > 0 ? Seconds(back * static_cast<double>(layer.slice_bytes), node.batch_gbs)
                                                : std::max(Seconds(touched * shares[w], node.read_gbs),
                                                           flops * shares[w] / (node.tflops * kTera));
      const auto row = static_cast<double>(row_bytes_);
      const double wire = LinkSeconds(node, machine_, sent * row, node.up_mbits) +
                          LinkSeconds(node, machine_, back * row, node.down_mbits);
      if (node.here) {
        here.emplace_back(compute, node.threads > 0 ? node.threads : std::max(1u, machine_.n_cores));
        here_pairs += back;
        here_wire += wire;
        here_rtt = std::max(here_rtt, node.rtt_ms / 1000);
        continue;
      }
      const double all = node.rtt_ms / 1000 + compute + wire;
      if (all <= slowest) continue;
      slowest = all;
      worker = compute;
      rtt = node.rtt_ms / 1000;
    }
    const double here_compute =
        std::max(Makespan(here, std::max(1u, machine_.n_cores), machine_.slice_seconds),
                 Seconds(here_pairs * static_cast<double>(layer.slice_bytes), machine_.batch.worker_gbs));
    if (here_rtt + here_compute + here_wire > slowest) {
      slowest = here_rtt + here_compute + here_wire;
      worker = here_compute;
      rtt = here_rtt;
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

Prediction Predict(const ModelSizes& sizes, const Machine& machine, const RunOptions& options,
                   const Placement& placement) {
  return Predictor(sizes, machine, options, placement).Run();
}

}  // namespace linkcpp
