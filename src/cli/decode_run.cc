#include "cli/decode_run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "coordinator/host_process.h"

namespace linkcpp {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::uint32_t kMostVocabulary = 1u << 24;

std::unexpected<Fault> Ended(const DecodeJob& job, const HostProcess& child, const std::string& how) {
  std::string text = std::format("libllama, {}, ended {}; its last words:", job.name, how);
  for (const std::string& line : child.LastLines()) text += "\n  " + line;
  if (child.LastLines().empty()) text += " none";
  return Fail(FaultCode::kLocal, "{}", text);
}

std::unexpected<Fault> Stopped() {
  return Fail(FaultCode::kGone, "interrupted");
}

Result<std::unique_ptr<HostProcess>> StartChild(const DecodeJob& job, std::vector<std::string> arguments) {
  HostCommand command;
  command.arguments = std::move(arguments);
  command.environment = job.environment;
  return HostProcess::Start(command, job.folder + "/" + job.name + ".log");
}

// The reading end of a named pipe. Its other end is the child's.
class Pipe {
 public:
  ~Pipe() {
    if (fd_ >= 0) ::close(fd_);
  }
  Result<void> Open(const std::string& path) {
    if (::mkfifo(path.c_str(), 0600) != 0 || (fd_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
      return Fail(FaultCode::kLocal, "no pipe at {}: {}", path, std::strerror(errno));
    }
    return {};
  }
  // Bytes read; 0: nothing now. (No writer yet and no writer any more look the same: ask the child.)
  Result<std::size_t> Read(std::span<std::byte> out) {
    const ssize_t got = ::read(fd_, out.data(), out.size());
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EAGAIN || errno == EINTR) return std::size_t{0};
    return Fail(FaultCode::kLocal, "reading logits: {}", std::strerror(errno));
  }
  void Wait(std::chrono::milliseconds most) const {
    pollfd waiting{fd_, POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(most.count()));
    // A pipe whose writer is gone is always "ready".
    if ((waiting.revents & POLLIN) == 0) ::poll(nullptr, 0, 5);
  }

 private:
  int fd_ = -1;
};

// Takes a child's stream apart: two counts, then rows.
class LogitStream {
 public:
  explicit LogitStream(std::size_t n_positions) : n_positions_(n_positions), bytes_(2 * sizeof(std::uint32_t)) {}

  bool done() const { return row_ == n_positions_; }
  std::uint32_t rows() const { return row_; }
  std::span<std::byte> Free() { return std::span(bytes_).subspan(filled_); }

  Result<void> Took(std::size_t n, const DecodeEvents& events) {
    filled_ += n;
    if (filled_ < bytes_.size() || done()) return {};
    filled_ = 0;
    if (n_vocab_ == 0) {
      std::uint32_t counts[2];
      std::memcpy(counts, bytes_.data(), sizeof counts);
      if (counts[0] == 0 || counts[0] > kMostVocabulary || counts[1] != n_positions_) {
        return Fail(FaultCode::kMalformed, "linkcpp-decode announces {} positions of {} logits: is it of this release?",
                    counts[1], counts[0]);
      }
      n_vocab_ = counts[0];
      logits_.resize(n_vocab_);
      bytes_.resize(n_vocab_ * sizeof(float));
      return {};
    }
    std::memcpy(logits_.data(), bytes_.data(), bytes_.size());
    return events.on_position(row_++, logits_);
  }

 private:
  const std::size_t n_positions_;
  std::uint32_t n_vocab_ = 0, row_ = 0;
  std::vector<std::byte> bytes_;
  std::size_t filled_ = 0;
  std::vector<float> logits_;
};

// Lets the child go on from HOLD, once it waits there; then waits for its end.
Result<void> LetGo(const DecodeJob& job, HostProcess& child, const std::string& hold, const StopSignals& signals) {
  bool let_go = hold.empty();
  while (true) {
    if (const auto how = child.Ended()) {
      if (*how != "with status 0") return Ended(job, child, *how);
      return {};
    }
    if (!let_go) {
      if (const int fd = ::open(hold.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC); fd >= 0) {
        ::close(fd);
        let_go = true;
      }
    }
    if (signals.Wait(std::chrono::milliseconds(10))) return Stopped();
  }
}

}  // namespace

Result<TokenList> RunTokeniser(const DecodeJob& job, const std::string& text_file, const StopSignals& signals) {
  const std::string out = job.folder + "/" + job.name + ".out";
  ASSIGN_OR_RETURN(const auto child, StartChild(job, {job.program, "tokens", job.model, text_file, out}));
  RETURN_IF_FAULT(LetGo(job, *child, "", signals));
  TokenList list;
  std::ifstream file(out);
  std::string kind;
  if (!(file >> list.n_vocab >> kind) || list.n_vocab <= 0) {
    return Fail(FaultCode::kLocal, "linkcpp-decode gives no tokens: is it of this release?");
  }
  list.has_text = kind == "text";
  for (std::int32_t id = 0; file >> id;) list.ids.push_back(id);
  return list;
}

Result<void> RunDecoder(const DecodeJob& job, std::size_t n_positions, const DecodeEvents& events,
                        const StopSignals& signals) {
  const std::string out = job.folder + "/" + job.name + ".logits", hold = job.folder + "/" + job.name + ".hold";
  Pipe pipe;
  RETURN_IF_FAULT(pipe.Open(out));
  if (events.still_attached && ::mkfifo(hold.c_str(), 0600) != 0) {
    return Fail(FaultCode::kLocal, "no pipe at {}: {}", hold, std::strerror(errno));
  }
  ASSIGN_OR_RETURN(const auto child, StartChild(job, {job.program, "logits", job.model, job.tokens_file, out,
                                                      std::to_string(job.n_batch), std::to_string(job.n_steps),
                                                      std::to_string(job.n_threads), events.still_attached ? hold : "-",
                                                      std::format("{}", job.noise), std::to_string(job.seed)}));
  LogitStream stream(n_positions);
  auto next_tick = std::chrono::steady_clock::now();
  std::optional<std::string> ended;
  while (!stream.done()) {
    ASSIGN_OR_RETURN(const std::size_t got, pipe.Read(stream.Free()));
    RETURN_IF_FAULT(stream.Took(got, events));
    if (got == 0) {
      if (ended)
        return Ended(job, *child, std::format("{} after {} of {} positions", *ended, stream.rows(), n_positions));
      ended = child->Ended();  // what it wrote before that is still read
      if (!ended) pipe.Wait(kTick);
    }
    if (const auto now = std::chrono::steady_clock::now(); now >= next_tick) {
      next_tick = now + kTick;
      if (signals.Wait(std::chrono::milliseconds(0))) return Stopped();
      if (events.tick) RETURN_IF_FAULT(events.tick());
    }
  }
  if (events.still_attached && !child->Ended()) RETURN_IF_FAULT(events.still_attached());
  return LetGo(job, *child, events.still_attached ? hold : "", signals);
}

}  // namespace linkcpp
