// A running swarm as a visitor sees it: whose model, which workers, who computed what. Over the coordinator's HTTP API.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "gguf/model.h"
#include "net/http_client.h"
#include "wire/control.h"

namespace linkcpp {

// The token: from `token_file` if that is named, else LINKCPP_TOKEN. kLocal: neither has one. kLocal, kRefused: a URL
// that is none.
Result<HttpEndpoint> VisitorEndpoint(const std::string& url, const std::string& token_file);

// Where a visitor's data port listens when nobody says: "127.0.0.1:0" for a coordinator on loopback, else all
// interfaces.
std::string DataListenFor(const HttpEndpoint& coordinator);

class SwarmView {
 public:
  explicit SwarmView(const HttpEndpoint& endpoint) : endpoint_(endpoint), client_(HttpClient::Create(endpoint)) {}

  // kGone: nobody there, or the coordinator has a fault. kRefused: the token, or what answers is not a coordinator.
  Result<StatusReply> Status();
  Result<std::string> StatusJson();  // as it was answered, a StatusReply
  // Whether it serves the model with this header.
  Result<bool> Serves(const std::string& header_hash);
  // kRefused: the swarm serves another model than this file (both named).
  Result<void> RequireModel(const ModelFile& model);

 private:
  Result<HttpReply> Get(const char* path);
  template <class T>
  Result<T> Read(const HttpReply& reply) const;
  std::unexpected<Fault> NoCoordinator(const HttpReply& reply) const;

  const HttpEndpoint endpoint_;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace linkcpp
