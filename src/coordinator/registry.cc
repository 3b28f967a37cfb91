#include "coordinator/registry.h"

#include <algorithm>
#include <format>
#include <ranges>
#include <utility>

#include "base/plain_text.h"
#include "coordinator/bounds.h"
#include "coordinator/random_text.h"
#include "coordinator/status_text.h"
#include "gguf/slab_hash.h"
#include "net/tcp.h"

namespace linkcpp {
namespace {

constexpr std::size_t kIdBytes = 16;
constexpr std::chrono::milliseconds kHangUpCheck{500};
constexpr std::size_t kMaxExpelled = 4096;

double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool IsWildcard(std::string_view host) {
  return host == "0.0.0.0" || host == "::" || host.empty();
}

std::string Join(std::string_view host, std::uint16_t port) {
  return host.contains(':') ? std::format("[{}]:{}", host, port) : std::format("{}:{}", host, port);
}

}  // namespace

Registry::Registry(const ServedModel& served, TicketKeys keys, RegistryOptions options, const Clock& clock,
                   LogSink& log)
    : served_(served),
      keys_(std::move(keys)),
      options_(options),
      clock_(clock),
      log_(log),
      started_(clock.Now()),
      probe_rng_(options.probe_seed != 0 ? options.probe_seed : std::stoull(RandomHex(8), nullptr, 16)) {}

// ---- workers

Result<JoinReply> Registry::Join(const JoinRequest& request, const Caller& caller) {
  if (request.protocol != kProtocolVersion) {
    return Fail(FaultCode::kRefused, "the worker speaks protocol {} and this coordinator {}: install the same release",
                request.protocol, kProtocolVersion);
  }
  if (!served_.Is(request.model)) {
    return Fail(FaultCode::kRefused, "this coordinator serves the model {}, not {}", served_.name(),
                PlainText(request.model));
  }
  if (request.memory_bytes == 0) return Fail(FaultCode::kMalformed, "memory_bytes is 0: the worker gives no memory");

  Node node;
  node.by_hand = !request.layers.empty() || !request.experts.empty();
  if (node.by_hand) {
    const auto layers = served_.ParseLayers(request.layers);
    if (!layers) return Fail(FaultCode::kMalformed, "layers: {}", layers.error().text);
    const auto experts = served_.ParseExperts(request.experts, *layers);
    if (!experts) return Fail(FaultCode::kMalformed, "experts: {}", experts.error().text);
    for (const std::uint16_t layer : *layers) {
      for (const std::uint16_t expert : *experts) node.chosen.push_back({LayerId(layer), ExpertId(expert)});
    }
  }
  ASSIGN_OR_RETURN(node.assigned, served_.FromHoldings(request.ready));

  const std::lock_guard lock(mutex_);
  if (nodes_.size() >= options_.max_peers) return Fail(FaultCode::kBusy, "{} workers already", nodes_.size());
  node.id = RandomHex(kIdBytes);
  node.token_id = caller.token_id;
  node.number = ++n_joined_;
  node.request = request;
  node.request.ready.clear();
  const std::string excess = Bound(node.request);
  SayCut(node.request.name, excess, node.cut_said);
  node.report.state = "joining";
  node.seen = clock_.Now();
  JoinReply reply;
  reply.node_id = node.id;
  reply.model_name = served_.name();
  reply.model_id = served_.model_id();
  reply.header_hash = served_.header_hash();
  reply.poll_seconds = static_cast<std::uint32_t>(std::max<std::int64_t>(1, options_.poll.count() / 1000));
  log_.Info("{} joined from {}: {:.1f} MB on {}", node.request.name, caller.address,
            static_cast<double>(request.memory_bytes) / 1e6, node.request.device);
  Node& joined = nodes_.emplace(node.id, std::move(node)).first->second;
  Rebalance();
  joined.warning = WarningFor(joined);
  if (!joined.warning.empty()) log_.Warning("{}: {}", joined.request.name, joined.warning);
  reply.warning = joined.warning;
  return reply;
}

Result<NodeOrders> Registry::Orders(const std::string& node_id, std::uint64_t after, const Caller& caller,
                                    const std::function<bool()>& hung_up) {
  // The wait is on real time whatever clock the leases run on.
  const auto deadline = std::chrono::steady_clock::now() + options_.poll;
  std::unique_lock lock(mutex_);
  std::uint64_t poll = 0;
  while (true) {
    ASSIGN_OR_RETURN(Node* const node, FindNode(node_id, caller));
    if (poll == 0) {
      poll = ++node->n_polls;
      node->hung_up = false;
    }
    node->seen = clock_.Now();
    const auto now = std::chrono::steady_clock::now();
    if (node->version != after || closed_ || now >= deadline) return OrdersFor(*node, caller);
    news_.wait_until(lock, std::min(deadline, now + kHangUpCheck));
    if (hung_up) {
      lock.unlock();  // asks the socket
      const bool gone = hung_up();
      lock.lock();
      if (!gone) continue;
      // Perhaps it has dialled anew meanwhile; else it was killed, or its network is gone.
      if (const auto left = FindNode(node_id, caller); left && (*left)->n_polls == poll) (*left)->hung_up = true;
      return Fail(FaultCode::kGone, "the worker hung up");
    }
  }
}

Result<void> Registry::ReportNode(const std::string& node_id, const NodeReport& report, const Caller& caller) {
  ASSIGN_OR_RETURN(std::vector<SliceId> ready, served_.FromHoldings(report.ready));
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(Node* const node, FindNode(node_id, caller));
  node->seen = clock_.Now();
  node->hung_up = false;
  node->ready = std::move(ready);
  node->report = report;
  node->report.ready.clear();
  SayCut(node->request.name, Bound(node->report), node->cut_said);
  return {};
}

Result<void> Registry::Leave(const std::string& node_id, const Caller& caller) {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(Node* const node, FindNode(node_id, caller));
  log_.Info("{} left", node->request.name);
  nodes_.erase(node_id);
  Rebalance();
  news_.notify_all();
  return {};
}

// ---- backbones

Result<AttachReply> Registry::Attach(const AttachRequest& request, const Caller& caller) {
  if (request.protocol != kProtocolVersion) {
    return Fail(FaultCode::kRefused,
                "the backbone speaks protocol {} and this coordinator {}: install the same release", request.protocol,
                kProtocolVersion);
  }
  const auto address = ParseHostPort(request.data_address);
  if (!address || address->port == 0) {
    return Fail(FaultCode::kMalformed, "data_address \"{}\" is not host:port", PlainText(request.data_address));
  }
  if (request.tls_fingerprint.empty() && !IsLoopback(address->host)) {
    return Fail(FaultCode::kRefused, "the data port {} is off loopback and speaks no TLS", request.data_address);
  }
  RETURN_IF_FAULT(CheckAttach(request));
  RETURN_IF_FAULT(CheckModel(request));

  const std::lock_guard lock(mutex_);
  AttachReply reply;
  if (request.probes.size() < options_.n_probes) {
    reply.wanted_probes = PickProbes();
    return reply;
  }
  if (backbones_.size() >= options_.max_peers) return Fail(FaultCode::kBusy, "{} backbones already", backbones_.size());
  Backbone backbone;
  backbone.id = RandomHex(kIdBytes);
  backbone.token_id = caller.token_id;
  backbone.request = request;
  backbone.request.probes.clear();
  const std::string excess = Bound(backbone.request);
  SayCut(backbone.request.program, excess, backbone.cut_said);
  backbone.peer_address = caller.address;
  backbone.seen = clock_.Now();
  log_.Info("backbone {} attached from {}, data port {}", backbone.request.program, caller.address,
            request.data_address);
  reply.backbone_id = backbone.id;
  reply.model_id = served_.model_id();
  reply.ticket_key = keys_.public_key;
  backbones_.emplace(backbone.id, std::move(backbone));
  BackbonesChanged();
  return reply;
}

Result<void> Registry::CheckModel(const AttachRequest& request) const {
  if (request.header_hash != served_.header_hash()) {
    return Fail(FaultCode::kRefused,
                "the backbone's file differs from the coordinator's ({}): their headers are not the same; "
                "start both from the same file",
                served_.name());
  }
  for (const SlabProbe& probe : request.probes) {
    ASSIGN_OR_RETURN(const std::string expected, served_.SlabHashOf(probe.layer, probe.expert, probe.tensor));
    if (probe.hash != expected) {
      return Fail(FaultCode::kRefused,
                  "the backbone's file differs from the coordinator's: layer {} expert {} tensor {}", probe.layer,
                  probe.expert, probe.tensor);
    }
  }
  return {};
}

// A spot check against damaged or swapped files, not a defence against a backbone that lies: that one harms itself
// only. One probe from each of n_probes equal parts of the layers, so that a file which differs from some layer on (a
// download that was cut off and resumed from another file, layers trained on) is seen each time and not by luck: with
// all four drawn freely, a file that differs in its second half got through once in sixteen times. What differs in
// fewer layers is seen at admission, where the backbone compares every layer's canary rows with its own file's.
std::vector<SlabProbe> Registry::PickProbes() {
  std::vector<SlabProbe> probes;
  const auto& layers = served_.model().moe_layers();
  for (std::size_t i = 0; i < options_.n_probes; ++i) {
    const std::size_t begin = i * layers.size() / options_.n_probes;
    const std::size_t end = std::max((i + 1) * layers.size() / options_.n_probes, begin + 1);
    const MoeLayer& layer = layers[begin + probe_rng_.Below(end - begin)];
    const ExpertTensor& tensor = layer.tensors[probe_rng_.Below(layer.tensors.size())];
    SlabProbe& probe = probes.emplace_back();
    probe.layer = layer.layer.value;
    probe.expert = static_cast<std::uint16_t>(probe_rng_.Below(layer.n_experts));
    probe.tensor = SlabName(tensor.projection, tensor.kind);
  }
  return probes;
}

Result<BackboneOrders> Registry::ReportBackbone(const std::string& backbone_id, BackboneReport report,
                                                const Caller& caller) {
  const std::string excess = Bound(report, served_.geometry());
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(Backbone* const backbone, FindBackbone(backbone_id, caller));
  backbone->seen = clock_.Now();
  SayCut("backbone " + backbone->request.program, excess, backbone->cut_said);
  bool changed = false;
  for (const NodeCheck& check : report.checks) {
    if (check.state != "refused") continue;
    const auto entry = nodes_.find(check.node_id);
    if (entry == nodes_.end() || !entry->second.refusal.empty()) continue;
    Node& node = entry->second;
    node.refusal = check.refusal.empty() ? "it computes wrong" : check.refusal;
    ++node.version;
    changed = true;
    MarkExpelled(node, node.refusal);  // off the other backbones too
    log_.Error("{} ({}) is refused by backbone {} and gets no more work: {}", node.request.name, node.id.substr(0, 8),
               backbone->request.program, node.refusal);
  }
  BackboneOrders orders;
  for (const LinkReport& link : report.links) {
    if (!link.connected) continue;
    const auto expelled = expelled_.find(link.node_id);
    if (expelled != expelled_.end()) orders.expel.push_back({expelled->first, expelled->second});
  }
  backbone->report = std::move(report);
  if (changed) Rebalance();
  return orders;
}

Result<void> Registry::Detach(const std::string& backbone_id, const Caller& caller) {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const Backbone* const backbone, FindBackbone(backbone_id, caller));
  log_.Info("backbone {} detached", backbone->request.program);
  backbones_.erase(backbone_id);
  BackbonesChanged();
  return {};
}

// ---- the coordinator itself

void Registry::Expire() {
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.Now();
  const auto n_nodes = std::erase_if(nodes_, [&](const auto& entry) {
    const Node& node = entry.second;
    if (now - node.seen < (node.hung_up ? options_.hung_up_lease : options_.node_lease)) return false;
    log_.Warning("{} {} {:.0f} s ago: dropped, its slices go to others", node.request.name,
                 node.hung_up ? "hung up" : "was last heard of", Seconds(now - node.seen));
    return true;
  });
  const auto n_backbones = std::erase_if(backbones_, [&](const auto& entry) {
    const Backbone& backbone = entry.second;
    if (now - backbone.seen < options_.backbone_lease) return false;
    log_.Warning("backbone {} has not been heard of for {:.0f} s: dropped", backbone.request.program,
                 Seconds(now - backbone.seen));
    return true;
  });
  if (n_nodes > 0) {
    Rebalance();
    news_.notify_all();
  }
  if (n_backbones > 0) BackbonesChanged();
}

std::set<std::string> Registry::TokensInUse() const {
  std::set<std::string> tokens;
  const std::lock_guard lock(mutex_);
  for (const Node& node : nodes_ | std::views::values) tokens.insert(node.token_id);
  for (const Backbone& backbone : backbones_ | std::views::values) tokens.insert(backbone.token_id);
  return tokens;
}

void Registry::DropToken(const std::string& token_id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(nodes_, [&](const auto& entry) {
    if (entry.second.token_id != token_id) return false;
    log_.Warning("{} is dropped: its token {} was revoked", entry.second.request.name, token_id);
    MarkExpelled(entry.second, "its token was revoked");
    return true;
  });
  std::erase_if(backbones_, [&](const auto& entry) {
    if (entry.second.token_id != token_id) return false;
    log_.Warning("backbone {} is dropped: its token {} was revoked", entry.second.request.program, token_id);
    return true;
  });
  Rebalance();
  BackbonesChanged();
}

void Registry::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  news_.notify_all();
}

StatusReply Registry::Status() const {
  StatusReply status;
  status.model_name = served_.name();
  status.model_id = served_.model_id();
  status.architecture = served_.summary().architecture;
  status.expert_bytes = served_.summary().expert_bytes;

  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.Now();
  status.uptime_seconds = Seconds(now - started_);
  std::map<LayerId, std::vector<std::uint32_t>> holders;
  for (const LayerGeometry& layer : served_.geometry()) holders[layer.layer].resize(layer.n_experts);
  const auto linked = LinkedNodes();
  for (const Node& node : nodes_ | std::views::values) {
    const auto link = linked.find(node.id);
    const bool connected = link != linked.end() ? link->second : !node.hung_up;
    if (node.refusal.empty() && connected) {
      for (const SliceId slice : node.ready) ++holders[slice.layer][slice.expert.value];
    }
    NodeStatus& row = status.nodes.emplace_back();
    row.node_id = node.id;
    row.name = node.request.name;
    row.kernel_class = node.request.kernel_class;
    row.device = node.request.device;
    row.state = node.report.state;
    row.error = node.report.error.empty() ? node.warning : node.report.error;
    row.connected = connected;
    row.memory_bytes = node.request.memory_bytes;
    row.slices_ready = node.ready.size();
    row.slices_wanted = node.assigned.size();
    row.downloaded_bytes = node.report.downloaded_bytes;
    row.wanted_bytes = node.report.wanted_bytes;
    row.pairs_computed = node.report.pairs_computed;
    row.dispatches = node.report.dispatches;
    row.busy_us = node.report.busy_us;
    row.seconds_since_seen = Seconds(now - node.seen);
    row.ready = served_.ToHoldings(node.ready);
    row.admitted = node.refusal.empty();
    row.refusal = node.refusal;
    for (const Backbone& backbone : backbones_ | std::views::values) {
      std::ranges::copy_if(backbone.report.checks, std::back_inserter(row.checks),
                           [&](const NodeCheck& check) { return check.node_id == node.id; });
    }
  }
  for (const auto& [layer, counts] : holders) {
    LayerCoverage& row = status.layers.emplace_back();
    row.layer = layer.value;
    row.n_experts = static_cast<std::uint32_t>(counts.size());
    row.covered = static_cast<std::uint32_t>(std::ranges::count_if(counts, [](std::uint32_t n) { return n > 0; }));
    row.min_holders = counts.empty() ? 0 : std::ranges::min(counts);
    status.n_slices += row.n_experts;
    status.slices_covered += row.covered;
  }
  for (const Backbone& backbone : backbones_ | std::views::values) {
    status.backbones.push_back({backbone.id, backbone.request.program, backbone.request.data_address,
                                Seconds(now - backbone.seen), backbone.report});
  }
  // By order of joining, so that the list does not jump about.
  std::ranges::sort(status.nodes, {}, [&](const NodeStatus& row) { return nodes_.at(row.node_id).number; });
  return status;
}

// ---- under mutex_

Result<Registry::Node*> Registry::FindNode(const std::string& id, const Caller& caller) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || found->second.token_id != caller.token_id) {
    return Fail(FaultCode::kGone, "this coordinator does not know the node {}: join again", PlainText(id));
  }
  return &found->second;
}

Result<Registry::Backbone*> Registry::FindBackbone(const std::string& id, const Caller& caller) {
  const auto found = backbones_.find(id);
  if (found == backbones_.end() || found->second.token_id != caller.token_id) {
    return Fail(FaultCode::kGone, "this coordinator does not know the backbone {}: attach again", PlainText(id));
  }
  return &found->second;
}

void Registry::Rebalance() {
  std::vector<NodeShare> shares;
  std::vector<Node*> nodes;
  for (Node& node : nodes_ | std::views::values) {
    if (!node.refusal.empty()) continue;  // what it should hold goes to others
    NodeShare& share = shares.emplace_back();
    share.id = std::format("{:020}", node.number);
    share.memory_bytes = node.request.memory_bytes;
    share.assigned = node.assigned;
    std::ranges::set_intersection(node.ready, node.assigned, std::back_inserter(share.ready));
    share.by_hand = node.by_hand;
    share.chosen = node.chosen;
    nodes.push_back(&node);
  }
  auto lists = AssignSlices(served_.geometry(), shares);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i]->assigned == lists[i]) continue;
    nodes[i]->assigned = std::move(lists[i]);
    ++nodes[i]->version;
  }
  news_.notify_all();
}

std::map<std::string, bool, std::less<>> Registry::LinkedNodes() const {
  std::map<std::string, bool, std::less<>> linked;
  for (const Backbone& backbone : backbones_ | std::views::values) {
    for (const LinkReport& link : backbone.report.links) linked[link.node_id] |= link.connected;
  }
  return linked;
}

std::string Registry::WarningFor(const Node& node) const {
  std::uint64_t least = UINT64_MAX;
  for (const LayerGeometry& layer : served_.geometry()) least = std::min(least, SliceCost(layer.slice_bytes));
  if (node.request.memory_bytes < least) {
    return std::format("gives {}, less than one slice takes ({}): it can hold nothing; use --memory {}M",
                       BytesText(node.request.memory_bytes), BytesText(least), (least >> 20) + 1);
  }
  if (node.by_hand && node.assigned.size() < node.chosen.size()) {
    return std::format("chose {} slices by hand and gives memory for {} of them", node.chosen.size(),
                       node.assigned.size());
  }
  return "";
}

void Registry::MarkExpelled(const Node& node, const std::string& reason) {
  if (!expelled_.emplace(node.id, reason).second) return;
  expelled_by_age_.push_back(node.id);
  if (expelled_by_age_.size() <= kMaxExpelled) return;
  expelled_.erase(expelled_by_age_.front());
  expelled_by_age_.pop_front();
}

void Registry::SayCut(const std::string& who, const std::string& excess, bool& said) {
  if (excess.empty() || said) return;
  said = true;
  log_.Warning("{} says more than is kept, the rest is dropped: {}", who, excess);
}

void Registry::BackbonesChanged() {
  for (Node& node : nodes_ | std::views::values) ++node.version;
  news_.notify_all();
}

NodeOrders Registry::OrdersFor(const Node& node, const Caller& caller) const {
  NodeOrders orders;
  orders.version = node.version;
  orders.hold = served_.ToHoldings(node.assigned);
  orders.admitted = node.refusal.empty();
  orders.refusal = node.refusal;
  if (!orders.admitted) return orders;
  const std::int64_t expires = UnixNow() + options_.ticket_life.count();
  for (const Backbone& backbone : backbones_ | std::views::values) {
    BackboneRef& ref = orders.backbones.emplace_back();
    ref.backbone_id = backbone.id;
    ref.address = backbone.request.data_address;
    // A port open on all interfaces is dialled where its machine was seen; a backbone on our own machine, where the
    // worker reached us.
    if (const auto address = ParseHostPort(ref.address); address && IsWildcard(address->host)) {
      std::string host = backbone.peer_address;
      if (host.empty() || IsLoopback(host)) host = caller.reached_at.empty() ? "127.0.0.1" : caller.reached_at;
      ref.address = linkcpp::Join(host, address->port);
    }
    ref.tls_fingerprint = backbone.request.tls_fingerprint;
    ref.ticket = SignTicket({node.id, backbone.id, served_.model_id(), expires}, keys_.secret_key);
  }
  return orders;
}

}  // namespace linkcpp
