// A backbone's attachment to its coordinator: the data port workers dial, and the HTTP session that announces it.
//
// Attach() blocks for the first exchange only; a background thread then reports every second, re-attaches when the
// coordinator comes back, and detaches at the end. Workers that are connected keep serving while it is away.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "net/http_client.h"
#include "swarm/swarm.h"
#include "wire/control.h"

namespace linkcpp {

struct BackboneOptions {
  HttpEndpoint coordinator;
  std::string data_listen = "127.0.0.1:0";  // off loopback the port speaks TLS with a certificate made at start
  std::string data_advertise;               // what workers dial; "": the listening address
  std::string program;                      // "llama-server"
  std::string kernel_class;
  std::string header_hash;  // hex
};

class BackboneSession {
 public:
  // `hash_slab` answers the coordinator's probes from the backbone's own file.
  // kRefused: wrong token, another model, another protocol. kGone: no coordinator there.
  using HashSlab = std::function<Result<std::string>(const SlabProbe& wanted)>;
  static Result<std::unique_ptr<BackboneSession>> Attach(const BackboneOptions& options, HashSlab hash_slab,
                                                         Swarm& swarm, LogSink& log);
  virtual ~BackboneSession() = default;  // detaches, closes the port

  virtual std::string backbone_id() const = 0;
};

}  // namespace linkcpp
