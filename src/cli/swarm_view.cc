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

// llama-server's port is near at hand, and easily taken for the coordinator's.
std::unexpected<Fault> SwarmView::NoCoordinator(const HttpReply& reply) const {
  return Fail(FaultCode::kRefused,
              "what answers at {} is no linkcpp coordinator{} (status {}): give the URL that `linkcpp serve` prints as "
              "\"control\", 127.0.0.1:8090 unless --listen says otherwise",
              endpoint_.url, reply.server.empty() ? "" : " but " + reply.server, reply.status);
}

Result<HttpReply> SwarmView::Get(const char* path) {
  auto reply = client_->Call("GET", path, "", kPatience);
  if (!reply) {
    const bool away = reply.error().code == FaultCode::kGone;
    return Fail(reply.error().code, "{}{}", reply.error().text, away ? "; is `linkcpp serve` running there?" : "");
  }
  if (reply->status == 200) return reply;
  const std::string why = ErrorMessage(reply->body);
  if (why.empty()) return NoCoordinator(*reply);
  return Fail(FaultCode::kGone, "{} answered {} to {}: {}", endpoint_.url, reply->status, path, why);
}

template <class T>
Result<T> SwarmView::Read(const HttpReply& reply) const {
  auto value = FromJson<T>(reply.body);
  if (!value) return NoCoordinator(reply);
  return value;
}

Result<StatusReply> SwarmView::Status() {
  ASSIGN_OR_RETURN(const HttpReply reply, Get("/api/status"));
  return Read<StatusReply>(reply);
}

Result<std::string> SwarmView::StatusJson() {
  ASSIGN_OR_RETURN(HttpReply reply, Get("/api/status"));
  RETURN_IF_FAULT(Read<StatusReply>(reply));
  return std::move(reply.body);
}

Result<bool> SwarmView::Serves(const std::string& header_hash) {
  ASSIGN_OR_RETURN(const HttpReply reply, Get("/api/proxy/models"));
  ASSIGN_OR_RETURN(const ModelList list, Read<ModelList>(reply));
  return std::ranges::contains(list.models, header_hash, &ModelSummary::header_hash);
}

Result<void> SwarmView::RequireModel(const ModelFile& model) {
  ASSIGN_OR_RETURN(const HttpReply reply, Get("/api/proxy/models"));
  ASSIGN_OR_RETURN(const ModelList list, Read<ModelList>(reply));
  std::string names;
  for (const ModelSummary& summary : list.models) {
    if (summary.header_hash == model.header_hash().Hex()) return {};
    names += (names.empty() ? "" : ", ") + summary.name;
  }
  return Fail(FaultCode::kRefused, "the swarm at {} serves another model ({}) than {}: give the file it serves",
              endpoint_.url, names.empty() ? "none" : names, model.name());
}

}  // namespace linkcpp
