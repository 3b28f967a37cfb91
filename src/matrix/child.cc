#include "matrix/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/spawn.h"

extern char** environ;

namespace linkcpp {
namespace {

constexpr std::size_t kMostBytes = 1 << 16;

std::vector<std::string> Environment(const ChildCommand& command) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::ranges::find(command.environment, name, &std::pair<std::string, std::string>::first) ==
        command.environment.end()) {
      all.emplace_back(text);
    }
  }
  for (const auto& [name, value] : command.environment) {
    if (!value.empty()) all.push_back(name + "=" + value);
  }
  return all;
}

// false: the other end is closed.
bool Drain(int fd, std::string& text) {
  char block[4096];
  const ssize_t n = ::read(fd, block, sizeof block);
  if (n < 0) return errno == EINTR;
  if (n == 0) return false;
  text.append(block, static_cast<std::size_t>(n));
  if (text.size() > 2 * kMostBytes) text.erase(0, text.size() - kMostBytes);
  return true;
}

}  // namespace

std::string ChildOutcome::LastWords() const {
  std::string words;
  std::string_view text(err);
  while (!text.empty() && words.empty()) {
    const std::size_t line = text.find_last_of('\n');
    const std::string_view last = line == std::string_view::npos ? text : text.substr(line + 1);
    if (last.find_first_not_of(" \t\r") != std::string_view::npos) words = last;
    text = line == std::string_view::npos ? std::string_view() : text.substr(0, line);
  }
  std::string how;
  if (timed_out) {
    how = std::format("not done after {:.0f} s", seconds);
  } else if (status > 128) {
    how = std::format("ended by signal {} ({})", status - 128, ::strsignal(status - 128));
  } else if (words.empty()) {
    how = std::format("exit status {} and not a word", status);
  }
  if (how.empty()) return words;
  return words.empty() ? how : std::format("{}; its last words: {}", how, words);
}

Result<ChildOutcome> RunChild(const ChildCommand& command, const std::function<bool()>& keep_going) {
  ChildPipe out, err;
  if (!out.Open() || !err.Open())
    return Fail(FaultCode::kLocal, "no pipe for {}: {}", command.argv[0], ::strerror(errno));
  std::vector<std::string> words = command.argv, variables = Environment(command);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write, STDERR_FILENO);
  pid_t pid = 0;
  const auto start = std::chrono::steady_clock::now();
  const int failed = ::posix_spawnp(&pid, words[0].c_str(), &actions, nullptr, ExecPointers(words).data(),
                                    ExecPointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return Fail(FaultCode::kLocal, "{} cannot be started: {}", command.argv[0], ::strerror(failed));
  out.CloseWrite();
  err.CloseWrite();

  ChildOutcome outcome;
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  bool out_open = true, err_open = true, ended = false;
  int status = 0;
  while (!ended || out_open || err_open) {
    pollfd fds[] = {{out_open ? out.read : -1, POLLIN, 0}, {err_open ? err.read : -1, POLLIN, 0}};
    const bool silent = !out_open && !err_open;  // it is about to end: its status comes a moment after its last words
    if (::poll(fds, 2, silent ? 1 : 100) > 0) {
      if (fds[0].revents != 0) out_open = Drain(out.read, outcome.out);
      if (fds[1].revents != 0) err_open = Drain(err.read, outcome.err);
    } else if (ended) {
      break;  // a grandchild keeps the pipe; what it says is not waited for
    }
    if (!ended && ::waitpid(pid, &status, WNOHANG) == pid) ended = true;
    if (ended) continue;
    outcome.timed_out = elapsed() > command.timeout_s;
    outcome.stopped = !keep_going();
    if (outcome.timed_out || outcome.stopped) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      ended = true;
    }
  }
  outcome.seconds = elapsed();
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

}  // namespace linkcpp
