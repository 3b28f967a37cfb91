// The links to all backbones that the coordinator's orders name, and to those that they name no more.
//
// A backbone that fresh orders do not name keeps its link for a while: after a restart the coordinator knows its
// workers before its backbones, and nobody should lose a token over that. Any thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "wire/control.h"
#include "worker/backbone_link.h"
#include "worker/dispatcher.h"

namespace linkcpp {

class Peers {
 public:
  // Everything borrowed must outlive it.
  Peers(BackboneLink::Dial dial, BackboneLink::Holdings holdings, Dispatcher& dispatcher, LogSink& log);

  // Dials who is new, updates who is known, sends away who is not admitted any more.
  void Follow(const NodeOrders& orders, const WorkerIdentity& identity);
  // Who has been unlisted for too long, or has gone by itself.
  void DropUnlisted();
  void SendHoldings();
  int n_connected();

  // Says goodbye to all, answers what is on its way, and closes. Follow has no effect from here on.
  void Leave(const std::string& reason);

 private:
  struct Peer {
    std::unique_ptr<BackboneLink> link;
    std::chrono::steady_clock::time_point unlisted_since{};  // zero: the orders name it
  };
  void SendAway(const std::vector<std::unique_ptr<BackboneLink>>& links, const std::string& reason);

  const BackboneLink::Dial dial_;
  const BackboneLink::Holdings holdings_;
  Dispatcher& dispatcher_;
  LogSink& log_;

  std::mutex mutex_;
  std::map<std::string, Peer> peers_;  // by backbone id; guarded by mutex_
  bool leaving_ = false;               // guarded by mutex_
};

}  // namespace linkcpp
