// Bytes of a ticket: ed25519 signature (64) | payload, all in base64. The payload has one form only:
//   "LKT1" | 3 × (u16 length, bytes): node_id, backbone_id, model_id | i64 expires_unix_s        (little-endian)
#include "wire/ticket.h"

#include <sodium.h>

#include <array>
#include <cstring>
#include <span>
#include <vector>

namespace linkcpp {
namespace {

constexpr std::string_view kMagic = "LKT1";
constexpr std::size_t kMaxField = 255;
constexpr std::int64_t kSkewSeconds = 60;
constexpr std::size_t kMaxTicketBytes = crypto_sign_BYTES + 4 + 3 * (2 + kMaxField) + 8;
constexpr int kBase64 = sodium_base64_VARIANT_ORIGINAL;

using Bytes = std::vector<unsigned char>;

bool SodiumReady() {
  static const bool ready = sodium_init() >= 0;  // once a process; later calls cost a load
  return ready;
}

std::string ToBase64(std::span<const unsigned char> bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), kBase64), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), kBase64);
  text.pop_back();  // the terminator
  return text;
}

// False: not base64, or more than max_bytes.
bool FromBase64(std::string_view text, std::size_t max_bytes, Bytes& out) {
  out.resize(max_bytes);
  std::size_t size = 0;
  if (sodium_base642bin(out.data(), out.size(), text.data(), text.size(), nullptr, &size, nullptr, kBase64) != 0) {
    return false;
  }
  out.resize(size);
  return true;
}

void PutNumber(Bytes& out, std::uint64_t value, int n_bytes) {
  for (int i = 0; i < n_bytes; ++i) out.push_back(static_cast<unsigned char>(value >> (8 * i)));
}

// Takes little-endian numbers and counted strings off the front; `ok` turns false at the first that is not there.
struct Reader {
  std::span<const unsigned char> rest;
  bool ok = true;

  std::uint64_t Number(std::size_t n_bytes) {
    if (rest.size() < n_bytes) ok = false;
    if (!ok) return 0;
    std::uint64_t value = 0;
    for (std::size_t i = n_bytes; i-- > 0;) value = value << 8 | rest[i];
    rest = rest.subspan(n_bytes);
    return value;
  }
  std::string Text() {
    const std::size_t size = Number(2);
    if (size > kMaxField || rest.size() < size) ok = false;
    if (!ok) return {};
    std::string text(reinterpret_cast<const char*>(rest.data()), size);
    rest = rest.subspan(size);
    return text;
  }
};

}  // namespace

TicketKeys MakeTicketKeys() {
  if (!SodiumReady()) return {};
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> public_key;
  std::array<unsigned char, crypto_sign_SECRETKEYBYTES> secret_key;
  crypto_sign_keypair(public_key.data(), secret_key.data());
  TicketKeys keys{ToBase64(public_key), ToBase64(secret_key)};
  sodium_memzero(secret_key.data(), secret_key.size());
  return keys;
}

std::string SignTicket(const Ticket& ticket, std::string_view secret_key) {
  Bytes key;
  if (!SodiumReady() || !FromBase64(secret_key, crypto_sign_SECRETKEYBYTES, key) ||
      key.size() != crypto_sign_SECRETKEYBYTES) {
    return {};
  }
  Bytes payload(kMagic.begin(), kMagic.end());
  for (const std::string* field : {&ticket.node_id, &ticket.backbone_id, &ticket.model_id}) {
    if (field->size() > kMaxField) return {};
    PutNumber(payload, field->size(), 2);
    payload.insert(payload.end(), field->begin(), field->end());
  }
  PutNumber(payload, static_cast<std::uint64_t>(ticket.expires_unix_s), 8);

  Bytes bytes(crypto_sign_BYTES + payload.size());
  crypto_sign(bytes.data(), nullptr, payload.data(), payload.size(), key.data());
  sodium_memzero(key.data(), key.size());
  return ToBase64(bytes);
}

Result<Ticket> OpenTicket(std::string_view text, std::string_view public_key, std::int64_t now_unix_s) {
  if (!SodiumReady()) return Fail(FaultCode::kLocal, "libsodium does not start: no tickets can be checked");
  Bytes key;
  if (!FromBase64(public_key, crypto_sign_PUBLICKEYBYTES, key) || key.size() != crypto_sign_PUBLICKEYBYTES) {
    return Fail(FaultCode::kLocal,
                "the key to check tickets with is not an ed25519 public key: attach to the coordinator again");
  }
  Bytes bytes;
  if (!FromBase64(text, kMaxTicketBytes, bytes) || bytes.size() < crypto_sign_BYTES + kMagic.size() ||
      std::memcmp(bytes.data() + crypto_sign_BYTES, kMagic.data(), kMagic.size()) != 0) {
    return Fail(FaultCode::kMalformed, "{} bytes of text are not a ticket", text.size());
  }
  Bytes payload(bytes.size());
  unsigned long long payload_size = 0;
  if (crypto_sign_open(payload.data(), &payload_size, bytes.data(), bytes.size(), key.data()) != 0) {
    return Fail(FaultCode::kRefused, "the ticket was not signed by this backbone's coordinator");
  }

  Reader reader{std::span<const unsigned char>(payload.data(), payload_size).subspan(kMagic.size())};
  Ticket ticket;
  ticket.node_id = reader.Text();
  ticket.backbone_id = reader.Text();
  ticket.model_id = reader.Text();
  ticket.expires_unix_s = static_cast<std::int64_t>(reader.Number(8));
  if (!reader.ok || !reader.rest.empty()) return Fail(FaultCode::kMalformed, "the ticket's fields do not decode");
  // In this order nothing overflows, whatever the ticket says.
  if (ticket.expires_unix_s < now_unix_s && ticket.expires_unix_s < now_unix_s - kSkewSeconds) {
    return Fail(FaultCode::kRefused, "the ticket of node {} expired {} s ago: ask the coordinator for a new one",
                ticket.node_id,
                static_cast<std::uint64_t>(now_unix_s) - static_cast<std::uint64_t>(ticket.expires_unix_s));
  }
  return ticket;
}

}  // namespace linkcpp
