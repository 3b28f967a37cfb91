#include "coordinator/kept.h"

#include <glaze/json.hpp>

#include "base/write_json.h"
#include "coordinator/state_folder.h"

namespace linkcpp {
namespace {

constexpr const char* kTicketKeysFile = "ticket-keys.json";
constexpr const char* kServeFile = "serve.json";

template <class T>
Result<void> Save(const std::string& path, const T& value) {
  return WriteSecretFile(path, WriteJson(value) + "\n");
}

template <class T>
Result<std::optional<T>> Load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadSecretFile(path));
  if (!text) return std::nullopt;
  T value;
  if (glz::read<glz::opts{.error_on_unknown_keys = false}>(value, *text)) {
    return Fail(FaultCode::kLocal, "{} is damaged: delete it, a new one is made at the next start", path);
  }
  return value;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

Result<std::string> KeepToken(TokenStore& tokens, const std::string& folder, const std::string& file,
                              const std::string& name) {
  const std::string path = folder + "/" + file;
  ASSIGN_OR_RETURN(const std::optional<std::string> kept, ReadSecretFile(path));
  if (kept) {
    const std::string token(Trimmed(*kept));
    ASSIGN_OR_RETURN(const std::optional<std::string> id, tokens.Check(token));
    if (id) return token;
  }
  ASSIGN_OR_RETURN(const TokenStore::NewToken fresh, tokens.New(name));
  RETURN_IF_FAULT(WriteSecretFile(path, fresh.token + "\n"));
  return fresh.token;
}

Result<TicketKeys> KeepTicketKeys(const std::string& folder) {
  const std::string path = folder + "/" + kTicketKeysFile;
  ASSIGN_OR_RETURN(std::optional<TicketKeys> kept, Load<TicketKeys>(path));
  if (kept) return *std::move(kept);
  const TicketKeys fresh = MakeTicketKeys();
  RETURN_IF_FAULT(Save(path, fresh));
  return fresh;
}

Result<void> SaveServeRecord(const std::string& folder, const ServeRecord& record) {
  return Save(folder + "/" + kServeFile, record);
}

Result<std::optional<ServeRecord>> LoadServeRecord(const std::string& folder) {
  return Load<ServeRecord>(folder + "/" + kServeFile);
}

}  // namespace linkcpp
