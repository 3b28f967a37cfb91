// Links over TCP, plain or TLS 1.3, on one background thread (Asio).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "net/link.h"

namespace linkcpp {

// A self-made certificate and its key, PEM. The fingerprint (hex SHA-256 of the DER certificate) is what peers pin.
struct Certificate {
  std::string certificate_pem;
  std::string key_pem;
  std::string fingerprint;
};
Result<Certificate> MakeCertificate(const std::string& common_name);
// Kept in folder/tls.pem (mode 0600), key and certificate together; made on the first call. Never replaces one.
Result<Certificate> LoadOrMakeCertificate(const std::string& folder, const std::string& common_name);

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
Result<HostPort> ParseHostPort(std::string_view text);  // "127.0.0.1:80", "[::1]:80", "host:80"
bool IsLoopback(std::string_view host);

// The transport's thread. Everything made from it must be destroyed before it. Any thread may call. Its destructor
// waits up to half a second until peers have heard the last words of links that were closed.
class TcpNet {
 public:
  static std::unique_ptr<TcpNet> Create(LogSink& log);
  virtual ~TcpNet() = default;

  class Listener {
   public:
    virtual ~Listener() = default;            // stops accepting; links already accepted live on
    virtual std::string address() const = 0;  // "127.0.0.1:4711", the real port
  };

  // Accepted links go to `on_link` on the transport's thread (Start not called yet). `certificate`: nullptr for plain.
  // kLocal: the port is taken or not ours (the text says which and what to do).
  virtual Result<std::unique_ptr<Listener>> Listen(const std::string& address, const Certificate* certificate,
                                                   std::function<void(std::unique_ptr<Link>)> on_link) = 0;

  // Blocks up to `timeout`. fingerprint "": plain TCP; else TLS with exactly that certificate.
  // kGone: no answer, refused, wrong fingerprint (said so).
  virtual Result<std::unique_ptr<Link>> Dial(const std::string& address, const std::string& fingerprint,
                                             std::chrono::milliseconds timeout) = 0;
};

}  // namespace linkcpp
