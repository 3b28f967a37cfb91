#include "cli/beside.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

namespace linkcpp {
namespace {

std::filesystem::path Self() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

}  // namespace

std::string ProgramBeside(const char* name) {
  return (Self().parent_path() / name).string();
}

std::string LibraryBeside(const char* name) {
  return (Self().parent_path().parent_path() / "lib" / name).string();
}

std::string RunPrefix() {
  const char* prefix = std::getenv("LINKCPP_RUN_PREFIX");
  return prefix == nullptr || *prefix == '\0' ? "" : std::string(prefix) + " ";
}

std::string AsStarted(const std::string& program) {
  if (!program.contains('/')) return RunPrefix() + "linkcpp";
  const bool plain = std::ranges::all_of(program, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+").contains(c);
  });
  if (plain) return RunPrefix() + program;
  std::string quoted = "'";
  for (const char c : program) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return RunPrefix() + quoted + "'";
}

Result<ScratchFolder> ScratchFolder::Make() {
  std::error_code error;
  const auto parent = std::filesystem::temp_directory_path(error);
  if (error) return Fail(FaultCode::kLocal, "no folder for temporary files: {}; set TMPDIR", error.message());
  std::string path = (parent / "linkcpp-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) {
    return Fail(FaultCode::kLocal, "cannot make a folder in {}: {}; set TMPDIR to one that can be written",
                parent.string(), std::strerror(errno));
  }
  return ScratchFolder(std::move(path));
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace linkcpp
