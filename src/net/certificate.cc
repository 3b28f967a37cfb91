#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

#include "net/tcp.h"
#include "net/tls.h"

namespace linkcpp {
namespace {

using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;

constexpr long kTenYears = 10L * 365 * 24 * 3600;
constexpr long kDay = 24L * 3600;

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size > 0 ? std::string(data, static_cast<std::size_t>(size)) : std::string();
}

std::unexpected<Fault> NoCertificate() {
  return Fail(FaultCode::kLocal, "OpenSSL makes no certificate: {}", OpenSslError());
}

bool SetRandomSerial(X509* x509) {
  std::array<unsigned char, 20> bytes;  // 160 bits, and positive: RFC 5280 4.1.2.2
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) return false;
  bytes[0] &= 0x7f;
  bytes[0] |= 0x40;
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
      BN_bin2bn(bytes.data(), static_cast<int>(bytes.size()), nullptr), BN_free);
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(x509)) != nullptr;
}

// One file holds the key and the certificate, so that there is never one without the other.
Result<Certificate> Load(const std::filesystem::path& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return Fail(FaultCode::kLocal, "{}: {}", path.string(), std::strerror(errno));
  if ((info.st_mode & 077) != 0) {
    return Fail(
        FaultCode::kLocal,
        "{} holds a private key and others may read it (mode {:o}): chmod 600 it, or delete it to get a new one",
        path.string(), info.st_mode & 0777);
  }
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::size_t split = text.find("-----BEGIN CERTIFICATE-----");
  if (split == std::string::npos)
    return Fail(FaultCode::kLocal, "{} holds no certificate: delete it to get a new one", path.string());
  Certificate certificate{text.substr(split), text.substr(0, split), ""};

  const BioPtr bio(
      BIO_new_mem_buf(certificate.certificate_pem.data(), static_cast<int>(certificate.certificate_pem.size())),
      BIO_free);
  const X509Ptr x509(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free);
  certificate.fingerprint = FingerprintOf(x509.get());
  if (const auto server = TlsServer::Create(certificate); !server || certificate.fingerprint.empty()) {
    return Fail(
        FaultCode::kLocal,
        "{} is damaged: delete it to get a new certificate (its fingerprint, and so the join lines, will change)",
        path.string());
  }
  return certificate;
}

// Never replaces a file: of two programs that start at once, one makes the certificate and both use it.
Result<void> WriteNew(const std::filesystem::path& path, const std::string& text) {
  const std::string part = path.string() + ".part" + std::to_string(getpid());
  const auto failed = [&](const char* what) {
    const int error = errno;
    unlink(part.c_str());
    return Fail(FaultCode::kLocal, "{} {}: {}", what, part, std::strerror(error));
  };
  unlink(part.c_str());
  const int file = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return failed("cannot make");
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = write(file, text.data() + at, text.size() - at);
    if (n < 0) {
      const int error = errno;
      close(file);
      errno = error;
      return failed("cannot write");
    }
    at += static_cast<std::size_t>(n);
  }
  const bool synced = fsync(file) == 0;
  if (close(file) != 0 || !synced) return failed("cannot write");
  if (link(part.c_str(), path.c_str()) != 0 && errno != EEXIST) return failed("cannot name");
  unlink(part.c_str());
  return {};
}

}  // namespace

Result<Certificate> MakeCertificate(const std::string& common_name) {
  const KeyPtr key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const X509Ptr x509(X509_new(), X509_free);
  if (!key || !x509) return NoCertificate();
  X509_NAME* name = X509_get_subject_name(x509.get());
  std::string label = common_name.empty() ? "linkcpp" : common_name.substr(0, 64);  // the field's limit
  for (char& c : label) c = c >= ' ' && c <= '~' ? c : '?';  // for people only: peers pin the hash
  const auto* text = reinterpret_cast<const unsigned char*>(label.data());
  if (X509_set_version(x509.get(), X509_VERSION_3) != 1 || !SetRandomSerial(x509.get()) ||
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, static_cast<int>(label.size()), -1, 0) != 1 ||
      X509_set_issuer_name(x509.get(), name) != 1 ||
      X509_gmtime_adj(X509_getm_notBefore(x509.get()), -kDay) == nullptr ||  // peers' clocks may be late
      X509_gmtime_adj(X509_getm_notAfter(x509.get()), kTenYears) == nullptr ||
      X509_set_pubkey(x509.get(), key.get()) != 1 || X509_sign(x509.get(), key.get(), EVP_sha256()) == 0) {
    return NoCertificate();
  }
  const BioPtr certificate_bio(BIO_new(BIO_s_mem()), BIO_free);
  const BioPtr key_bio(BIO_new(BIO_s_mem()), BIO_free);
  if (PEM_write_bio_X509(certificate_bio.get(), x509.get()) != 1 ||
      PEM_write_bio_PrivateKey(key_bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return NoCertificate();
  }
  return Certificate{TextOf(certificate_bio.get()), TextOf(key_bio.get()), FingerprintOf(x509.get())};
}

Result<Certificate> LoadOrMakeCertificate(const std::string& folder, const std::string& common_name) {
  const std::filesystem::path path = std::filesystem::path(folder) / "tls.pem";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    std::filesystem::create_directories(folder, error);
    if (error) return Fail(FaultCode::kLocal, "cannot make folder {}: {}", folder, error.message());
    ASSIGN_OR_RETURN(const Certificate fresh, MakeCertificate(common_name));
    RETURN_IF_FAULT(WriteNew(path, fresh.key_pem + fresh.certificate_pem));
  }
  return Load(path);
}

}  // namespace linkcpp
