#include "worker/peers.h"

#include <algorithm>
#include <format>
#include <thread>
#include <utility>

namespace linkcpp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kUnlistedGrace{15};
// After our goodbye: for dispatches that were on their way, and for what is queued.
constexpr milliseconds kLateFrames{150};
constexpr seconds kFinish{3};

}  // namespace

Peers::Peers(BackboneLink::Dial dial, BackboneLink::Holdings holdings, Dispatcher& dispatcher, LogSink& log)
    : dial_(std::move(dial)), holdings_(std::move(holdings)), dispatcher_(dispatcher), log_(log) {}

void Peers::Follow(const NodeOrders& orders, const WorkerIdentity& identity) {
  std::vector<std::unique_ptr<BackboneLink>> leaving;  // destroyed without the lock: closing takes a moment
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) return;
    if (orders.admitted) {
      for (const BackboneRef& backbone : orders.backbones) {
        Peer& peer = peers_[backbone.backbone_id];
        peer.unlisted_since = {};
        if (peer.link) {
          peer.link->Update(backbone, identity);
        } else {
          peer.link = std::make_unique<BackboneLink>(backbone, identity, dial_, holdings_, dispatcher_, log_);
        }
      }
    }
    for (auto it = peers_.begin(); it != peers_.end();) {
      const bool listed =
          std::ranges::any_of(orders.backbones, [&](const BackboneRef& ref) { return ref.backbone_id == it->first; });
      if (listed && orders.admitted) {
        ++it;
      } else if (it->second.link->connected() && orders.admitted) {
        if (it->second.unlisted_since == steady_clock::time_point{}) it->second.unlisted_since = steady_clock::now();
        ++it;
      } else {
        leaving.push_back(std::move(it->second.link));
        it = peers_.erase(it);
      }
    }
  }
  SendAway(leaving, orders.admitted ? "not in our orders any more" : "not admitted: " + orders.refusal);
}

void Peers::DropUnlisted() {
  std::vector<std::unique_ptr<BackboneLink>> leaving;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = peers_.begin(); it != peers_.end();) {
      Peer& peer = it->second;
      const bool unlisted = peer.unlisted_since != steady_clock::time_point{};
      if (unlisted && (!peer.link->connected() || steady_clock::now() - peer.unlisted_since > kUnlistedGrace)) {
        leaving.push_back(std::move(peer.link));
        it = peers_.erase(it);
      } else {
        ++it;
      }
    }
  }
  SendAway(leaving, "not in our orders any more");
}

void Peers::SendAway(const std::vector<std::unique_ptr<BackboneLink>>& links, const std::string& reason) {
  if (links.empty()) return;
  for (const auto& link : links) link->SayGoodbye(reason);
  std::this_thread::sleep_for(kLateFrames);
  dispatcher_.WaitIdle(seconds(1));  // another backbone may keep us busy for ever
}

void Peers::SendHoldings() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, peer] : peers_) peer.link->SendHoldings();
}

int Peers::n_connected() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(
      std::ranges::count_if(peers_, [](const auto& entry) { return entry.second.link->connected(); }));
}

void Peers::Leave(const std::string& reason) {
  bool any_connected = false;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    for (auto& [id, peer] : peers_) {
      any_connected = any_connected || peer.link->connected();
      peer.link->SayGoodbye(reason);
    }
  }
  if (any_connected) std::this_thread::sleep_for(kLateFrames);
  if (!dispatcher_.WaitIdle(kFinish)) log_.Warning("stopping with dispatches unanswered after {} s", kFinish.count());
  const std::lock_guard lock(mutex_);
  peers_.clear();
}

}  // namespace linkcpp
