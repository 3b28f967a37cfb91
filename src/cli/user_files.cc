#include "cli/user_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace linkcpp {

namespace fs = std::filesystem;

Result<void> CanBeRead(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return Fail(FaultCode::kLocal, "{} is a folder", path);
  if (::access(path.c_str(), R_OK) != 0) {
    return Fail(FaultCode::kLocal, "{} cannot be read: {}", path, std::strerror(errno));
  }
  return {};
}

Result<void> CanBeWritten(const std::string& path) {
  std::error_code error;
  const bool was_there = fs::exists(fs::symlink_status(path, error));
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0 && errno == ENXIO) return {};  // a pipe whose reader has not come yet
  if (fd < 0) return Fail(FaultCode::kLocal, "{} cannot be written: {}", path, std::strerror(errno));
  ::close(fd);
  if (!was_there) fs::remove(path, error);
  return {};
}

}  // namespace linkcpp
