#include "net/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <array>
#include <climits>
#include <format>

namespace linkcpp {

std::string FingerprintOf(x509_st* certificate) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  if (certificate == nullptr || X509_digest(certificate, EVP_sha256(), digest.data(), &size) != 1) return {};
  std::string hex;
  for (unsigned i = 0; i < size; ++i) hex += std::format("{:02x}", digest[i]);
  return hex;
}

std::string OpenSslError() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  if (const char* reason = ERR_reason_error_string(code)) return reason;
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

Result<std::shared_ptr<TlsServer>> TlsServer::Create(const Certificate& certificate) {
  ERR_clear_error();
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  if (context == nullptr) return Fail(FaultCode::kLocal, "OpenSSL makes no TLS context: {}", OpenSslError());
  std::shared_ptr<TlsServer> server(new TlsServer(context));
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_num_tickets(context, 0);  // links are long; nobody resumes

  const auto memory = [](const std::string& pem) {
    return std::unique_ptr<BIO, decltype(&BIO_free)>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                                                     BIO_free);
  };
  const auto certificate_bio = memory(certificate.certificate_pem);
  const auto key_bio = memory(certificate.key_pem);
  const std::unique_ptr<X509, decltype(&X509_free)> x509(
      PEM_read_bio_X509(certificate_bio.get(), nullptr, nullptr, nullptr), X509_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  if (!x509 || !key || SSL_CTX_use_certificate(context, x509.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return Fail(FaultCode::kLocal, "the TLS certificate and its key do not fit or do not read: {}", OpenSslError());
  }
  return server;
}

TlsServer::~TlsServer() {
  SSL_CTX_free(context_);
}

struct TlsSession::Pin {
  std::string wanted;
  std::string seen;

  // In place of OpenSSL's own check of the chain.
  static int Check(X509_STORE_CTX* store, void* pin_pointer) {
    auto* pin = static_cast<Pin*>(pin_pointer);
    pin->seen = FingerprintOf(X509_STORE_CTX_get0_cert(store));
    if (!pin->seen.empty() && pin->seen == pin->wanted) return 1;
    X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
    return 0;
  }
};

TlsSession::TlsSession() = default;

TlsSession::~TlsSession() {
  SSL_free(ssl_);
  SSL_CTX_free(own_context_);
}

Result<std::unique_ptr<TlsSession>> TlsSession::Client(const std::string& fingerprint) {
  ERR_clear_error();
  std::unique_ptr<TlsSession> session(new TlsSession);
  session->pin_ = std::make_unique<Pin>();
  for (const char c : fingerprint) session->pin_->wanted += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  session->own_context_ = SSL_CTX_new(TLS_client_method());
  if (session->own_context_ == nullptr)
    return Fail(FaultCode::kLocal, "OpenSSL makes no TLS context: {}", OpenSslError());
  SSL_CTX_set_min_proto_version(session->own_context_, TLS1_3_VERSION);
  SSL_CTX_set_verify(session->own_context_, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_verify_callback(session->own_context_, Pin::Check, session->pin_.get());
  session->ssl_ = SSL_new(session->own_context_);
  if (session->ssl_ == nullptr) return Fail(FaultCode::kLocal, "OpenSSL makes no TLS session: {}", OpenSslError());
  SSL_set_bio(session->ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_connect_state(session->ssl_);
  return session;
}

Result<std::unique_ptr<TlsSession>> TlsSession::Server(const TlsServer& server) {
  ERR_clear_error();
  std::unique_ptr<TlsSession> session(new TlsSession);
  session->ssl_ = SSL_new(server.context());
  if (session->ssl_ == nullptr) return Fail(FaultCode::kLocal, "OpenSSL makes no TLS session: {}", OpenSslError());
  SSL_set_bio(session->ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_accept_state(session->ssl_);
  return session;
}

Result<bool> TlsSession::Handshake() {
  ERR_clear_error();
  const int rc = SSL_do_handshake(ssl_);
  if (rc == 1) return true;
  if (SSL_get_error(ssl_, rc) == SSL_ERROR_WANT_READ) return false;
  if (pin_ && !pin_->seen.empty() && pin_->seen != pin_->wanted) {
    ERR_clear_error();
    return Fail(FaultCode::kGone,
                "the peer's certificate is {}, not {}: it is another machine, or has made itself a new certificate",
                pin_->seen, pin_->wanted);
  }
  return Fail(FaultCode::kGone, "TLS handshake failed: {}", OpenSslError());
}

Result<void> TlsSession::Feed(std::span<const std::byte> records) {
  BIO* in = SSL_get_rbio(ssl_);
  while (!records.empty()) {
    const int n = BIO_write(in, records.data(), static_cast<int>(std::min<std::size_t>(records.size(), INT_MAX)));
    if (n <= 0) return Fail(FaultCode::kLocal, "OpenSSL takes no more bytes: {}", OpenSslError());
    records = records.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Result<std::size_t> TlsSession::Read(std::span<std::byte> plain) {
  ERR_clear_error();
  std::size_t n = 0;
  if (SSL_read_ex(ssl_, plain.data(), plain.size(), &n) == 1) return n;
  switch (SSL_get_error(ssl_, 0)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: return 0;
    case SSL_ERROR_ZERO_RETURN: return Fail(FaultCode::kGone, "the peer closed the connection");
    default: return Fail(FaultCode::kGone, "TLS: {}", OpenSslError());
  }
}

Result<void> TlsSession::Write(std::span<const std::byte> plain) {
  ERR_clear_error();
  std::size_t n = 0;
  if (plain.empty() || (SSL_write_ex(ssl_, plain.data(), plain.size(), &n) == 1 && n == plain.size())) return {};
  return Fail(FaultCode::kGone, "TLS: {}", OpenSslError());
}

std::span<const std::byte> TlsSession::Outgoing() const {
  char* data = nullptr;
  const long size = BIO_get_mem_data(SSL_get_wbio(ssl_), &data);
  return {reinterpret_cast<const std::byte*>(data), size > 0 ? static_cast<std::size_t>(size) : 0};
}

void TlsSession::ClearOutgoing() {
  (void)BIO_reset(SSL_get_wbio(ssl_));
}

}  // namespace linkcpp
