// A TCP proxy that lets every byte through a fixed time after it came, each way: a longer wire, not a thinner one.
//
//   delay_proxy LISTEN_PORT TARGET_PORT DELAY_MS        all on 127.0.0.1; runs until it is killed
//   delay_proxy echo PORT                               sends back what it gets; runs until it is killed
//   delay_proxy ping PORT                               the median round trip of 64 bytes, in ms
//   delay_proxy sink PORT                               reads messages, answers each; runs until it is killed
//   delay_proxy flood PORT                              how fast a sink there is reached by long messages, in Mbit/s
//
// One thread reads and one writes for each direction of a connection. What is read in one piece is written in one
// piece, DELAY_MS after it was read, and any number of pieces may be on their way at once. bench/plan_vs_measured.py
// puts it between workers and a backbone's data port, because a container has no netem.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <print>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using ProxyClock = std::chrono::steady_clock;

struct Piece {
  ProxyClock::time_point due;
  std::vector<char> bytes;  // empty: the end
};

// One direction: `from` is read by one thread, `to` written by another.
class Direction {
 public:
  Direction(int from, int to, std::chrono::nanoseconds delay) : from_(from), to_(to), delay_(delay) {}

  void Read() {
    std::vector<char> buffer(1 << 20);
    for (;;) {
      const ssize_t n = ::recv(from_, buffer.data(), buffer.size(), 0);
      const auto due = ProxyClock::now() + delay_;
      const std::lock_guard lock(mutex_);
      pieces_.push_back({due, n > 0 ? std::vector<char>(buffer.begin(), buffer.begin() + n) : std::vector<char>()});
      changed_.notify_one();
      if (n <= 0) return;
    }
  }

  void Write() {
    ::prctl(PR_SET_TIMERSLACK, 1);  // nanoseconds; the default of 50 us would be part of the delay
    for (;;) {
      Piece piece;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !pieces_.empty(); });
        piece = std::move(pieces_.front());
        pieces_.pop_front();
      }
      std::this_thread::sleep_until(piece.due);
      if (piece.bytes.empty()) break;
      for (std::size_t done = 0; done < piece.bytes.size();) {
        const ssize_t n = ::send(to_, piece.bytes.data() + done, piece.bytes.size() - done, MSG_NOSIGNAL);
        if (n <= 0) {
          ::shutdown(from_, SHUT_RD);
          break;
        }
        done += static_cast<std::size_t>(n);
      }
    }
    ::shutdown(to_, SHUT_WR);
  }

 private:
  const int from_, to_;
  const std::chrono::nanoseconds delay_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;  // guarded by mutex_
};

sockaddr_in Loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

void NoDelay(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void Serve(int near, std::uint16_t target, std::chrono::nanoseconds delay) {
  const int far = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(target);
  if (::connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    NoDelay(near);
    NoDelay(far);
    Direction there(near, far, delay), back(far, near, delay);
    std::vector<std::jthread> threads;
    threads.emplace_back([&] { there.Read(); });
    threads.emplace_back([&] { there.Write(); });
    threads.emplace_back([&] { back.Read(); });
    threads.emplace_back([&] { back.Write(); });
  }
  ::close(far);
  ::close(near);
}

int Listen(std::uint16_t port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in address = Loopback(port);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(listener, 64) == 0) {
    return listener;
  }
  std::println(stderr, "127.0.0.1:{} can not be listened on: {}", port, std::strerror(errno));
  return -1;
}

int Echo(std::uint16_t port) {
  const int listener = Listen(port);
  for (int near = listener < 0 ? -1 : ::accept(listener, nullptr, nullptr); near >= 0;
       near = ::accept(listener, nullptr, nullptr)) {
    NoDelay(near);
    char buffer[4096];
    for (ssize_t n = ::recv(near, buffer, sizeof buffer, 0); n > 0; n = ::recv(near, buffer, sizeof buffer, 0)) {
      if (::send(near, buffer, static_cast<std::size_t>(n), MSG_NOSIGNAL) != n) break;
    }
    ::close(near);
  }
  return 1;
}

int Ping(std::uint16_t port) {
  constexpr int kPings = 101, kNotCounted = 5;
  const int far = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(port);
  if (::connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return 1;
  NoDelay(far);
  std::vector<double> times;
  char buffer[64] = {};
  for (int i = 0; i < kPings + kNotCounted; ++i) {
    const auto start = ProxyClock::now();
    if (::send(far, buffer, sizeof buffer, MSG_NOSIGNAL) != sizeof buffer) return 1;
    if (::recv(far, buffer, sizeof buffer, MSG_WAITALL) != sizeof buffer) return 1;
    if (i >= kNotCounted) times.push_back(std::chrono::duration<double, std::milli>(ProxyClock::now() - start).count());
  }
  std::ranges::sort(times);
  std::println("{:.4f}", times[times.size() / 2]);
  return 0;
}

bool SendAll(int socket, const char* bytes, std::size_t n) {
  for (std::size_t at = 0; at < n;) {
    const ssize_t sent = ::send(socket, bytes + at, n - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<std::size_t>(sent);
  }
  return true;
}

// A message is its length, 8 bytes, and as many bytes; they are copied once, as a link does.
int Sink(std::uint16_t port) {
  const int listener = Listen(port);
  std::vector<char> piece(256u << 10), message;
  for (int near = listener < 0 ? -1 : ::accept(listener, nullptr, nullptr); near >= 0;
       near = ::accept(listener, nullptr, nullptr)) {
    NoDelay(near);
    std::uint64_t length = 0;
    while (::recv(near, &length, sizeof length, MSG_WAITALL) == sizeof length) {
      message.resize(length);
      std::size_t at = 0;
      while (at < length) {
        const ssize_t n = ::recv(near, piece.data(), std::min<std::size_t>(piece.size(), length - at), 0);
        if (n <= 0) break;
        std::copy_n(piece.data(), n, message.data() + at);
        at += static_cast<std::size_t>(n);
      }
      if (at < length || !SendAll(near, piece.data(), 1)) break;
    }
    ::close(near);
  }
  return 1;
}

// From the times of a short and a long message, so that what is added to each does not count.
int Flood(std::uint16_t port) {
  constexpr int kRounds = 7;
  constexpr std::uint64_t kShort = 4u << 20, kLong = 36u << 20;
  const int far = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(port);
  if (::connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return 1;
  NoDelay(far);
  const std::vector<char> rows(kLong, 1);
  std::vector<char> message(kLong);
  const auto median = [&](std::uint64_t length) {
    std::vector<double> times;
    for (int i = 0; i < kRounds; ++i) {
      const auto start = ProxyClock::now();
      std::copy_n(rows.begin(), length, message.begin());
      char answer = 0;
      if (!SendAll(far, reinterpret_cast<const char*>(&length), sizeof length) ||
          !SendAll(far, message.data(), length) || ::recv(far, &answer, 1, MSG_WAITALL) != 1) {
        return 0.0;
      }
      times.push_back(std::chrono::duration<double>(ProxyClock::now() - start).count());
    }
    std::ranges::sort(times);
    return times[kRounds / 2];
  };
  const double short_seconds = median(kShort), long_seconds = median(kLong);
  if (short_seconds <= 0 || long_seconds <= short_seconds) return 1;
  std::println("{:.0f}", static_cast<double>(kLong - kShort) * 8 / 1e6 / (long_seconds - short_seconds));
  return 0;
}

template <class Number>
std::optional<Number> Parse(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    const auto port = Parse<std::uint16_t>(argv[2]);
    if (port && std::string_view(argv[1]) == "echo") return Echo(*port);
    if (port && std::string_view(argv[1]) == "ping") return Ping(*port);
    if (port && std::string_view(argv[1]) == "sink") return Sink(*port);
    if (port && std::string_view(argv[1]) == "flood") return Flood(*port);
  }
  const auto listen_port = argc == 4 ? Parse<std::uint16_t>(argv[1]) : std::nullopt;
  const auto target = argc == 4 ? Parse<std::uint16_t>(argv[2]) : std::nullopt;
  const auto delay_ms = argc == 4 ? Parse<double>(argv[3]) : std::nullopt;
  if (!listen_port || !target || !delay_ms || !(*delay_ms >= 0 && *delay_ms < 60'000)) {
    std::println(
        stderr, "usage: delay_proxy LISTEN_PORT TARGET_PORT DELAY_MS | echo PORT | ping PORT | sink PORT | flood PORT");
    return 2;
  }
  const auto delay = std::chrono::nanoseconds(static_cast<std::int64_t>(*delay_ms * 1e6));
  const int listener = Listen(*listen_port);
  for (int near = listener < 0 ? -1 : ::accept(listener, nullptr, nullptr); near >= 0;
       near = ::accept(listener, nullptr, nullptr)) {
    std::thread(Serve, near, *target, delay).detach();
  }
  return 1;
}
