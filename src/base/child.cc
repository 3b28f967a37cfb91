#include "base/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/spawn.h"

extern char** environ;

namespace linkcpp {
namespace {

constexpr std::size_t kMostBytes = 1 << 16, kMostAnswer = 4 << 20;

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

Result<pid_t> Spawn(const ChildCommand& command, int in, int out, int err) {
  std::vector<std::string> words = command.argv, variables = Environment(command);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (in >= 0) {
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, words[0].c_str(), &actions, nullptr, ExecPointers(words).data(),
                                    ExecPointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return Fail(FaultCode::kLocal, "{} cannot be started: {}", command.argv[0], ::strerror(failed));
  return pid;
}

int StatusOf(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

// Keeps the last `most` bytes at least. false: the other end is closed.
bool Drain(int fd, std::string& text, std::size_t most = kMostBytes) {
  char block[4096];
  const ssize_t n = ::read(fd, block, sizeof block);
  if (n < 0) return errno == EINTR;
  if (n == 0) return false;
  text.append(block, static_cast<std::size_t>(n));
  if (text.size() > 2 * most) text.erase(0, text.size() - most);
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
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const pid_t pid, Spawn(command, -1, out.write, err.write));
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
  outcome.status = StatusOf(status);
  return outcome;
}

Result<std::unique_ptr<AnsweringChild>> AnsweringChild::Start(ChildCommand command) {
  std::unique_ptr<AnsweringChild> child(new AnsweringChild(std::move(command)));
  int ends[2];
  if (!child->err_.Open() || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Fail(FaultCode::kLocal, "no pipe for {}: {}", child->command_.argv[0], ::strerror(errno));
  child->socket_ = ends[0];
  const auto pid = Spawn(child->command_, ends[1], ends[1], child->err_.write);
  ::close(ends[1]);
  child->err_.CloseWrite();
  if (!pid) return std::unexpected(pid.error());
  child->pid_ = *pid;
  return child;
}

AnsweringChild::~AnsweringChild() {
  End(0);
  if (socket_ >= 0) ::close(socket_);
}

int AnsweringChild::End(int grace_ms) {
  int status = 0;
  for (; pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) != pid_; --grace_ms) {
    if (grace_ms > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    ended_by_us_ = true;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
    break;
  }
  pid_ = 0;
  return StatusOf(status);
}

Result<std::string> AnsweringChild::Ask(std::string_view question, const std::function<bool()>& keep_going) {
  if (pid_ <= 0) return Fail(FaultCode::kLocal, "{} has ended", command_.argv[0]);
  const auto start = std::chrono::steady_clock::now();
  ChildOutcome outcome;
  std::string to_write(question);
  to_write += '\n';
  bool open = true;
  while (open) {
    pollfd fds[] = {{socket_, static_cast<short>(POLLIN | (to_write.empty() ? 0 : POLLOUT)), 0},
                    {err_.read, POLLIN, 0}};
    ::poll(fds, 2, 100);
    if ((fds[0].revents & POLLOUT) != 0) {
      const ssize_t n = ::send(socket_, to_write.data(), to_write.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) to_write.erase(0, static_cast<std::size_t>(n));
    }
    if (fds[1].revents != 0 && !Drain(err_.read, outcome.err)) err_.CloseRead();
    if ((fds[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) open = Drain(socket_, outcome.out, kMostAnswer);
    if (const std::size_t end = outcome.out.find('\n'); end != std::string::npos) return outcome.out.substr(0, end);
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    outcome.timed_out = outcome.seconds > command_.timeout_s;
    outcome.stopped = !keep_going();
    if (outcome.timed_out || outcome.stopped) break;
  }
  outcome.status = status_ = End(open ? 0 : 1000);  // one that closed its end is about to
  // What it said last is in the pipe, no more than that holds.
  for (std::size_t before = 0; err_.read >= 0 && before <= kMostBytes; before += 4096) {
    pollfd last{err_.read, POLLIN, 0};
    if (::poll(&last, 1, 0) <= 0 || !Drain(err_.read, outcome.err)) break;
  }
  if (outcome.stopped) return Fail(FaultCode::kLocal, "interrupted");
  if (!open && ended_by_us_) return Fail(FaultCode::kLocal, "{} closed its output unasked", command_.argv[0]);
  return Fail(FaultCode::kLocal, "{}", outcome.LastWords());
}

}  // namespace linkcpp
