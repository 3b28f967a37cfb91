// The coordinator's own files: tokens, keys, certificate, and where the last `serve` can be found. Mode 0700; files in
// it that hold secrets are 0600.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace linkcpp {

// $XDG_STATE_HOME/linkcpp, else ~/.local/state/linkcpp. kLocal: neither is known.
Result<std::string> DefaultStateFolder();

// Makes the folder, with parents. "": the default one. kLocal: not possible, or it is somebody else's.
Result<std::string> OpenStateFolder(const std::string& path);

// Written beside and renamed, so that a reader sees the old or the new content; mode 0600. kLocal.
Result<void> WriteSecretFile(const std::string& path, std::string_view content);
// nullopt: there is no such file. kLocal: it cannot be read, is larger than 1 MiB, or others may read it.
Result<std::optional<std::string>> ReadSecretFile(const std::string& path);

}  // namespace linkcpp
