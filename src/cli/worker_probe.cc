#include "cli/worker_probe.h"

#include <algorithm>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "cli/swarm_view.h"
#include "gguf/shard.h"
#include "gguf/slab_hash.h"
#include "swarm/backbone_session.h"
#include "swarm/swarm.h"
#include "wire/messages.h"

namespace linkcpp {
namespace {

constexpr std::chrono::milliseconds kLookEvery{10};

// The first of `experts` that is not among the holdings of `layer`.
std::optional<std::uint16_t> Missing(const std::vector<LayerHoldings>& ready, LayerId layer,
                                     const std::vector<std::uint16_t>& experts) {
  std::vector<std::uint16_t> held;
  for (const LayerHoldings& holdings : ready) {
    if (holdings.layer != layer.value) continue;
    if (auto parsed = ParseRanges(holdings.experts, 65535)) held = std::move(*parsed);
  }
  for (const std::uint16_t expert : experts) {
    if (!std::ranges::contains(held, expert)) return expert;
  }
  return std::nullopt;
}

std::string HeldText(const std::vector<LayerHoldings>& ready, LayerId layer) {
  for (const LayerHoldings& holdings : ready) {
    if (holdings.layer == layer.value && !holdings.experts.empty()) return "experts " + holdings.experts;
  }
  return "none";
}

Result<NodeStatus> Choose(const StatusReply& status, const WorkerProbeOptions& options) {
  std::vector<const NodeStatus*> found;
  std::string there;
  for (const NodeStatus& node : status.nodes) {
    there += std::format("\n  {} ({}): layer {}: {}{}", node.name, node.node_id, options.layer.value,
                         HeldText(node.ready, options.layer), node.admitted ? "" : "; not admitted: " + node.refusal);
    const bool named = node.node_id.starts_with(options.node) || node.name == options.node;
    const bool fits = node.admitted && !Missing(node.ready, options.layer, options.experts);
    if (options.node.empty() ? fits : named) found.push_back(&node);
  }
  if (status.nodes.empty()) return Fail(FaultCode::kRefused, "the swarm has no workers: start one with `linkcpp join`");
  if (options.node.empty()) {
    if (!found.empty()) return *found.front();
    return Fail(FaultCode::kRefused,
                "no worker holds all of the experts asked for; --experts chooses others. There are:{}", there);
  }
  if (found.empty()) return Fail(FaultCode::kRefused, "no worker is called {}; there are:{}", options.node, there);
  if (found.size() > 1) {
    return Fail(FaultCode::kRefused, "{} workers are called {}: give more of the id. There are:{}", found.size(),
                options.node, there);
  }
  if (!found.front()->admitted) {
    return Fail(FaultCode::kRefused, "worker {} is not admitted, so it dials no backbone: {}", found.front()->name,
                found.front()->refusal);
  }
  return *found.front();
}

class Probe final : public WorkerProbe {
 public:
  Probe(const WorkerProbeOptions& options, NodeStatus node) : options_(options), node_(std::move(node)) {}

  Result<void> Begin(const ModelFile& model, LogSink& log) {
    BackboneOptions backbone;
    backbone.coordinator = options_.coordinator;
    backbone.program = "linkcpp verify";
    backbone.header_hash = model.header_hash().Hex();
    backbone.data_listen = options_.data_listen.empty() ? DataListenFor(options_.coordinator) : options_.data_listen;
    const auto hash = [&model](const SlabProbe& wanted) {
      return HashSlab(model, {LayerId(wanted.layer), ExpertId(wanted.expert)}, wanted.tensor).transform(&Hash::Hex);
    };
    // Gated and nobody admitted: this swarm only asks when told to.
    swarm_ = Swarm::Create({.allow_local = false, .deadline = options_.deadline, .gated = true}, nullptr, clock_, log);
    ASSIGN_OR_RETURN(session_, BackboneSession::Attach(backbone, hash, *swarm_, log));
    const TimePoint until = clock_.Now() + options_.wait;
    std::optional<WorkerOffer> offer;
    while (!offer.has_value() && clock_.Now() < until) {
      for (WorkerOffer& candidate : swarm_->Offers()) {
        if (candidate.node_id == node_.node_id && !candidate.holds->empty()) offer = std::move(candidate);
      }
      if (!offer.has_value()) std::this_thread::sleep_for(kLookEvery);
    }
    if (!offer.has_value()) {
      return Fail(FaultCode::kGone,
                  "worker {} has not dialled in within {} s; does --data-listen name an address it can reach?",
                  node_.name, options_.wait.count());
    }
    worker_ = offer->worker;
    const auto layer = offer->holds->find(options_.layer.value);
    for (const std::uint16_t expert : options_.experts) {
      if (layer != offer->holds->end() && std::ranges::binary_search(layer->second, expert)) continue;
      return Fail(FaultCode::kRefused, "worker {} does not hold expert {} of layer {}; there it holds {}", node_.name,
                  expert, options_.layer.value, HeldText(node_.ready, options_.layer));
    }
    return {};
  }

  const NodeStatus& node() const override { return node_; }

  Result<void> Compute(const Recipe& recipe, std::uint16_t expert, std::span<const float> x, std::uint32_t n_in,
                       std::span<float> y, std::uint32_t n_out) override {
    const std::size_t n_rows = x.size() / n_in;
    const std::size_t cap =
        std::min<std::size_t>({kMaxRows, kMaxPairs, kMaxDataPayloadBytes / sizeof(float) / std::max(n_in, n_out)});
    for (std::size_t begin = 0; begin < n_rows; begin += cap) {
      const std::size_t n = std::min(cap, n_rows - begin);
      std::vector<Pair> pairs;
      for (std::uint32_t row = 0; row < n; ++row) pairs.push_back({row, ExpertId(expert)});
      const auto arrived = std::make_shared<std::promise<Result<std::vector<float>>>>();
      auto future = arrived->get_future();
      swarm_->Ask(worker_, options_.layer, recipe, x.subspan(begin * n_in, n * n_in), n_in, pairs, n_out,
                  [arrived](Result<std::vector<float>> answer) { arrived->set_value(std::move(answer)); });
      const Result<std::vector<float>> answer = future.get();  // within the swarm's deadline
      if (!answer.has_value()) {
        return Wrap(answer.error(),
                    std::format("worker {}, layer {}, expert {}", node_.name, options_.layer.value, expert));
      }
      std::ranges::copy(*answer, y.begin() + static_cast<std::ptrdiff_t>(begin * n_out));
    }
    return {};
  }

 private:
  const WorkerProbeOptions options_;
  const NodeStatus node_;
  SteadyClock clock_;
  WorkerNumber worker_ = 0;
  std::unique_ptr<Swarm> swarm_;
  std::unique_ptr<BackboneSession> session_;  // after what it borrows; its ticks end questions that are overdue
};

}  // namespace

Result<std::unique_ptr<WorkerProbe>> WorkerProbe::Attach(const WorkerProbeOptions& options, const ModelFile& model,
                                                         LogSink& log) {
  SwarmView view(options.coordinator);
  ASSIGN_OR_RETURN(const StatusReply status, view.Status());
  RETURN_IF_FAULT(view.RequireModel(model));
  ASSIGN_OR_RETURN(NodeStatus node, Choose(status, options));
  auto probe = std::make_unique<Probe>(options, std::move(node));
  RETURN_IF_FAULT(probe->Begin(model, log));
  return probe;
}

}  // namespace linkcpp
