// Where our other programs and libraries are: beside this one, as they are built and installed. And a folder of our own
// for as long as a command runs.
#pragma once

#include <string>

#include "base/result.h"

namespace linkcpp {

std::string ProgramBeside(const char* name);  // the folder of this program / name
std::string LibraryBeside(const char* name);  // ../lib/name from there

// How the user can call `program` (argv[0]) again, for lines to paste: as typed if it was a path, else by its name, and
// with what LINKCPP_RUN_PREFIX says in front (./dev run sets that).
std::string AsStarted(const std::string& program);
std::string RunPrefix();  // "./dev run " or ""

// Made in TMPDIR or /tmp with mode 0700; goes away with everything in it.
class ScratchFolder {
 public:
  static Result<ScratchFolder> Make();  // kLocal: not possible there, with the reason
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder();
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace linkcpp
