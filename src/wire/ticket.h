// A ticket lets one worker onto one backbone's data port for a short time. The coordinator signs it (ed25519,
// libsodium), the backbone checks it with the public key it got when it attached.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace linkcpp {

struct Ticket {
  std::string node_id;
  std::string backbone_id;
  std::string model_id;  // hex
  std::int64_t expires_unix_s = 0;
};

struct TicketKeys {
  std::string public_key;  // base64
  std::string secret_key;  // base64; never logged, never leaves the coordinator
};
TicketKeys MakeTicketKeys();

// base64. "": secret_key is not one, or an id is longer than 255 bytes (our own bug: ids are ours).
std::string SignTicket(const Ticket& ticket, std::string_view secret_key);
// kMalformed: not a ticket. kRefused: signature wrong, or expired at now_unix_s (60 s of clock skew are allowed).
// kLocal: public_key is not one.
Result<Ticket> OpenTicket(std::string_view text, std::string_view public_key, std::int64_t now_unix_s);

}  // namespace linkcpp
