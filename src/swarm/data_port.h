// The port workers dial: takes a Hello with a valid ticket from every link within a few seconds and hands the link on.
//
// Plain on loopback; off loopback TLS, with a certificate made at start. Whoever says anything else than a proper
// Hello, or nothing, costs us one closed connection. Knows nothing of HTTP or of what workers are for.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "net/link.h"
#include "net/tcp.h"

namespace linkcpp {

class DataPort {
 public:
  // Whom to let in: the coordinator's word, once attached.
  struct Admission {
    std::string backbone_id;
    std::string model_id;
    std::string ticket_key;
  };
  // On the transport's thread. The link has been read from already: keep it, and Start it before this returns. It keeps
  // the transport, so it must not be destroyed on the transport's thread.
  using OnWorker = std::function<void(std::string node_id, std::string kernel_class, std::unique_ptr<Link> link)>;

  // kLocal: as TcpNet::Listen. `clock` and `log` must outlive the port.
  static Result<std::unique_ptr<DataPort>> Open(std::shared_ptr<TcpNet> net, const std::string& listen,
                                                OnWorker on_worker, const Clock& clock, LogSink& log);
  virtual ~DataPort() = default;  // stops listening; links handed on live on. Not from a link's handler.

  virtual std::string address() const = 0;      // "127.0.0.1:4711", the real port
  virtual std::string fingerprint() const = 0;  // "": plain

  // From now on. Before the first call every worker is told to come back later. Any thread.
  virtual void Admit(Admission admission) = 0;

  // Closes links that have not said Hello in time. A few times a second; any thread but a link's.
  virtual void Tick() = 0;
};

}  // namespace linkcpp
