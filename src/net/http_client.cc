#include "net/http_client.h"

#include <httplib.h>
#include <openssl/ssl.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <format>
#include <limits>
#include <string_view>

#include "net/tcp.h"
#include "net/tls.h"
#include "wire/control.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kConnectTime = 5s;
constexpr std::chrono::milliseconds kStallTime = 30s;
constexpr std::size_t kMaxReplyBytes = 256u << 20;  // a detail reply of the largest models is a few MB

// OpenSSL writes to its socket without MSG_NOSIGNAL, and the host process may not ignore SIGPIPE. So a broken pipe's
// signal is held back on this thread for the time of a call, and taken away if one came.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    if (!was_pending_) {
      const timespec now{};
      while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

bool Printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

// For people: what the other side says of itself may end on a terminal.
std::string ServerName(std::string name) {
  std::erase_if(name, [](char c) { return c < ' ' || c > '~'; });
  name.resize(std::min<std::size_t>(name.size(), 40));
  return name;
}

class HttplibClient final : public HttpClient {
 public:
  explicit HttplibClient(const HttpEndpoint& endpoint) : endpoint_(endpoint), client_(endpoint.url) {
    client_.set_keep_alive(true);
    client_.set_follow_location(false);  // a redirect would carry the token elsewhere
    client_.set_path_encode(false);
    client_.set_tcp_nodelay(true);
    if (!endpoint_.fingerprint.empty()) {
      client_.enable_server_certificate_verification(false);  // no chain; the check below is called all the same
      client_.set_session_verifier([this](httplib::tls::session_t session) {
        X509* certificate = SSL_get1_peer_certificate(static_cast<SSL*>(session));
        seen_fingerprint_ = FingerprintOf(certificate);
        X509_free(certificate);
        const bool right = !seen_fingerprint_.empty() && seen_fingerprint_ == endpoint_.fingerprint;
        return right ? httplib::SSLVerifierResponse::CertificateAccepted
                     : httplib::SSLVerifierResponse::CertificateRejected;
      });
    }
    // Called with the request's socket open and known to stop(): a Stop that came before is seen here, one that comes
    // later shuts the socket.
    client_.set_header_writer([this](httplib::Stream& stream, httplib::Headers& headers) -> ssize_t {
      if (stopped_) return -1;
      std::string text;
      for (const auto& [key, value] : headers) text += std::format("{}: {}\r\n", key, value);
      text += "\r\n";
      return stream.write(text.data(), text.size());
    });
  }

  Result<HttpReply> Call(const std::string& method, const std::string& path, const std::string& json_body,
                         std::chrono::milliseconds timeout) override {
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.body = json_body;
    if (!json_body.empty()) request.set_header("Content-Type", "application/json");
    SetConnectTime(std::min(timeout, kConnectTime));
    client_.set_read_timeout(timeout);
    client_.set_write_timeout(timeout);
    client_.set_max_timeout(timeout);
    client_.set_payload_max_length(kMaxReplyBytes);
    auto reply = Perform(request);
    if (reply && (reply->status == 401 || reply->status == 403)) {
      return Fail(FaultCode::kRefused, "{} refused {} {} ({}): {}", endpoint_.url, method, path, reply->status,
                  Reason(reply->body));
    }
    return reply;
  }

  Result<HttpReply> Download(const std::string& path, std::uint64_t offset, const std::string& etag,
                             const OnStatus& on_status, const OnBytes& on_bytes) override {
    httplib::Request request;
    request.method = "GET";
    request.path = path;
    request.set_header("Accept-Encoding", "identity");
    if (offset > 0) {
      request.set_header("Range", std::format("bytes={}-", offset));
      if (!etag.empty()) request.set_header("If-Range", etag);
    }
    bool has_bytes = false;
    std::string error_body;
    request.response_handler = [&](const httplib::Response& response) {
      has_bytes = response.status == 200 || response.status == 206;
      if (!has_bytes || !on_status) return true;
      return on_status({response.status, "", response.get_header_value("ETag")},
                       response.get_header_value_u64("Content-Length"));
    };
    request.content_receiver = [&](const char* data, std::size_t size, std::size_t, std::size_t) {
      if (stopped_) return false;
      if (has_bytes) return on_bytes(data, size);
      error_body.append(data, std::min(size, std::size_t{4096} - std::min(error_body.size(), std::size_t{4096})));
      return true;
    };
    SetConnectTime(kConnectTime);
    client_.set_read_timeout(kStallTime);
    client_.set_write_timeout(kStallTime);
    client_.set_max_timeout(0);
    client_.set_payload_max_length(std::numeric_limits<std::size_t>::max());
    auto reply = Perform(request);
    if (!reply) return reply;
    reply->body = std::move(error_body);
    if (reply->status == 401 || reply->status == 403) {
      return Fail(FaultCode::kRefused, "{} refused GET {} ({}): {}", endpoint_.url, path, reply->status,
                  Reason(reply->body));
    }
    return reply;
  }

  void Stop() override {
    stopped_ = true;
    const NoSigpipe guard;
    try {
      client_.stop();
    } catch (...) {  // a call in progress still sees stopped_
    }
  }

 private:
  // All of it as microseconds, none as seconds: given whole seconds, cpp-httplib 0.41 resolves names with getaddrinfo_a
  // and leaves its request behind on the stack when that is late, for glibc's resolver thread to write to. Given none
  // it calls getaddrinfo, which may take longer than `time` but corrupts nothing. Connecting and TLS add both parts up.
  void SetConnectTime(std::chrono::milliseconds time) {
    client_.set_connection_timeout(0, std::chrono::microseconds(time).count());
  }

  static std::string Reason(const std::string& body) {
    const std::string message = ErrorMessage(body);
    return message.empty() ? "check the token" : message;
  }

  Result<HttpReply> Perform(httplib::Request& request) {
    if (stopped_) return Fail(FaultCode::kGone, "stopped");
    if (!client_.is_valid()) return Fail(FaultCode::kLocal, "{} is not an http or https address", endpoint_.url);
    if (!request.path.starts_with('/') || !Printable(request.path)) {
      return Fail(FaultCode::kLocal, "'{}' is not a path with its query, percent-encoded", request.path);
    }
    if (!endpoint_.token.empty()) request.set_header("Authorization", "Bearer " + endpoint_.token);
    seen_fingerprint_.clear();
    const NoSigpipe guard;
    try {
      const httplib::Result result = client_.send(request);
      if (stopped_) return Fail(FaultCode::kGone, "stopped");
      if (result) {
        return HttpReply{result->status, result->body, result->get_header_value("ETag"),
                         ServerName(result->get_header_value("Server"))};
      }
      return FaultOf(request, result.error());
    } catch (const std::exception& error) {
      return Fail(FaultCode::kGone, "{} {}{}: {}", request.method, endpoint_.url, request.path, error.what());
    }
  }

  std::unexpected<Fault> FaultOf(const httplib::Request& request, httplib::Error error) const {
    const bool wrong_certificate =
        error == httplib::Error::SSLServerVerification || error == httplib::Error::SSLServerHostnameVerification;
    if (wrong_certificate && !endpoint_.fingerprint.empty()) {
      return Fail(FaultCode::kRefused,
                  "{} has certificate {}, not {}: it is another machine, or has made itself a new certificate (get a "
                  "new join line)",
                  endpoint_.url, seen_fingerprint_, endpoint_.fingerprint);
    }
    if (wrong_certificate || error == httplib::Error::SSLLoadingCerts) {
      return Fail(FaultCode::kRefused,
                  "{}: the certificate is not one that this system trusts; use the join line with #sha256=…",
                  endpoint_.url);
    }
    if (error == httplib::Error::Canceled)
      return Fail(FaultCode::kGone, "{} {}{}: stopped by the receiver", request.method, endpoint_.url, request.path);
    const bool plain_to_tls = error == httplib::Error::Read && endpoint_.url.starts_with("http://");
    return Fail(FaultCode::kGone, "{} {}{}: {}{}", request.method, endpoint_.url, request.path,
                httplib::to_string(error),
                plain_to_tls ? " (a coordinator off loopback speaks TLS: use its join line, https://…#sha256=…)" : "");
  }

  const HttpEndpoint endpoint_;
  std::atomic<bool> stopped_ = false;
  std::string seen_fingerprint_;
  httplib::Client client_;
};

}  // namespace

Result<HttpEndpoint> ParseEndpoint(const std::string& url, const std::string& token) {
  const auto wrong = [&](std::string_view why) {
    return Fail(FaultCode::kLocal,
                "'{}' is no coordinator address ({}): write http://127.0.0.1:8090, or https://host:8090#sha256=… as "
                "its join line says",
                url, why);
  };
  std::string_view rest = url;
  const bool secure = rest.starts_with("https://");
  if (!secure && !rest.starts_with("http://")) return wrong("neither http:// nor https://");
  const std::string scheme = secure ? "https://" : "http://";
  rest.remove_prefix(scheme.size());

  HttpEndpoint endpoint;
  endpoint.token = token;
  if (!Printable(token))
    return Fail(FaultCode::kLocal, "the token has characters that no token has (spaces, line ends?)");
  if (const std::size_t hash = rest.find('#'); hash != std::string_view::npos) {
    constexpr std::string_view kPin = "sha256=";
    std::string_view pin = rest.substr(hash + 1);
    rest = rest.substr(0, hash);
    if (!pin.starts_with(kPin)) return wrong("what follows # is not sha256=…");
    pin.remove_prefix(kPin.size());
    for (const char c : pin) endpoint.fingerprint += static_cast<char>(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
    const bool hex = std::ranges::all_of(endpoint.fingerprint,
                                         [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
    if (pin.size() != 64 || !hex) return wrong("the fingerprint is not 64 hex digits: was it cut?");
    if (!secure) return wrong("a fingerprint needs https://");
  }
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find('/') != std::string_view::npos) return wrong("a path is not part of it");
  const bool has_port = rest.rfind(':') != std::string_view::npos && !rest.ends_with(']');
  const std::string host_port = has_port ? std::string(rest) : std::string(rest) + (secure ? ":443" : ":80");
  const auto parsed = ParseHostPort(host_port);
  if (!parsed) return wrong("no host and port");
  if (parsed->port == 0) return wrong("port 0");
  endpoint.url = scheme + host_port;
  return endpoint;
}

std::unique_ptr<HttpClient> HttpClient::Create(const HttpEndpoint& endpoint) {
  return std::make_unique<HttplibClient>(endpoint);
}

}  // namespace linkcpp
