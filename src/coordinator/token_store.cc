#include "coordinator/token_store.h"

#include <fcntl.h>
#include <sodium.h>
#include <sqlite3.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include "coordinator/random_text.h"

namespace linkcpp {
namespace {

constexpr std::size_t kTokenBytes = 32;
constexpr std::size_t kIdBytes = 4;
constexpr std::size_t kSaltBytes = 32;
constexpr int kBusyTimeoutMs = 2000;
constexpr std::size_t kMaxTokenLength = 256;

constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS salt (one INTEGER PRIMARY KEY CHECK (one = 1), bytes BLOB NOT NULL);"
    "CREATE TABLE IF NOT EXISTS tokens ("
    "  id TEXT PRIMARY KEY, name TEXT NOT NULL, hash BLOB NOT NULL UNIQUE,"
    "  created INTEGER NOT NULL, revoked INTEGER NOT NULL DEFAULT 0);";

std::int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// One prepared statement, with values bound in order.
class Query {
 public:
  Query(sqlite3* database, const char* sql) { sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr); }
  ~Query() { sqlite3_finalize(statement_); }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  Query& Text(std::string_view text) {
    sqlite3_bind_text(statement_, ++n_bound_, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Query& Blob(std::string_view bytes) {
    sqlite3_bind_blob(statement_, ++n_bound_, bytes.data(), static_cast<int>(bytes.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Query& Integer(std::int64_t number) {
    sqlite3_bind_int64(statement_, ++n_bound_, number);
    return *this;
  }
  int Step() { return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_); }

  std::string Column(int i) const {
    const void* bytes = sqlite3_column_blob(statement_, i);
    const int size = sqlite3_column_bytes(statement_, i);
    return bytes == nullptr ? "" : std::string(static_cast<const char*>(bytes), static_cast<std::size_t>(size));
  }
  std::int64_t Number(int i) const { return sqlite3_column_int64(statement_, i); }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int n_bound_ = 0;
};

TokenInfo InfoOf(const Query& query) {
  return {query.Column(0), query.Column(1), query.Number(2), query.Number(3)};
}

}  // namespace

struct TokenStore::Database {
  explicit Database(std::string file) : path(std::move(file)) {}
  ~Database() { sqlite3_close(handle); }

  std::unexpected<Fault> Failed(std::string_view doing) const {
    return Fail(FaultCode::kLocal, "{} in the token store {}: {}", doing, path,
                handle == nullptr ? "out of memory" : sqlite3_errmsg(handle));
  }
  std::string HashOf(std::string_view token) const {
    std::string hash(crypto_generichash_BYTES, '\0');
    crypto_generichash(reinterpret_cast<unsigned char*>(hash.data()), hash.size(),
                       reinterpret_cast<const unsigned char*>(token.data()), token.size(),
                       reinterpret_cast<const unsigned char*>(salt.data()), salt.size());
    return hash;
  }

  std::string path;
  sqlite3* handle = nullptr;
  std::string salt;
  std::mutex mutex;  // one statement at a time
};

TokenStore::TokenStore(std::unique_ptr<Database> database) : database_(std::move(database)) {}
TokenStore::~TokenStore() = default;

Result<std::unique_ptr<TokenStore>> TokenStore::Open(const std::string& path) {
  if (sodium_init() < 0) return Fail(FaultCode::kLocal, "libsodium finds no source of random numbers");
  // SQLite would make it readable for all; its journal files take the mode of this one.
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return Fail(FaultCode::kLocal, "the token store {}: {}", path, std::strerror(errno));
  ::close(file);

  auto database = std::make_unique<Database>(path);
  if (sqlite3_open_v2(path.c_str(), &database->handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_FULLMUTEX, nullptr) !=
      SQLITE_OK) {
    return database->Failed("opening");
  }
  sqlite3_busy_timeout(database->handle, kBusyTimeoutMs);
  // Readers go on while another process writes.
  if (sqlite3_exec(database->handle, "PRAGMA journal_mode = WAL", nullptr, nullptr, nullptr) != SQLITE_OK ||
      sqlite3_exec(database->handle, kSchema, nullptr, nullptr, nullptr) != SQLITE_OK) {
    return database->Failed("making the tables");
  }
  std::string salt(kSaltBytes, '\0');
  randombytes_buf(salt.data(), salt.size());
  if (Query(database->handle, "INSERT OR IGNORE INTO salt VALUES (1, ?)").Blob(salt).Step() != SQLITE_DONE) {
    return database->Failed("writing the salt");
  }
  Query query(database->handle, "SELECT bytes FROM salt");
  if (query.Step() != SQLITE_ROW) return database->Failed("reading the salt");
  database->salt = query.Column(0);
  if (database->salt.size() != kSaltBytes) {
    return Fail(FaultCode::kLocal, "{} is not a token store of this version; move it away to start a new one", path);
  }
  return std::unique_ptr<TokenStore>(new TokenStore(std::move(database)));
}

Result<TokenStore::NewToken> TokenStore::New(const std::string& name) {
  NewToken fresh{{RandomHex(kIdBytes), name, UnixNow(), 0}, "lk_" + RandomHex(kTokenBytes)};
  const std::lock_guard lock(database_->mutex);
  const int outcome = Query(database_->handle, "INSERT INTO tokens (id, name, hash, created) VALUES (?, ?, ?, ?)")
                          .Text(fresh.info.id)
                          .Text(name)
                          .Blob(database_->HashOf(fresh.token))
                          .Integer(fresh.info.created_unix_s)
                          .Step();
  if (outcome != SQLITE_DONE) return database_->Failed("adding a token");
  return fresh;
}

Result<std::vector<TokenInfo>> TokenStore::List() {
  std::vector<TokenInfo> tokens;
  const std::lock_guard lock(database_->mutex);
  Query query(database_->handle, "SELECT id, name, created, revoked FROM tokens ORDER BY created, rowid");
  int outcome = query.Step();
  for (; outcome == SQLITE_ROW; outcome = query.Step()) tokens.push_back(InfoOf(query));
  if (outcome != SQLITE_DONE) return database_->Failed("listing tokens");
  return tokens;
}

Result<TokenInfo> TokenStore::Revoke(const std::string& id) {
  const std::lock_guard lock(database_->mutex);
  if (Query(database_->handle, "UPDATE tokens SET revoked = ? WHERE id = ? AND revoked = 0")
          .Integer(UnixNow())
          .Text(id)
          .Step() != SQLITE_DONE) {
    return database_->Failed("revoking a token");
  }
  Query query(database_->handle, "SELECT id, name, created, revoked FROM tokens WHERE id = ?");
  query.Text(id);
  const int outcome = query.Step();
  if (outcome == SQLITE_DONE) {
    return Fail(FaultCode::kRefused, "there is no token {}; `linkcpp token list` shows those there are", id);
  }
  if (outcome != SQLITE_ROW) return database_->Failed("revoking a token");
  return InfoOf(query);
}

Result<bool> TokenStore::Works(const std::string& id) {
  const std::lock_guard lock(database_->mutex);
  Query query(database_->handle, "SELECT 1 FROM tokens WHERE id = ? AND revoked = 0");
  const int outcome = query.Text(id).Step();
  if (outcome != SQLITE_ROW && outcome != SQLITE_DONE) return database_->Failed("looking up a token");
  return outcome == SQLITE_ROW;
}

Result<std::optional<std::string>> TokenStore::Check(std::string_view token) {
  if (token.empty() || token.size() > kMaxTokenLength) return std::nullopt;
  const std::string hash = database_->HashOf(token);
  const std::lock_guard lock(database_->mutex);
  Query query(database_->handle, "SELECT id FROM tokens WHERE hash = ? AND revoked = 0");
  const int outcome = query.Blob(hash).Step();
  if (outcome == SQLITE_ROW) return query.Column(0);
  if (outcome != SQLITE_DONE) return database_->Failed("checking a token");
  return std::nullopt;
}

}  // namespace linkcpp
