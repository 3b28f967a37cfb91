#include "coordinator/server.h"

#include <httplib.h>
#include <sodium.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <format>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/metrics.h"
#include "coordinator/status_text.h"

namespace linkcpp {
namespace {

using httplib::Request;
using httplib::Response;

constexpr std::size_t kReadBytes = 1 << 20;  // of a shard at a time
constexpr std::chrono::milliseconds kExpireEvery{500};
constexpr std::size_t kIdleThreads = 8;
constexpr int kBacklog = 1024;            // the kernel may allow fewer
constexpr std::size_t kAbsurdBodies = 4;  // times the largest allowed

int StatusOf(FaultCode code) {
  switch (code) {
    case FaultCode::kBusy: return 503;
    case FaultCode::kGone: return 404;
    case FaultCode::kRefused: return 409;
    case FaultCode::kMalformed: return 400;
    case FaultCode::kLocal: return 500;
  }
  return 500;
}

void Refuse(Response& response, int status, FaultCode code, std::string_view text) {
  response.status = status;
  response.set_content(ErrorJson(code, text), "application/json");
}

void Refuse(Response& response, const Fault& fault) {
  Refuse(response, StatusOf(fault.code), fault.code, fault.text);
}

void Answer(Response& response, const Result<void>& outcome) {
  if (!outcome) return Refuse(response, outcome.error());
  response.set_content("{}", "application/json");
}

template <class T>
void Answer(Response& response, const Result<T>& outcome) {
  if (!outcome) return Refuse(response, outcome.error());
  response.set_content(ToJson(*outcome), "application/json");
}

// "host:port", "[::1]:port" or "host", without the port.
std::string HostOf(std::string_view header) {
  if (header.starts_with('[')) return std::string(header.substr(1, header.find(']') - 1));
  return std::string(header.substr(0, header.find(':')));
}

// What follows the colon in the base64 text of Basic authentication; "" if it is none.
std::string PasswordOf(std::string_view base64) {
  std::string text(base64.size(), '\0');
  std::size_t size = 0;
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(text.data()), text.size(), base64.data(), base64.size(),
                        nullptr, &size, nullptr, sodium_base64_VARIANT_ORIGINAL) != 0) {
    return "";
  }
  text.resize(size);
  const std::size_t colon = text.find(':');
  return colon == std::string::npos ? "" : text.substr(colon + 1);
}

class Server final : public CoordinatorServer {
 public:
  Server(const ServerOptions& options, const ServedModel& served, Registry& registry, TokenStore& tokens, LogSink& log)
      : options_(options), served_(served), registry_(registry), tokens_(tokens), log_(log) {}

  ~Server() override {
    {
      const std::lock_guard lock(stop_mutex_);
      stopping_ = true;
    }
    stop_news_.notify_all();
    registry_.Close();
    if (http_ != nullptr) http_->stop();
    if (listen_thread_.joinable()) listen_thread_.join();
    if (expire_thread_.joinable()) expire_thread_.join();
  }

  Result<void> Start() {
    ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options_.listen));
    if (!options_.certificate && !IsLoopback(address.host)) {
      return Fail(FaultCode::kLocal, "{} is off loopback and there is no certificate", options_.listen);
    }
    RETURN_IF_FAULT(MakeHttp());
    Configure();
    Route();
    port_ = address.port;
    if (address.port == 0) {
      const int port = http_->bind_to_any_port(address.host);
      if (port <= 0) return Fail(FaultCode::kLocal, "cannot listen on {}", options_.listen);
      port_ = static_cast<std::uint16_t>(port);
    } else if (!http_->bind_to_port(address.host, address.port)) {
      return Fail(FaultCode::kLocal,
                  "cannot listen on {}: the port is in use or the address is not of this machine; "
                  "choose another with --listen",
                  options_.listen);
    }
    // The library lets five connections wait, and the kernel drops the next ones.
    ::listen(listen_socket_, kBacklog);
    listen_thread_ = std::thread([this] { http_->listen_after_bind(); });
    http_->wait_until_ready();
    expire_thread_ = std::thread([this] { ExpireUntilStopped(); });
    return {};
  }

  std::uint16_t port() const override { return port_; }

 private:
  Result<void> MakeHttp() {
    if (!options_.certificate) {
      http_ = std::make_unique<httplib::Server>();
      return {};
    }
    const Certificate& certificate = *options_.certificate;
    httplib::SSLServer::PemMemory pem{};
    pem.cert_pem = certificate.certificate_pem.data();
    pem.cert_pem_len = certificate.certificate_pem.size();
    pem.key_pem = certificate.key_pem.data();
    pem.key_pem_len = certificate.key_pem.size();
    http_ = std::make_unique<httplib::SSLServer>(pem);
    if (!http_->is_valid()) return Fail(FaultCode::kLocal, "the coordinator's certificate or key cannot be used");
    return {};
  }

  void Configure() {
    http_->new_task_queue = [this] { return new httplib::ThreadPool(kIdleThreads, options_.n_threads); };
    http_->set_payload_max_length(options_.max_body_bytes);
    http_->set_keep_alive_max_count(1'000'000);
    http_->set_keep_alive_timeout(5);
    http_->set_read_timeout(std::chrono::seconds(5));
    http_->set_write_timeout(std::chrono::seconds(30));
    http_->set_tcp_nodelay(true);
    // The library's own choice would let two coordinators share a port without a word.
    http_->set_socket_options([this](socket_t socket) {
      listen_socket_ = socket;
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    http_->set_pre_routing_handler([this](const Request& request, Response& response) {
      return Admit(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                      : httplib::Server::HandlerResponse::Handled;
    });
    http_->set_error_handler([](const Request& request, Response& response) {
      if (!response.body.empty() || request.method == "HEAD") return;
      const int status = response.status;
      const FaultCode code = status == 404 ? FaultCode::kGone : FaultCode::kMalformed;
      Refuse(response, status, code,
             std::format("{} {}: {}", request.method, request.path, httplib::status_message(status)));
    });
    http_->set_exception_handler([this](const Request& request, Response& response, std::exception_ptr failure) {
      std::string text = "unknown failure";
      try {
        std::rethrow_exception(failure);
      } catch (const std::exception& error) {
        text = error.what();
      } catch (...) {
      }
      log_.Error("{} {}: {}", request.method, request.path, text);
      Refuse(response, 500, FaultCode::kLocal, text);
    });
  }

  // ---- who is asking

  // Browsers cannot send a bearer token by themselves, so for reading the token is also taken as a password.
  static std::string TokenOf(const Request& request) {
    const std::string header = request.get_header_value("Authorization");
    constexpr std::string_view kBearer = "Bearer ";
    if (header.starts_with(kBearer)) return header.substr(kBearer.size());
    constexpr std::string_view kBasic = "Basic ";
    if (header.starts_with(kBasic) && (request.method == "GET" || request.method == "HEAD")) {
      return PasswordOf(std::string_view(header).substr(kBasic.size()));
    }
    return "";
  }

  Result<std::optional<std::string>> Authenticate(const Request& request) { return tokens_.Check(TokenOf(request)); }

  bool Admit(const Request& request, Response& response) {
    // The library reads a body that is too large to its end before it says so; one that is far too large is not read.
    if (request.get_header_value_u64("Content-Length") > kAbsurdBodies * options_.max_body_bytes) {
      Refuse(response, 413, FaultCode::kMalformed,
             std::format("the body is larger than {} bytes", options_.max_body_bytes));
      return false;
    }
    // The library waits for the body of a DELETE that announces none.
    if (request.method == "DELETE" && !request.has_header("Content-Length") &&
        !request.has_header("Transfer-Encoding")) {
      const_cast<Request&>(request).set_header("Content-Length", "0");
    }
    if (request.path == "/healthz") return true;
    const auto token_id = Authenticate(request);
    if (!token_id) {
      log_.Error("{}", token_id.error().text);
      Refuse(response, 500, FaultCode::kLocal, "the coordinator cannot read its token store");
      return false;
    }
    if (*token_id) return true;
    response.set_header("WWW-Authenticate", request.path == "/" ? "Basic realm=\"linkcpp: the password is a token\""
                                                                : "Bearer realm=\"linkcpp\"");
    Refuse(response, 401, FaultCode::kRefused,
           "this needs a token that works (Authorization: Bearer …); `linkcpp token new` makes one");
    return false;
  }

  Caller CallerOf(const Request& request) {
    const auto token_id = Authenticate(request);
    return {token_id ? token_id->value_or("") : "", request.remote_addr, HostOf(request.get_header_value("Host"))};
  }

  // ---- routes

  static const std::string& IdOf(const Request& request) { return request.path_params.at("id"); }

  template <class T>
  static bool Body(const Request& request, Response& response, T& value) {
    auto decoded = FromJson<T>(request.body);
    if (!decoded) {
      Refuse(response, decoded.error());
      return false;
    }
    value = std::move(*decoded);
    return true;
  }

  void Route() {
    http_->Get("/healthz", [](const Request&, Response& response) { response.set_content("ok\n", "text/plain"); });

    http_->Post("/api/nodes", [this](const Request& request, Response& response) {
      JoinRequest join;
      if (Body(request, response, join)) Answer(response, registry_.Join(join, CallerOf(request)));
    });
    http_->Get("/api/nodes/:id/orders", [this](const Request& request, Response& response) {
      std::uint64_t after = 0;
      const std::string text = request.get_param_value("after");
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), after);
      if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) after = 0;
      Answer(response, registry_.Orders(IdOf(request), after, CallerOf(request), request.is_connection_closed));
    });
    http_->Post("/api/nodes/:id/report", [this](const Request& request, Response& response) {
      NodeReport report;
      if (Body(request, response, report)) {
        Answer(response, registry_.ReportNode(IdOf(request), report, CallerOf(request)));
      }
    });
    http_->Delete("/api/nodes/:id", [this](const Request& request, Response& response) {
      Answer(response, registry_.Leave(IdOf(request), CallerOf(request)));
    });

    http_->Post("/api/backbones", [this](const Request& request, Response& response) {
      AttachRequest attach;
      if (Body(request, response, attach)) Answer(response, registry_.Attach(attach, CallerOf(request)));
    });
    http_->Post("/api/backbones/:id/report", [this](const Request& request, Response& response) {
      BackboneReport report;
      if (Body(request, response, report)) {
        Answer(response, registry_.ReportBackbone(IdOf(request), std::move(report), CallerOf(request)));
      }
    });
    http_->Delete("/api/backbones/:id", [this](const Request& request, Response& response) {
      Answer(response, registry_.Detach(IdOf(request), CallerOf(request)));
    });

    http_->Get("/api/proxy/models", [this](const Request&, Response& response) {
      response.set_content(ToJson(ModelList{{served_.summary()}}), "application/json");
    });
    http_->Get("/api/proxy/models/:model", [this](const Request& request, Response& response) {
      if (KnowsModel(request, response)) response.set_content(served_.detail_json(), "application/json");
    });
    http_->Get("/api/proxy/models/:model/expert-shard", [this](const Request& request, Response& response) {
      if (KnowsModel(request, response)) SendShard(request, response);
    });

    http_->Get("/api/status", [this](const Request& request, Response& response) {
      StatusReply status = Status();
      if (!request.has_param("heat")) {  // a counter for every expert: only for those who ask
        for (BackboneStatus& backbone : status.backbones) backbone.report.heat.clear();
      }
      response.set_content(ToJson(status), "application/json");
    });
    http_->Get("/metrics", [this](const Request&, Response& response) {
      response.set_content(PrometheusText(Status()), "text/plain; version=0.0.4");
    });
    http_->Get("/", [this](const Request&, Response& response) {
      response.set_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'");
      response.set_content(StatusPage(Status()), "text/html; charset=utf-8");
    });
  }

  StatusReply Status() const {
    StatusReply status = registry_.Status();
    status.version = options_.version;
    return status;
  }

  bool KnowsModel(const Request& request, Response& response) const {
    const std::string wanted = request.path_params.at("model");
    if (served_.Is(wanted)) return true;
    Refuse(response, 404, FaultCode::kRefused,
           std::format("there is no model {} here; this coordinator serves {}", wanted, served_.name()));
    return false;
  }

  void SendShard(const Request& request, Response& response) {
    const auto shard = served_.PlanShard(request.get_param_value("layers"), request.get_param_value("experts"));
    if (!shard) {
      const FaultCode code = shard.error().code;
      return Refuse(response, code == FaultCode::kLocal ? 500 : 400, code, shard.error().text);
    }
    const std::string etag = (*shard)->etag();
    response.set_header("ETag", etag);
    response.set_header("Accept-Ranges", "bytes");
    // The library serves Range by itself but knows nothing of If-Range with a content provider, and for several ranges
    // makes a multipart answer no worker wants: then the whole shard is sent, which is always allowed. The request is
    // the library's own object and not const there.
    auto& ranges = const_cast<Request&>(request).ranges;
    if (ranges.size() > 1 || (request.has_header("If-Range") && request.get_header_value("If-Range") != etag)) {
      ranges.clear();
    }
    auto buffer = std::make_shared<std::vector<std::byte>>();
    response.set_content_provider(
        (*shard)->size_bytes(), "application/octet-stream",
        [this, shard = *shard, buffer](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
          if (stopping_) return false;
          buffer->resize(std::min(length, kReadBytes));
          if (const auto read = shard->Read(offset, *buffer); !read) {
            log_.Error("sending a shard: {}", read.error().text);
            return false;  // the connection breaks off; the client sees that bytes are missing
          }
          return sink.write(reinterpret_cast<const char*>(buffer->data()), buffer->size());
        });
  }

  // `linkcpp token revoke` is another process: nobody tells us.
  void DropRevoked() {
    for (const std::string& token_id : registry_.TokensInUse()) {
      const auto works = tokens_.Works(token_id);
      if (works && !*works) registry_.DropToken(token_id);
    }
  }

  void ExpireUntilStopped() {
    std::unique_lock lock(stop_mutex_);
    while (!stopping_) {
      lock.unlock();
      registry_.Expire();
      DropRevoked();
      lock.lock();
      stop_news_.wait_for(lock, kExpireEvery, [this] { return stopping_.load(); });
    }
  }

  const ServerOptions options_;
  const ServedModel& served_;
  Registry& registry_;
  TokenStore& tokens_;
  LogSink& log_;
  std::unique_ptr<httplib::Server> http_;
  std::uint16_t port_ = 0;
  socket_t listen_socket_ = INVALID_SOCKET;  // the library's
  std::mutex stop_mutex_;
  std::condition_variable stop_news_;
  std::atomic<bool> stopping_ = false;
  std::thread listen_thread_, expire_thread_;
};

}  // namespace

Result<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(const ServerOptions& options,
                                                                    const ServedModel& served, Registry& registry,
                                                                    TokenStore& tokens, LogSink& log) {
  auto server = std::make_unique<Server>(options, served, registry, tokens, log);
  RETURN_IF_FAULT(server->Start());
  return server;
}

}  // namespace linkcpp
