// A TCP proxy that lets every byte through a fixed time after it came, each way: a longer wire, not a thinner one.
//
//   delay_proxy LISTEN_PORT TARGET_PORT DELAY_MS        all on 127.0.0.1; runs until it is killed
//   delay_proxy echo PORT                               sends back what it gets; runs until it is killed
//   delay_proxy ping PORT                               the median round trip of 64 bytes, in ms
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
  }
  const auto listen_port = argc == 4 ? Parse<std::uint16_t>(argv[1]) : std::nullopt;
  const auto target = argc == 4 ? Parse<std::uint16_t>(argv[2]) : std::nullopt;
  const auto delay_ms = argc == 4 ? Parse<double>(argv[3]) : std::nullopt;
  if (!listen_port || !target || !delay_ms || !(*delay_ms >= 0 && *delay_ms < 60'000)) {
    std::println(stderr, "usage: delay_proxy LISTEN_PORT TARGET_PORT DELAY_MS | echo PORT | ping PORT");
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
