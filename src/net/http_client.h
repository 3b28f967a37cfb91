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
// A join line "https://host:8090#sha256=<hex>" carries the fingerprint; "http://host" is plain.
Result<HttpEndpoint> ParseEndpoint(const std::string& url, const std::string& token);

struct HttpReply {
  int status = 0;
  std::string body;
  std::string etag;
};

// One connection, one request at a time; make one per thread.
class HttpClient {
 public:
  static std::unique_ptr<HttpClient> Create(const HttpEndpoint& endpoint);
  virtual ~HttpClient() = default;

  // kGone: no answer within `timeout`, connection refused or lost. kRefused: 401, 403, wrong certificate. Other statuses
  // are returned as they are.
  virtual Result<HttpReply> Call(const std::string& method, const std::string& path, const std::string& json_body,
                                 std::chrono::milliseconds timeout) = 0;

  // GET from byte `offset` on (a Range request when offset > 0, with If-Range: etag). `on_bytes` returning false stops.
  // The reply's body is empty; its status is 200 (from the start: the caller begins anew), 206, 416 or an error.
  virtual Result<HttpReply> Download(const std::string& path, std::uint64_t offset, const std::string& etag,
                                     const std::function<bool(const char* data, std::size_t size)>& on_bytes) = 0;

  // From another thread: makes a call in progress return kGone soon.
  virtual void Stop() = 0;
};

}  // namespace linkcpp
