// The coordinator's own files: tokens, keys, certificate, and where the last `serve` can be found. Mode 0700; files in
// it that hold secrets are 0600.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

// One coordinator at a time keeps its things in a folder. The kernel lets go of the lock when its process ends, however
// it ends; children do not inherit it.
class FolderLock {
 public:
  // kBusy: another process has it; the text says which and what to do. kLocal: the file cannot be made or locked.
  static Result<FolderLock> Take(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
};

}  // namespace linkcpp
