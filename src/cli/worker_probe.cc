#include "cli/worker_probe.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "cli/swarm_view.h"
#include "coordinator/served_model.h"
#include "gguf/shard.h"
#include "swarm/backbone_session.h"
#include "swarm/swarm.h"
#include "wire/messages.h"

namespace linkcpp {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kPingEvery{3};

// One slab of our own file, for the coordinator's probes.
Result<std::string> HashOf(const ModelFile& model, const SlabProbe& wanted) {
  ASSIGN_OR_RETURN(const auto slabs, model.Slabs(SliceId{LayerId(wanted.layer), ExpertId(wanted.expert)}));
  for (const SlabRef& slab : slabs) {
    if (ServedModel::SlabName(slab.projection, slab.kind) != wanted.tensor) continue;
    Hasher hasher;
    std::vector<std::byte> bytes(slab.size_bytes);
    RETURN_IF_FAULT(model.ReadAt(slab.file, slab.offset, bytes));
    hasher.Update(bytes);
    return hasher.Finish().Hex();
  }
  return Fail(FaultCode::kRefused, "layer {} has no tensor '{}'", wanted.layer, wanted.tensor);
}

// What the session wants of a swarm: takes the workers' links. Only one of them is ever asked.
class Lines final : public Swarm {
 public:
  explicit Lines(std::string chosen) : chosen_(std::move(chosen)) {}

  void AddWorker(std::string node_id, std::string, std::unique_ptr<Link> link) override {
    auto line = std::make_shared<Line>();
    line->link = std::move(link);
    line->link->set_limits({.max_payload_bytes = kMaxDataPayloadBytes});  // the handshake is over
    {
      const std::lock_guard lock(mutex_);
      all_.push_back(line);  // old ones too: a link must not be destroyed on this thread
      if (node_id == chosen_) {
        line->chosen = true;
        line_ = line;
      }
    }
    line->link->Start({.on_frame = [this, raw = line.get()](const FrameView& frame) { return OnFrame(*raw, frame); },
                       .on_close = [this, raw = line.get()](const Fault& why) { OnClose(*raw, why); }});
  }

  Result<void> Compute(LayerId, const Recipe&, std::span<const float>, std::uint32_t, std::span<const Pair>,
                       std::span<float>, std::uint32_t) override {
    return Fail(FaultCode::kLocal, "a probe computes nothing by itself");
  }
  void Tick() override {
    std::vector<std::shared_ptr<Line>> open;
    {
      const std::lock_guard lock(mutex_);
      if (steady_clock::now() - pinged_at_ < kPingEvery) return;
      pinged_at_ = steady_clock::now();
      std::ranges::copy_if(all_, std::back_inserter(open), [](const auto& line) { return !line->closed; });
    }
    for (const auto& line : open) (void)line->link->Send(EncodeMessage(PingMessage{.nonce = 1, .reply = false}), {});
  }
  std::uint64_t CoveredSlices() const override { return 0; }
  BackboneReport Report() const override { return {}; }

  // Of the chosen worker, once it is connected and has said something; nullopt: not in time.
  std::optional<std::vector<LayerHoldings>> WaitForHoldings(steady_clock::time_point until) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [this] { return line_ != nullptr && line_->holdings.has_value(); });
    return line_ == nullptr ? std::nullopt : line_->holdings;
  }

  // One dispatch to the chosen worker and its answer.
  Result<void> Ask(DispatchMessage message, std::span<const float> x, std::span<float> y, std::uint32_t n_out,
                   std::chrono::seconds patience) {
    std::shared_ptr<Line> line;
    {
      const std::lock_guard lock(mutex_);
      if (line_ == nullptr || line_->closed) {
        return Fail(FaultCode::kGone, "its link is gone{}", line_ == nullptr ? "" : ": " + line_->why);
      }
      line = line_;
      message.id = ++last_id_;
      waiting_ = Waiting{.id = message.id,
                         .y = y,
                         .n_pairs = static_cast<std::uint32_t>(message.pairs.size()),
                         .n_out = n_out,
                         .outcome = {}};
    }
    const std::span<const std::byte> pieces[] = {std::as_bytes(x)};
    if (auto sent = line->link->Send(EncodeMessage(message), pieces); !sent) {
      const std::lock_guard lock(mutex_);
      waiting_.reset();
      return sent;
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return waiting_->outcome.has_value(); });
    const auto waited = std::exchange(waiting_, std::nullopt);
    if (!waited->outcome) return Fail(FaultCode::kGone, "it has not answered for {} s", patience.count());
    return *waited->outcome;
  }

 private:
  struct Line {
    std::optional<std::vector<LayerHoldings>> holdings;
    bool chosen = false, closed = false;
    std::string why;
    std::unique_ptr<Link> link;  // last: no handler runs once the rest goes
  };
  struct Waiting {
    std::uint64_t id = 0;
    std::span<float> y;
    std::uint32_t n_pairs = 0, n_out = 0;
    std::optional<Result<void>> outcome;
  };

  Result<void> OnFrame(Line& line, const FrameView& frame) {
    ASSIGN_OR_RETURN(const Message message, DecodeMessage(frame.header, frame.payload.size()));
    if (const auto* ping = std::get_if<PingMessage>(&message)) {
      if (!ping->reply) (void)line.link->Send(EncodeMessage(PingMessage{.nonce = ping->nonce, .reply = true}), {});
      return {};
    }
    const std::lock_guard lock(mutex_);
    if (const auto* holdings = std::get_if<HoldingsMessage>(&message)) {
      line.holdings = holdings->ready;
    } else if (const auto* fault = std::get_if<FaultMessage>(&message)) {
      if (line.chosen && waiting_ && (fault->id == waiting_->id || fault->id == 0)) {
        waiting_->outcome = Fail(fault->code, "it says: {}", fault->text);
      }
    } else if (const auto* result = std::get_if<ResultMessage>(&message)) {
      if (!line.chosen || !waiting_ || result->id != waiting_->id) {
        return Fail(FaultCode::kMalformed, "an answer to dispatch {}, which is not outstanding", result->id);
      }
      if (result->row_type != RowType::kF32 || result->n_pairs != waiting_->n_pairs ||
          result->row_len != waiting_->n_out) {
        waiting_->outcome = Fail(FaultCode::kMalformed, "asked for {} rows of {} values, it answers {} of {}",
                                 waiting_->n_pairs, waiting_->n_out, result->n_pairs, result->row_len);
      } else {  // DecodeMessage has compared the payload's length
        std::ranges::copy(frame.payload, std::as_writable_bytes(waiting_->y).begin());
        waiting_->outcome = Result<void>();
      }
    }
    changed_.notify_all();
    return {};
  }

  void OnClose(Line& line, const Fault& why) {
    const std::lock_guard lock(mutex_);
    line.closed = true;
    line.why = why.text;
    if (line.chosen && waiting_ && line_.get() == &line) {
      waiting_->outcome = Fail(FaultCode::kGone, "its link is gone: {}", why.text);
    }
    changed_.notify_all();
  }

  const std::string chosen_;  // node id
  std::mutex mutex_;          // guards what follows
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Line>> all_;
  std::shared_ptr<Line> line_;  // the chosen worker's latest
  std::optional<Waiting> waiting_;
  std::uint64_t last_id_ = 0;
  steady_clock::time_point pinged_at_;
};

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
  Probe(const WorkerProbeOptions& options, NodeStatus node)
      : options_(options), node_(std::move(node)), lines_(node_.node_id) {}

  Result<void> Begin(const ModelFile& model, LogSink& log) {
    BackboneOptions backbone;
    backbone.coordinator = options_.coordinator;
    backbone.program = "linkcpp verify";
    backbone.header_hash = model.header_hash().Hex();
    backbone.data_listen = options_.data_listen.empty() ? DataListenFor(options_.coordinator) : options_.data_listen;
    const auto hash = [&model](const SlabProbe& wanted) { return HashOf(model, wanted); };
    ASSIGN_OR_RETURN(session_, BackboneSession::Attach(backbone, hash, lines_, log));
    const auto until = steady_clock::now() + options_.wait;
    const auto holdings = lines_.WaitForHoldings(until);
    if (!holdings) {
      return Fail(FaultCode::kGone,
                  "worker {} has not dialled in within {} s; does --data-listen name an address it can reach?",
                  node_.name, options_.wait.count());
    }
    if (const auto missing = Missing(*holdings, options_.layer, options_.experts)) {
      return Fail(FaultCode::kRefused, "worker {} does not hold expert {} of layer {}; there it holds {}", node_.name,
                  *missing, options_.layer.value, HeldText(*holdings, options_.layer));
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
      DispatchMessage message{.layer = options_.layer,
                              .recipe = recipe,
                              .n_rows = static_cast<std::uint32_t>(n),
                              .row_len = n_in,
                              .pairs = {}};
      for (std::uint32_t row = 0; row < n; ++row) message.pairs.push_back({row, expert});
      if (auto done = lines_.Ask(std::move(message), x.subspan(begin * n_in, n * n_in),
                                 y.subspan(begin * n_out, n * n_out), n_out, options_.deadline);
          !done) {
        return Wrap(done.error(),
                    std::format("worker {}, layer {}, expert {}", node_.name, options_.layer.value, expert));
      }
    }
    return {};
  }

 private:
  const WorkerProbeOptions options_;
  const NodeStatus node_;
  Lines lines_;
  std::unique_ptr<BackboneSession> session_;  // after what it borrows
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
