// Tokens: who may talk to this coordinator. One small SQLite file; only hashes are stored.
//
// A token is 256 random bits, so a plain keyed hash (BLAKE2b, the key is the store's own salt) is enough: there is
// nothing to guess. The file is read on every check, so that a token revoked by another process stops working at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace linkcpp {

struct TokenInfo {
  std::string id;    // to list and revoke by; not secret
  std::string name;  // for people
  std::int64_t created_unix_s = 0;
  std::int64_t revoked_unix_s = 0;  // 0: it works
};

class TokenStore {
 public:
  // Makes the file (mode 0600) if it is not there. kLocal: cannot be opened, or is not a token store.
  static Result<std::unique_ptr<TokenStore>> Open(const std::string& path);
  ~TokenStore();

  struct NewToken {
    TokenInfo info;
    std::string token;  // not stored; cannot be had again
  };
  Result<NewToken> New(const std::string& name);
  Result<std::vector<TokenInfo>> List();            // oldest first
  Result<TokenInfo> Revoke(const std::string& id);  // kRefused: no such token. Again is no fault.

  // The id of a token that works, nullopt for any other text. Any thread. About 10 µs.
  Result<std::optional<std::string>> Check(std::string_view token);
  // By its id: false once it was revoked, or if there never was one. Any thread. About 10 µs.
  Result<bool> Works(const std::string& id);

 private:
  struct Database;
  explicit TokenStore(std::unique_ptr<Database> database);
  std::unique_ptr<Database> database_;
};

}  // namespace linkcpp
