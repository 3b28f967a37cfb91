// HTTP(S) to the coordinator: JSON calls, and ranged downloads with progress. The certificate is pinned by fingerprint.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace linkcpp {

struct HttpEndpoint {
  std::string url;          // "http://127.0.0.1:8090" or "https://host:8090"
  std::string token;        // sent as a bearer token; never logged
  std::string fingerprint;  // https: hex SHA-256 of the certificate to accept; "": the system's roots
};
// A join line "https://host:8090#sha256=<hex>" carries the fingerprint; "http://host" is plain. kLocal: neither, or a
// token that no header can carry.
Result<HttpEndpoint> ParseEndpoint(const std::string& url, const std::string& token);

struct HttpReply {
  int status = 0;
  std::string body;
  std::string etag;
  std::string server;  // what it calls itself: printable, at most 40 bytes; "": does not say
};

// One connection, one request at a time; make one per thread.
class HttpClient {
 public:
  static std::unique_ptr<HttpClient> Create(const HttpEndpoint& endpoint);
  virtual ~HttpClient() = default;

  // `path` with its query, percent-encoded by the caller. kGone: no answer within `timeout`, connection refused or
  // lost. kRefused: 401, 403, wrong certificate (the token was not sent). Other statuses are returned as they are.
  virtual Result<HttpReply> Call(const std::string& method, const std::string& path, const std::string& json_body,
                                 std::chrono::milliseconds timeout) = 0;

  // GET from byte `offset` on (a Range request when offset > 0, with If-Range: etag). `on_status` (may be empty) is
  // told the status and headers before the first byte: 200 (from the start: begin anew) or 206 (from `offset` on);
  // bytes come with these two only. Either callback returning false stops: kGone. The reply's body is empty, or says
  // what went wrong where the status is neither 200 nor 206. No total deadline; kGone after 30 s without a byte, or
  // when the connection ends before the announced length.
  using OnStatus = std::function<bool(const HttpReply& reply, std::uint64_t content_length)>;
  using OnBytes = std::function<bool(const char* data, std::size_t size)>;
  virtual Result<HttpReply> Download(const std::string& path, std::uint64_t offset, const std::string& etag,
                                     const OnStatus& on_status, const OnBytes& on_bytes) = 0;
  Result<HttpReply> Download(const std::string& path, std::uint64_t offset, const std::string& etag,
                             const OnBytes& on_bytes) {
    return Download(path, offset, etag, {}, on_bytes);
  }

  // From another thread: makes a call in progress return kGone soon, and every later one at once.
  virtual void Stop() = 0;
};

}  // namespace linkcpp
