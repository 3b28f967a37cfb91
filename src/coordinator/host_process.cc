#include "coordinator/host_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <format>
#include <mutex>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/spawn.h"

extern char** environ;

namespace linkcpp {
namespace {

constexpr std::size_t kLinesKept = 20;
constexpr std::size_t kMaxLineLength = 1000;
constexpr int kPollMs = 100;

// Ours, with the command's on top.
std::vector<std::string> Environment(const HostCommand& command) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!command.environment.contains(text.substr(0, text.find('=')))) merged.push_back(text);
  }
  for (const auto& [name, value] : command.environment) merged.push_back(name + "=" + value);
  return merged;
}

// Between fork and exec in a program with threads: system calls only.
[[noreturn]] void BecomeChild(char** arguments, char** environment, pid_t parent, int output, int failure) {
  ::setpgid(0, 0);  // Ctrl-C in the terminal is for us; we stop the child in order
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
  ::execve(arguments[0], arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(failure, &error, sizeof error);
  ::_exit(127);
}

class Process final : public HostProcess {
 public:
  explicit Process(FILE* log) : log_(log) {}

  ~Process() override {
    if (pid_ > 0 && !ended_) {
      ::kill(-pid_, SIGKILL);
      int status = 0;
      while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
      }
    }
    stop_ = true;
    if (reader_.joinable()) reader_.join();
    if (log_ != nullptr) std::fclose(log_);
  }

  Result<void> Launch(const HostCommand& command) {
    ChildPipe failure;
    if (!output_.Open() || !failure.Open()) return Fail(FaultCode::kLocal, "no pipe: {}", std::strerror(errno));
    std::vector<std::string> arguments = command.arguments;
    std::vector<std::string> environment = Environment(command);
    std::vector<char*> argument_pointers = ExecPointers(arguments), environment_pointers = ExecPointers(environment);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      BecomeChild(argument_pointers.data(), environment_pointers.data(), parent, output_.write, failure.write);
    }
    if (pid_ < 0) return Fail(FaultCode::kLocal, "cannot start {}: {}", arguments[0], std::strerror(errno));
    output_.CloseWrite();
    failure.CloseWrite();
    int error = 0;
    ssize_t got = 0;
    do {
      got = ::read(failure.read, &error, sizeof error);
    } while (got < 0 && errno == EINTR);
    if (got == static_cast<ssize_t>(sizeof error)) {
      return Fail(FaultCode::kLocal, "cannot start {}: {}", arguments[0], std::strerror(error));
    }
    reader_ = std::thread([this] { ReadOutput(); });
    return {};
  }

  pid_t pid() const override { return pid_; }

  std::optional<std::string> Ended() override {
    if (ended_) return ended_;
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != pid_) {
      return std::nullopt;
    }
    ::kill(-pid_, SIGKILL);  // what it left behind, while its number is still ours
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ended_ = WIFSIGNALED(status) ? std::format("by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                                 : std::format("with status {}", WEXITSTATUS(status));
    // What it wrote last is still in the pipe.
    stop_ = true;
    if (reader_.joinable()) reader_.join();
    return ended_;
  }

  std::vector<std::string> LastLines() const override {
    const std::lock_guard lock(mutex_);
    return {lines_.begin(), lines_.end()};
  }

  void Terminate() override {
    if (!ended_) ::kill(pid_, SIGTERM);
  }
  void Kill() override {
    if (!ended_) ::kill(-pid_, SIGKILL);
  }

 private:
  // Ends at end of file, or once told to stop and nothing is left (a grandchild may hold the pipe open).
  void ReadOutput() {
    char bytes[8192];
    std::string line;
    while (true) {
      pollfd waiting{output_.read, POLLIN, 0};
      const int ready = ::poll(&waiting, 1, kPollMs);
      if (ready == 0 && stop_) break;
      if (ready <= 0) continue;
      const ssize_t got = ::read(output_.read, bytes, sizeof bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      std::fwrite(bytes, 1, static_cast<std::size_t>(got), log_);
      std::fflush(log_);
      for (const char c : std::string_view(bytes, static_cast<std::size_t>(got))) {
        if (c == '\n') {
          AddLine(std::exchange(line, {}));
        } else if (line.size() < kMaxLineLength) {
          line += c;
        }
      }
    }
    if (!line.empty()) AddLine(std::move(line));
  }

  void AddLine(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    if (lines_.size() > kLinesKept) lines_.pop_front();
  }

  FILE* log_;
  ChildPipe output_;
  pid_t pid_ = -1;
  std::optional<std::string> ended_;
  std::atomic<bool> stop_ = false;
  std::thread reader_;
  mutable std::mutex mutex_;
  std::deque<std::string> lines_;  // guarded by mutex_
};

}  // namespace

Result<std::unique_ptr<HostProcess>> HostProcess::Start(const HostCommand& command, const std::string& log_path) {
  // Prompts may stand in it, so it is for its owner alone.
  const int file = ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  FILE* log = file < 0 ? nullptr : ::fdopen(file, "w");
  if (log == nullptr) return Fail(FaultCode::kLocal, "{}: {}", log_path, std::strerror(errno));
  auto process = std::make_unique<Process>(log);
  RETURN_IF_FAULT(process->Launch(command));
  return process;
}

std::optional<std::string> FindProgram(const std::string& name) {
  const auto is_program = [](const std::string& path) { return ::access(path.c_str(), X_OK) == 0; };
  if (name.contains('/')) return is_program(name) ? std::optional(name) : std::nullopt;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (folder.empty()) continue;
    if (const std::string candidate = folder + "/" + name; is_program(candidate)) return candidate;
  }
  return std::nullopt;
}

}  // namespace linkcpp
