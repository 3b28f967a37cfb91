#include "cli/worker_probe.h"

#include <algorithm>
#include <future>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "cli/swarm_view.h"
#include "gguf/shard.h"
#include "gguf/slab_hash.h"
#include "swarm/backbone_session.h"
#include "wire/messages.h"

namespace linkcpp {
namespace {

constexpr std::chrono::milliseconds kLookEvery{10}, kAskUserEvery{100};

// Whether `experts` are all among the holdings of `layer`.
bool SaysItHolds(const NodeStatus& node, LayerId layer, const std::vector<std::uint16_t>& experts) {
  std::vector<std::uint16_t> held;
  for (const LayerHoldings& holdings : node.ready) {
    if (holdings.layer != layer.value) continue;
    if (auto parsed = ParseRanges(holdings.experts, 65535)) held = std::move(*parsed);
  }
  return std::ranges::all_of(experts, [&](std::uint16_t expert) { return std::ranges::contains(held, expert); });
}

class Probe final : public WorkerProbe {
 public:
  explicit Probe(const WorkerProbeOptions& options) : options_(options) {}

  Result<void> Begin(const ModelFile& model, LogSink& log) {
    BackboneOptions backbone;
    backbone.coordinator = options_.coordinator;
    backbone.program = options_.program;
    backbone.header_hash = model.header_hash().Hex();
    backbone.data_listen = options_.data_listen.empty() ? DataListenFor(options_.coordinator) : options_.data_listen;
    const auto hash = [&model](const SlabProbe& wanted) {
      return HashSlab(model, {LayerId(wanted.layer), ExpertId(wanted.expert)}, wanted.tensor).transform(&Hash::Hex);
    };
    // Gated and nobody admitted: this swarm only asks when told to.
    swarm_ = Swarm::Create({.allow_local = false, .deadline = options_.deadline, .gated = true}, nullptr, clock_, log);
    ASSIGN_OR_RETURN(session_, BackboneSession::Attach(backbone, hash, *swarm_, log));
    wait_until_ = clock_.Now() + options_.wait;
    return {};
  }

  Result<ProbedWorker> Await(const NodeStatus& node) override {
    while (true) {
      for (const WorkerOffer& offer : swarm_->Offers()) {
        if (offer.node_id != node.node_id || offer.holds->empty()) continue;
        return ProbedWorker{.number = offer.worker,
                            .name = node.name,
                            .kernel_class = offer.kernel_class,
                            .is_gpu = !offer.kernel_class.contains("/CPU/"),
                            .holds = *offer.holds};
      }
      if (!options_.keep_going()) return Fail(FaultCode::kGone, "interrupted");
      if (clock_.Now() >= wait_until_) {
        return Fail(FaultCode::kGone,
                    "worker {} has not dialled in within {} s; does --data-listen name an address it can reach?",
                    node.name, options_.wait.count());
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }

  Result<void> Compute(const ProbedWorker& worker, LayerId layer, const Recipe& recipe, std::span<const float> x,
                       std::uint32_t n_in, std::span<const Pair> pairs, std::span<float> y,
                       std::uint32_t n_out) override {
    // A frame of as many pairs has no more rows than that.
    const std::size_t cap =
        std::min<std::size_t>({kMaxRows, kMaxPairs, kMaxDataPayloadBytes / sizeof(float) / std::max(n_in, n_out)});
    for (std::size_t begin = 0; begin < pairs.size(); begin += cap) {
      std::vector<Pair> part;
      std::vector<float> rows;
      std::unordered_map<std::uint32_t, std::uint32_t> place;
      for (const Pair& pair : pairs.subspan(begin, std::min(cap, pairs.size() - begin))) {
        const auto [found, is_new] = place.emplace(pair.row, static_cast<std::uint32_t>(place.size()));
        if (is_new) {
          const auto row = x.subspan(std::size_t{pair.row} * n_in, n_in);
          rows.insert(rows.end(), row.begin(), row.end());
        }
        part.push_back({found->second, pair.expert});
      }
      auto answer = Ask(worker, layer, recipe, rows, n_in, part, n_out);
      if (!answer.has_value()) {
        return Wrap(answer.error(),
                    std::format("worker {}, layer {}, {}", worker.name, layer.value, ExpertsText(part)));
      }
      std::ranges::copy(*answer, y.begin() + static_cast<std::ptrdiff_t>(begin * n_out));
    }
    return {};
  }

 private:
  static std::string ExpertsText(std::span<const Pair> pairs) {
    const bool one = std::ranges::all_of(pairs, [&](const Pair& pair) { return pair.expert == pairs[0].expert; });
    return one ? std::format("expert {}", pairs[0].expert.value) : std::format("a dispatch of {} pairs", pairs.size());
  }

  // Within the swarm's deadline.
  Result<std::vector<float>> Ask(const ProbedWorker& worker, LayerId layer, const Recipe& recipe,
                                 std::span<const float> x, std::uint32_t n_in, std::span<const Pair> pairs,
                                 std::uint32_t n_out) {
    const auto arrived = std::make_shared<std::promise<Result<std::vector<float>>>>();
    auto future = arrived->get_future();
    swarm_->Ask(worker.number, layer, recipe, x, n_in, pairs, n_out,
                [arrived](Result<std::vector<float>> answer) { arrived->set_value(std::move(answer)); });
    while (future.wait_for(kAskUserEvery) != std::future_status::ready) {
      if (!options_.keep_going()) return Fail(FaultCode::kGone, "interrupted");
    }
    return future.get();
  }

  const WorkerProbeOptions options_;
  SteadyClock clock_;
  TimePoint wait_until_{};
  std::unique_ptr<Swarm> swarm_;
  std::unique_ptr<BackboneSession> session_;  // after what it borrows; its ticks end questions that are overdue
};

}  // namespace

std::string HeldText(const NodeStatus& node, LayerId layer) {
  for (const LayerHoldings& holdings : node.ready) {
    if (holdings.layer == layer.value && !holdings.experts.empty()) return "experts " + holdings.experts;
  }
  return "none";
}

Result<NodeStatus> ChooseNode(const StatusReply& status, const std::string& name, LayerId layer,
                              const std::vector<std::uint16_t>& experts) {
  std::vector<const NodeStatus*> found;
  std::string there;
  for (const NodeStatus& node : status.nodes) {
    there += std::format("\n  {} ({}): layer {}: {}{}", node.name, node.node_id, layer.value, HeldText(node, layer),
                         node.admitted ? "" : "; not admitted: " + node.refusal);
    const bool named = node.node_id.starts_with(name) || node.name == name;
    const bool fits = node.admitted && SaysItHolds(node, layer, experts);
    if (name.empty() ? fits : named) found.push_back(&node);
  }
  if (status.nodes.empty()) return Fail(FaultCode::kRefused, "the swarm has no workers: start one with `linkcpp join`");
  if (name.empty()) {
    if (!found.empty()) return *found.front();
    return Fail(FaultCode::kRefused,
                "no worker holds all of the experts asked for; --experts chooses others. There are:{}", there);
  }
  if (found.empty()) return Fail(FaultCode::kRefused, "no worker is called {}; there are:{}", name, there);
  if (found.size() > 1) {
    return Fail(FaultCode::kRefused, "{} workers are called {}: give more of the id. There are:{}", found.size(), name,
                there);
  }
  if (!found.front()->admitted) {
    return Fail(FaultCode::kRefused, "worker {} is not admitted, so it dials no backbone: {}", found.front()->name,
                found.front()->refusal);
  }
  return *found.front();
}

bool ProbedWorker::Holds(LayerId layer, ExpertId expert) const {
  const auto held = holds.find(layer.value);
  return held != holds.end() && std::ranges::binary_search(held->second, expert.value);
}

Result<std::unique_ptr<WorkerProbe>> WorkerProbe::Attach(const WorkerProbeOptions& options, const ModelFile& model,
                                                         LogSink& log) {
  RETURN_IF_FAULT(SwarmView(options.coordinator).RequireModel(model));
  auto probe = std::make_unique<Probe>(options);
  RETURN_IF_FAULT(probe->Begin(model, log));
  return probe;
}

}  // namespace linkcpp
