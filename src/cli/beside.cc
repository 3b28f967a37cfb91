#include "cli/beside.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
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
