// One backbone that the orders name: dial it, greet it, tell it what is held, hand its dispatches on, and come back
// after a break.
//
// Each has a thread of its own, because dialling blocks and a backbone that is away must not delay the others.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "net/link.h"
#include "wire/control.h"
#include "wire/messages.h"
#include "worker/dispatcher.h"

namespace linkcpp {

// Who we say we are in Hello.
struct WorkerIdentity {
  std::string node_id;
  std::string model_id;
  std::string kernel_class;
};

struct LinkTiming {
  std::chrono::milliseconds dial{3000}, welcome{5000};
  std::chrono::milliseconds backoff_first{100}, backoff_most{10'000};
  std::chrono::milliseconds silence{30'000};  // then the backbone is taken for gone
  std::chrono::milliseconds close{5000};      // for what is queued to be written
};

class BackboneLink {
 public:
  using Dial = std::function<Result<std::unique_ptr<Link>>(const std::string& address, const std::string& fingerprint,
                                                           std::chrono::milliseconds timeout)>;
  using Holdings = std::function<std::vector<LayerHoldings>()>;

  // Everything borrowed must outlive the link. Starts at once.
  BackboneLink(BackboneRef backbone, WorkerIdentity identity, Dial dial, Holdings holdings, Dispatcher& dispatcher,
               LogSink& log, LinkTiming timing = {});
  ~BackboneLink();  // closes

  // Fresh orders: the address, certificate and ticket for the next dial. A changed ticket ends the wait after a
  // refusal.
  void Update(const BackboneRef& backbone, const WorkerIdentity& identity);
  void SendHoldings();                         // no effect while not connected
  void SayGoodbye(const std::string& reason);  // dispatches that still come are answered; does not dial again
  bool connected() const { return connected_; }

 private:
  class Session;
  void Loop();
  // One connection, from dialling to its end. True: it was welcomed, so the next wait is short again.
  bool Connect();

  const Dial dial_;
  const Holdings holdings_;
  Dispatcher& dispatcher_;
  LogSink& log_;
  const LinkTiming timing_;
  const std::string id_;  // of the backbone, for logs

  std::mutex mutex_;
  std::condition_variable changed_;
  BackboneRef backbone_;                 // guarded by mutex_
  WorkerIdentity identity_;              // guarded by mutex_
  std::string refused_ticket_;           // guarded by mutex_; not dialled with again
  std::shared_ptr<Session> session_;     // guarded by mutex_
  bool stop_ = false, leaving_ = false;  // guarded by mutex_
  std::mutex holdings_mutex_;            // what is sent last is the newest; taken before mutex_
  std::string last_reason_;              // the thread's: a repeated failure is logged once
  std::atomic<bool> connected_{false};
  std::thread thread_;
};

}  // namespace linkcpp
