// The coordinator's HTTP side: routes over Registry, ServedModel and TokenStore. docs/coordinator.md lists them.
//
// Runs on its own threads from Start until the destructor. Every route but GET /healthz needs a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "coordinator/registry.h"
#include "coordinator/served_model.h"
#include "coordinator/token_store.h"
#include "net/tcp.h"

namespace linkcpp {

struct ServerOptions {
  std::string listen = "127.0.0.1:8090";   // port 0: any
  std::optional<Certificate> certificate;  // TLS; must be there off loopback
  std::size_t max_body_bytes = kMaxControlBytes;
  std::size_t n_threads = 512;  // at most; each open connection takes one while it lives
  std::string version;          // "0.1.0", for /api/status
};

class CoordinatorServer {
 public:
  // Everything borrowed must outlive the server. kLocal: the port is taken or not ours; the text says which.
  static Result<std::unique_ptr<CoordinatorServer>> Start(const ServerOptions& options, const ServedModel& served,
                                                          Registry& registry, TokenStore& tokens, LogSink& log);
  virtual ~CoordinatorServer() = default;  // ends long polls and downloads, then its threads

  virtual std::uint16_t port() const = 0;
};

}  // namespace linkcpp
