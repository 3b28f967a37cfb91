// What a coordinator keeps in its state folder from one start to the next: keys, its two own tokens, and where the
// running `serve` is to be found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "coordinator/token_store.h"
#include "wire/ticket.h"

namespace linkcpp {

inline constexpr const char* kTokenStoreFile = "tokens.db";

// The token in folder/file if it still works, else a new one called `name`, stored there (mode 0600).
Result<std::string> KeepToken(TokenStore& tokens, const std::string& folder, const std::string& file,
                              const std::string& name);

// Kept so that a restarted coordinator signs with the key its backbones already have.
Result<TicketKeys> KeepTicketKeys(const std::string& folder);

// The last `serve` of this user: what `linkcpp status` asks when it is told nothing.
struct ServeRecord {
  std::string url;  // of the control plane, with the certificate's fingerprint
  std::string token;
  std::string api;    // of llama-server; "": no backbone
  std::string model;  // path
  std::int64_t pid = 0;
};
Result<void> SaveServeRecord(const std::string& folder, const ServeRecord& record);
Result<std::optional<ServeRecord>> LoadServeRecord(const std::string& folder);

}  // namespace linkcpp
