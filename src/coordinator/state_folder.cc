#include "coordinator/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <format>
#include <system_error>

#include "coordinator/random_text.h"

namespace linkcpp {
namespace {

constexpr std::size_t kMaxSecretBytes = 1 << 20;

struct File {
  int number = -1;
  ~File() {
    if (number >= 0) ::close(number);
  }
};

std::unexpected<Fault> Failed(const std::string& path) {
  return Fail(FaultCode::kLocal, "{}: {}", path, std::strerror(errno));
}

}  // namespace

Result<std::string> DefaultStateFolder() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && state[0] == '/') {
    return std::string(state) + "/linkcpp";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::string(home) + "/.local/state/linkcpp";
  }
  return Fail(FaultCode::kLocal, "neither HOME nor XDG_STATE_HOME is set: name a folder with --state");
}

Result<std::string> OpenStateFolder(const std::string& path) {
  std::string folder = path;
  if (folder.empty()) {
    ASSIGN_OR_RETURN(folder, DefaultStateFolder());
  }
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Failed("cannot make the state folder " + folder);
  struct stat info{};
  if (::stat(folder.c_str(), &info) != 0) return Failed(folder);
  if (!S_ISDIR(info.st_mode)) return Fail(FaultCode::kLocal, "{} is not a folder", folder);
  if (info.st_uid != ::geteuid()) {
    return Fail(FaultCode::kLocal, "the state folder {} belongs to another user: name one of yours with --state",
                folder);
  }
  return folder;
}

Result<void> WriteSecretFile(const std::string& path, std::string_view content) {
  const std::string beside = path + "." + RandomHex(4);
  {
    const File file{::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
    if (file.number < 0) return Failed(beside);
    while (!content.empty()) {
      const ssize_t written = ::write(file.number, content.data(), content.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        auto failed = Failed(path);
        ::unlink(beside.c_str());
        return failed;
      }
      content.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  if (::rename(beside.c_str(), path.c_str()) != 0) {
    auto failed = Failed(path);
    ::unlink(beside.c_str());
    return failed;
  }
  return {};
}

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

Result<FolderLock> FolderLock::Take(const std::string& folder) {
  // The file stays: a name that goes away could be locked by two at once.
  const std::string path = folder + "/serve.lock";
  FolderLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.file_ < 0) return Failed(path);
  if (::flock(lock.file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Failed(path);
    char pid[32] = "";
    const ssize_t got = ::pread(lock.file_, pid, sizeof pid - 1, 0);
    const std::string_view owner(pid, got > 0 ? static_cast<std::size_t>(got) : 0);
    return Fail(
        FaultCode::kBusy,
        "another `linkcpp serve` (process {}) has the state folder {}: stop that one, or give this one a folder "
        "of its own with --state, and its own --listen and --api",
        owner.empty() ? "?" : owner.substr(0, owner.find('\n')), folder);
  }
  const std::string pid = std::format("{}\n", ::getpid());
  if (::ftruncate(lock.file_, 0) != 0 || ::pwrite(lock.file_, pid.data(), pid.size(), 0) < 0) return Failed(path);
  return lock;
}

Result<std::optional<std::string>> ReadSecretFile(const std::string& path) {
  const File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) {
    if (errno == ENOENT) return std::nullopt;
    return Failed(path);
  }
  struct stat info{};
  if (::fstat(file.number, &info) != 0) return Failed(path);
  if ((info.st_mode & 077) != 0) {
    return Fail(FaultCode::kLocal,
                "{} holds a secret and others may read it: chmod 600 it, or delete it to get a new one", path);
  }
  std::string content;
  char part[4096];
  while (true) {
    const ssize_t got = ::read(file.number, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed(path);
    if (got == 0) return content;
    content.append(part, static_cast<std::size_t>(got));
    if (content.size() > kMaxSecretBytes) return Fail(FaultCode::kLocal, "{} is too large for what it should be", path);
  }
}

}  // namespace linkcpp
