// Who is there: workers and backbones with their leases, what each worker should hold, and how covered the model is.
//
// The HTTP routes are thin over this; it knows nothing of HTTP. All calls may come from any thread; Orders() blocks.
// A node that has not been heard of for its lease is dropped and its slices go to others; the lease is short for one
// whose poll broke off, as it does when the worker is killed.
//
// What peers say is bounded (bounds.h); what was cut is logged once a peer.
//
// Faults: kGone: this node or backbone is not known, join or attach again (HTTP 404). kRefused: it must not take part,
// the text says why (409). kMalformed: the request makes no sense (400). kBusy: too many (503).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/result.h"
#include "base/rng.h"
#include "coordinator/served_model.h"
#include "wire/control.h"
#include "wire/ticket.h"

namespace linkcpp {

struct RegistryOptions {
  std::chrono::milliseconds node_lease{30'000};
  std::chrono::milliseconds hung_up_lease{6'000};  // of a node whose poll broke off; an honest one reports every 3 s
  std::chrono::milliseconds backbone_lease{10'000};
  std::chrono::milliseconds poll{20'000};  // how long Orders() waits for news; less than node_lease
  std::chrono::seconds ticket_life{60};
  std::size_t n_probes = 4;        // slabs a backbone must hash from its own file
  std::size_t max_peers = 10'000;  // nodes, and backbones
  std::uint64_t probe_seed = 0;    // 0: from the operating system
};

// Who calls. Nodes and backbones belong to the token they came with: another token does not know them.
struct Caller {
  std::string token_id;
  std::string address;     // the peer's IP address
  std::string reached_at;  // the host by which the caller reached us (its Host header), without port; "": unknown
};

class Registry {
 public:
  // Everything borrowed must outlive the registry.
  Registry(const ServedModel& served, TicketKeys keys, RegistryOptions options, const Clock& clock, LogSink& log);

  // ---- workers
  Result<JoinReply> Join(const JoinRequest& request, const Caller& caller);
  // Waits until the node's orders differ from version `after`, the poll time is over, `hung_up` says the caller has
  // gone (asked a few times a second; may be empty), or Close(). Tickets are fresh in every answer.
  Result<NodeOrders> Orders(const std::string& node_id, std::uint64_t after, const Caller& caller,
                            const std::function<bool()>& hung_up);
  Result<void> ReportNode(const std::string& node_id, const NodeReport& report, const Caller& caller);
  Result<void> Leave(const std::string& node_id, const Caller& caller);

  // ---- backbones
  Result<AttachReply> Attach(const AttachRequest& request, const Caller& caller);
  // Answers whom it must cut off.
  Result<BackboneOrders> ReportBackbone(const std::string& backbone_id, BackboneReport report, const Caller& caller);
  Result<void> Detach(const std::string& backbone_id, const Caller& caller);

  // ---- the coordinator itself
  void Expire();                              // drops whoever's lease is over; call a few times a second
  void Close();                               // wakes every Orders() call, for a quick stop
  std::set<std::string> TokensInUse() const;  // by id: those that nodes and backbones came with
  // The token was revoked: who came with it is dropped, and backbones are told to cut such nodes off.
  void DropToken(const std::string& token_id);
  StatusReply Status() const;

 private:
  struct Node {
    std::string id, token_id;
    std::uint64_t number = 0;  // order of joining; ties in the assignment go to who came first
    JoinRequest request;
    bool by_hand = false;
    std::vector<SliceId> chosen;
    std::vector<SliceId> assigned, ready;  // sorted
    std::uint64_t version = 1;
    NodeReport report;
    std::string refusal;  // not empty: a backbone found that it computes wrong
    std::string warning;  // what its owner should change
    TimePoint seen;
    std::uint64_t n_polls = 0;  // the latest one counts when it breaks off
    bool hung_up = false;       // its latest poll broke off and nothing was heard since
    bool cut_said = false;
  };
  struct Backbone {
    std::string id, token_id;
    AttachRequest request;
    std::string peer_address;
    BackboneReport report;
    TimePoint seen;
    bool cut_said = false;
  };

  Result<Node*> FindNode(const std::string& id, const Caller& caller);
  Result<Backbone*> FindBackbone(const std::string& id, const Caller& caller);
  Result<void> CheckModel(const AttachRequest& request) const;
  std::vector<SlabProbe> PickProbes();
  void Rebalance();
  void BackbonesChanged();
  void SayCut(const std::string& who, const std::string& excess, bool& said);
  std::string WarningFor(const Node& node) const;
  void MarkExpelled(const Node& node, const std::string& reason);
  // Whether its work can be had, as far as we are told: backbones know their links; else its poll tells.
  std::map<std::string, bool, std::less<>> LinkedNodes() const;
  NodeOrders OrdersFor(const Node& node, const Caller& caller) const;

  const ServedModel& served_;
  const TicketKeys keys_;
  const RegistryOptions options_;
  const Clock& clock_;
  LogSink& log_;
  const TimePoint started_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable news_;
  Rng probe_rng_;
  std::map<std::string, Node> nodes_;            // by id
  std::map<std::string, Backbone> backbones_;    // by id
  std::map<std::string, std::string> expelled_;  // node id: why; the newest only
  std::deque<std::string> expelled_by_age_;
  std::uint64_t n_joined_ = 0;
  bool closed_ = false;
};

}  // namespace linkcpp
