#include "base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <format>

namespace linkcpp {

bool ReplaceFile(const std::string& path, std::string_view bytes) {
  const std::string part = std::format("{}.{}.part", path, ::getpid());
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote <= 0) break;
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  const bool closed = ::close(fd) == 0;
  if (closed && bytes.empty() && ::rename(part.c_str(), path.c_str()) == 0) return true;
  ::unlink(part.c_str());
  return false;
}

}  // namespace linkcpp
