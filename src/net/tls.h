// One TLS 1.3 connection as a transform between plain bytes and records, with no socket in it. Private to src/net.
//
// Keeping the socket out lets any thread encrypt and write at once under the link's mutex; asio's own TLS stream would
// send every frame through the transport's thread first. Peers are known by fingerprint, so no chain is built.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "net/tcp.h"

struct x509_st;
struct ssl_st;
struct ssl_ctx_st;

namespace linkcpp {

// Hex SHA-256 of the DER form. "" when OpenSSL cannot make it.
std::string FingerprintOf(x509_st* certificate);
// What OpenSSL has to say about the last thing that failed on this thread; clears it.
std::string OpenSslError();

// A server's certificate and key, ready for many sessions.
class TlsServer {
 public:
  static Result<std::shared_ptr<TlsServer>> Create(
      const Certificate& certificate);  // kLocal: not a certificate and its key
  ~TlsServer();
  ssl_ctx_st* context() const { return context_; }

 private:
  explicit TlsServer(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

// One thread at a time.
class TlsSession {
 public:
  static Result<std::unique_ptr<TlsSession>> Client(const std::string& fingerprint);
  static Result<std::unique_ptr<TlsSession>> Server(const TlsServer& server);
  ~TlsSession();

  // True: finished. False: send what Outgoing() holds and feed in what comes back. kGone: the other side is not the
  // one that the fingerprint names, or speaks no TLS.
  Result<bool> Handshake();

  Result<void> Feed(std::span<const std::byte> records);  // received bytes
  Result<std::size_t> Read(std::span<std::byte> plain);   // 0: feed more first
  Result<void> Write(std::span<const std::byte> plain);   // then send what Outgoing() holds

  std::span<const std::byte> Outgoing() const;  // valid until the next call
  void ClearOutgoing();

 private:
  struct Pin;  // what the client's check wants and saw

  TlsSession();
  std::unique_ptr<Pin> pin_;
  ssl_ctx_st* own_context_ = nullptr;
  ssl_st* ssl_ = nullptr;
};

}  // namespace linkcpp
