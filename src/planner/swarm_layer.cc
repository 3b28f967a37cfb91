#include "planner/swarm_layer.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "planner/predict.h"

namespace linkcpp {
namespace {

constexpr double kGiga = 1e9;
constexpr double kHopsBesideRoundTrip = 4;
constexpr double kWorkerSteps =
    3;  // of a worker's graph beside products: rows gathered, the activation, rows put in order
constexpr double kManySlices = 100;         // from here on sharing is as good as even
constexpr std::size_t kMostDraws = 20'000;  // that are looked at one by one

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

// The expectation of that, over all ways of drawing n experts: share[w] for the workers here, `elsewhere` for all
// others.
class SharedCores {
 public:
  SharedCores(std::span<const double> share, std::span<const double> slice_seconds,
              std::span<const std::uint32_t> threads, const Machine& machine)
      : share_(share),
        slice_seconds_(slice_seconds),
        threads_(threads),
        n_cores_(machine.n_cores),
        run_seconds_(machine.slice_seconds) {}

  double Expected(double elsewhere, int n) {
    elsewhere_ = elsewhere;
    jobs_.clear();
    expectation_ = 0;
    double factorial = 1;
    for (int i = 2; i <= n; ++i) factorial *= i;
    Draw(0, n, factorial);
    return expectation_;
  }

 private:
  // Workers from w on share n draws; `weight`: n! prod p^m / m! so far.
  void Draw(std::size_t w, int n, double weight) {
    if (w == share_.size()) {
      for (int m = 1; m <= n; ++m) weight *= elsewhere_ / m;
      if (weight > 0) expectation_ += weight * Makespan(jobs_, n_cores_, run_seconds_);
      return;
    }
    for (int m = 0; m <= n; ++m) {
      if (m > 0) weight *= share_[w] / m;
      if (m > 0) jobs_.emplace_back(m * slice_seconds_[w], threads_[w]);
      Draw(w + 1, n - m, weight);
      if (m > 0) jobs_.pop_back();
    }
  }

  std::span<const double> share_, slice_seconds_;
  std::span<const std::uint32_t> threads_;
  const std::uint32_t n_cores_;
  const double run_seconds_;
  double elsewhere_ = 0, expectation_ = 0;
  std::vector<std::pair<double, std::uint32_t>> jobs_;
};

// In how many ways n draws fall on w workers and elsewhere.
double WaysToDraw(std::size_t w, int n) {
  double ways = 1;
  for (std::size_t i = 1; i <= w; ++i) ways *= static_cast<double>(n + static_cast<int>(i)) / static_cast<double>(i);
  return ways;
}

// What workers here take together at least, when their threads are more than there are cores: one after the other.
double TogetherHere(const LayerSizes& layer, const Machine& machine, std::span<const double> shares) {
  std::vector<double> share, slice_seconds;
  std::vector<std::uint32_t> threads;
  double elsewhere = 1;
  std::uint32_t n_threads = 0;
  for (std::size_t w = 0; w < machine.nodes.size(); ++w) {
    const Node& node = machine.nodes[w];
    if (!node.here) continue;
    share.push_back(shares[w]);
    elsewhere -= shares[w];
    slice_seconds.push_back(Seconds(static_cast<double>(layer.slice_bytes), node.read_gbs));
    threads.push_back(node.threads > 0 ? node.threads : std::max(1u, machine.n_cores));
    n_threads += threads.back();
  }
  const int n = static_cast<int>(layer.n_used);
  if (machine.n_cores == 0 || n_threads <= machine.n_cores || WaysToDraw(share.size(), n) > kMostDraws) return 0;
  return SharedCores(share, slice_seconds, threads, machine).Expected(std::max(0.0, elsewhere), n);
}

}  // namespace

double Seconds(double bytes, double gbs) {
  return gbs > 0 ? bytes / (gbs * kGiga) : 0;
}

double MbitSeconds(double bytes, double mbits) {
  return mbits > 0 ? bytes * 8 / (mbits * 1e6) : 0;
}

double LinkSeconds(const Node& node, const Machine& machine, double bytes, double mbits) {
  return node.here && mbits == 0 ? Seconds(bytes, machine.loopback_gbs) : MbitSeconds(bytes, mbits);
}

std::vector<double> NodeShares(std::span<const Node> nodes) {
  double total = 0;
  for (const Node& node : nodes) total += static_cast<double>(node.memory_bytes);
  std::vector<double> shares;
  for (const Node& node : nodes) shares.push_back(static_cast<double>(node.memory_bytes) / total);
  return shares;
}

double Makespan(std::span<const std::pair<double, std::uint32_t>> jobs, std::uint32_t n_cores, double slice_seconds) {
  std::vector<double> free_at(n_cores, 0.0);
  std::deque<double> queue;
  double longest = 0, sum = 0;
  for (const auto& [seconds, threads] : jobs) {
    queue.insert(queue.end(), std::min(threads, n_cores), seconds);
    longest = std::max(longest, seconds);
    sum += seconds * std::min(threads, n_cores);
  }
  if (queue.size() <= n_cores) return longest;
  if (longest > kManySlices * slice_seconds) return std::max(longest, sum / n_cores);  // shared evenly
  while (!queue.empty()) {
    const double left = queue.front();
    queue.pop_front();
    *std::ranges::min_element(free_at) += std::min(left, slice_seconds);
    if (left > slice_seconds) queue.push_back(left - slice_seconds);
  }
  return *std::ranges::max_element(free_at);
}

SwarmLayer PredictSwarmLayer(const LayerSizes& layer, const Machine& machine, std::uint64_t row_bytes) {
  SwarmLayer result;
  const std::span<const Node> nodes = machine.nodes;
  if (nodes.empty()) return result;
  const std::vector<double> shares = NodeShares(nodes);
  std::vector<double> fixed, each, kernel, nothing(nodes.size(), 0.0);
  const auto row = static_cast<double>(row_bytes), slice = static_cast<double>(layer.slice_bytes);
  const double loopback_gbs = machine.loopback_row_gbs > 0 ? machine.loopback_row_gbs : machine.loopback_gbs;
  const auto wire = [&](const Node& node, double mbits) {
    return node.here && mbits == 0 ? Seconds(row, loopback_gbs) : MbitSeconds(row, mbits);
  };
  double here_share = 0, workers_here = 0;
  for (std::size_t w = 0; w < nodes.size(); ++w) {
    const Node& node = nodes[w];
    kernel.push_back(Seconds(slice, node.read_gbs));
    fixed.push_back(node.rtt_ms / 1000 + wire(node, node.up_mbits));
    each.push_back(kernel.back() + wire(node, node.down_mbits));
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
  const double together =
      std::max(Seconds(here_share * layer.n_used * slice, machine.expert_gbs), TogetherHere(layer, machine, shares));
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

}  // namespace linkcpp
