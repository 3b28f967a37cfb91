#include "worker/control_session.h"

#include <format>

namespace linkcpp {
namespace {

using std::chrono::seconds;

std::string MessageOf(const HttpReply& reply) {
  const std::string message = ErrorMessage(reply.body);
  if (!message.empty()) return message;
  if (reply.status != 404) return std::format("HTTP status {}", reply.status);
  // Ours names what it does not know.
  return std::format(
      "what answers there is no linkcpp coordinator (HTTP status 404{}): use the join line of "
      "`linkcpp serve`",
      reply.server.empty() ? "" : ", from " + reply.server);
}

template <class T>
ControlResult<T> Decode(const ControlResult<std::string>& body, std::string_view what) {
  if (!body) return std::unexpected(body.error());
  auto value = FromJson<T>(*body);
  if (!value) {
    return std::unexpected(ControlFault{
        ControlState::kAway, std::format("the coordinator's {} does not decode: {}", what, value.error().text)});
  }
  return std::move(*value);
}

}  // namespace

std::string EscapePath(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~';
    escaped += plain ? std::string(1, c) : std::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return escaped;
}

ControlResult<std::string> ControlSession::Call(const std::string& method, const std::string& path,
                                                const std::string& body, std::chrono::milliseconds timeout) {
  auto reply = http_->Call(method, path, body, timeout);
  if (!reply) {
    if (reply.error().code != FaultCode::kRefused)
      return std::unexpected(ControlFault{ControlState::kAway, reply.error().text});
    const std::string& text = reply.error().text;
    const bool token = text.contains("(401)") || text.contains("(403)");  // else it is the certificate
    return std::unexpected(
        ControlFault{ControlState::kFatal, token ? "the coordinator refused the token: " + text : text});
  }
  if (reply->status >= 200 && reply->status < 300) return std::move(reply->body);
  ControlState state = ControlState::kRefused;
  if (reply->status == 404) state = ControlState::kUnknownNode;
  if (reply->status >= 500 || reply->status == 408 || reply->status == 429 || reply->status < 200)
    state = ControlState::kAway;
  return std::unexpected(ControlFault{state, MessageOf(*reply)});
}

ControlResult<ModelList> ControlSession::Models() {
  return Decode<ModelList>(Call("GET", "/api/proxy/models", "", seconds(10)), "list of models");
}

ControlResult<JoinReply> ControlSession::Join(const JoinRequest& request) {
  return Decode<JoinReply>(Call("POST", "/api/nodes", ToJson(request), seconds(10)), "answer to our joining");
}

ControlResult<ModelDetail> ControlSession::Model(const std::string& model_name) {
  return Decode<ModelDetail>(Call("GET", "/api/proxy/models/" + EscapePath(model_name), "", seconds(60)),
                             "model description");
}

ControlResult<NodeOrders> ControlSession::Orders(const std::string& node_id, std::uint64_t after,
                                                 std::chrono::seconds poll) {
  return Decode<NodeOrders>(
      Call("GET", std::format("/api/nodes/{}/orders?after={}", EscapePath(node_id), after), "", poll + seconds(10)),
      "orders");
}

ControlResult<void> ControlSession::Report(const std::string& node_id, const NodeReport& report) {
  const auto body = Call("POST", std::format("/api/nodes/{}/report", EscapePath(node_id)), ToJson(report), seconds(5));
  if (!body) return std::unexpected(body.error());
  return {};
}

void ControlSession::Leave(const std::string& node_id) {
  (void)Call("DELETE", "/api/nodes/" + EscapePath(node_id), "", seconds(2));
}

}  // namespace linkcpp
