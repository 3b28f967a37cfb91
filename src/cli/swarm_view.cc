#include "cli/swarm_view.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "net/tcp.h"

namespace linkcpp {
namespace {

constexpr std::chrono::seconds kPatience{10};

}  // namespace

Result<HttpEndpoint> VisitorEndpoint(const std::string& url, const std::string& token_file) {
  std::string token;
  if (!token_file.empty()) {
    std::ifstream file(token_file);
    if (!(file >> token)) return Fail(FaultCode::kLocal, "there is no token in {}", token_file);
  } else if (const char* from_environment = std::getenv("LINKCPP_TOKEN"); from_environment != nullptr) {
    token = from_environment;
  }
  if (token.empty()) {
    return Fail(FaultCode::kLocal,
                "which token? Set LINKCPP_TOKEN or give --token-file; `linkcpp serve` prints one and `linkcpp token "
                "new` makes more");
  }
  return ParseEndpoint(url, token);
}

std::string DataListenFor(const HttpEndpoint& coordinator) {
  std::string host = coordinator.url.substr(std::min(coordinator.url.find("//") + 2, coordinator.url.size()));
  host = host.substr(0, host.find_first_of("/?#"));
  if (const auto with_port = ParseHostPort(host)) host = with_port->host;
  return IsLoopback(host) ? "127.0.0.1:0" : "0.0.0.0:0";
}

template <class T>
Result<T> SwarmView::Get(const char* path) {
  const auto reply = client_->Call("GET", path, "", kPatience);
  if (!reply) {
    const bool away = reply.error().code == FaultCode::kGone;
    return Fail(reply.error().code, "{}{}", reply.error().text, away ? "; is `linkcpp serve` running there?" : "");
  }
  if (reply->status != 200) {
    const std::string why = ErrorMessage(reply->body);
    return Fail(FaultCode::kRefused, "{} answers {} to {}: {}", endpoint_.url, reply->status, path,
                why.empty() ? "it is not a linkcpp coordinator" : why);
  }
  auto value = FromJson<T>(reply->body);
  if (!value) {
    return Fail(FaultCode::kRefused, "{} does not answer as a linkcpp coordinator: {}", endpoint_.url,
                value.error().text);
  }
  return value;
}

Result<StatusReply> SwarmView::Status() {
  return Get<StatusReply>("/api/status");
}

Result<void> SwarmView::RequireModel(const ModelFile& model) {
  ASSIGN_OR_RETURN(const ModelList list, Get<ModelList>("/api/proxy/models"));
  std::string names;
  for (const ModelSummary& summary : list.models) {
    if (summary.header_hash == model.header_hash().Hex()) return {};
    names += (names.empty() ? "" : ", ") + summary.name;
  }
  return Fail(FaultCode::kRefused, "the swarm at {} serves another model ({}) than {}: give the file it serves",
              endpoint_.url, names.empty() ? "none" : names, model.name());
}

}  // namespace linkcpp
