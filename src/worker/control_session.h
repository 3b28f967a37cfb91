// The worker's side of the control plane: typed calls over one HTTP connection, one thread at a time.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/http_client.h"
#include "wire/control.h"

namespace linkcpp {

// What an answer means for the worker.
enum class ControlState {
  kUnknownNode,  // 404: join again
  kAway,         // no answer, or 5xx, 429: try again later
  kRefused,      // another 4xx: this request as it is makes no sense to this coordinator
  kFatal,        // the token or the certificate: trying again does not help
};

struct ControlFault {
  ControlState state = ControlState::kAway;
  std::string text;
};
template <class T>
using ControlResult = std::expected<T, ControlFault>;

class ControlSession {
 public:
  explicit ControlSession(std::unique_ptr<HttpClient> http) : http_(std::move(http)) {}

  ControlResult<ModelList> Models();
  ControlResult<JoinReply> Join(const JoinRequest& request);
  ControlResult<ModelDetail> Model(const std::string& model_name);
  // Hangs for up to `poll` and some seconds more.
  ControlResult<NodeOrders> Orders(const std::string& node_id, std::uint64_t after, std::chrono::seconds poll);
  ControlResult<void> Report(const std::string& node_id, const NodeReport& report);
  void Leave(const std::string& node_id);  // best effort, two seconds

  void Stop() { http_->Stop(); }  // any thread

 private:
  ControlResult<std::string> Call(const std::string& method, const std::string& path, const std::string& body,
                                  std::chrono::milliseconds timeout);
  std::unique_ptr<HttpClient> http_;
};

// For one segment of a path: everything but letters, digits and "-._~" becomes %XX.
std::string EscapePath(std::string_view text);

}  // namespace linkcpp
