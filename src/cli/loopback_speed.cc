#include "cli/loopback_speed.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

namespace linkcpp {
namespace {

struct Pair {
  int near = -1, far = -1;
  ~Pair() {
    ::close(near);
    ::close(far);
  }
};

bool ConnectOnLoopback(Pair& pair) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  bool ok = ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
            ::listen(listener, 1) == 0 && ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  pair.near = ::socket(AF_INET, SOCK_STREAM, 0);
  ok = ok && ::connect(pair.near, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (ok) pair.far = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  const int on = 1;
  for (const int socket : {pair.near, pair.far}) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return ok && pair.far >= 0;
}

}  // namespace

double MeasureWake(double pause_seconds) {
  Pair pair;
  if (!ConnectOnLoopback(pair)) return 0;
  constexpr int kMostRounds = 2000;
  constexpr double kSeconds = 0.2;
  const int n_rounds = std::clamp(static_cast<int>(kSeconds / std::max(pause_seconds, 1e-9)), 50, kMostRounds);
  std::array<char, 64> bytes{};
  std::jthread echo([far = pair.far, n_rounds] {
    std::array<char, 64> back{};
    for (int i = 0; i < n_rounds && ::recv(far, back.data(), back.size(), MSG_WAITALL) == std::ssize(back); ++i) {
      if (::send(far, back.data(), back.size(), MSG_NOSIGNAL) < 0) break;
    }
  });
  std::vector<double> times;
  for (int i = 0; i < n_rounds; ++i) {
    if (pause_seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(pause_seconds));
    const auto start = std::chrono::steady_clock::now();
    if (::send(pair.near, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 ||
        ::recv(pair.near, bytes.data(), bytes.size(), MSG_WAITALL) != std::ssize(bytes)) {
      ::shutdown(pair.near, SHUT_RDWR);
      return 0;
    }
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(times, times.begin() + n_rounds / 2);
  return times[n_rounds / 2] / 2;
}

double MeasureLoopback(std::size_t message_bytes, std::size_t between_bytes, double wake_seconds) {
  Pair pair;
  if (message_bytes == 0 || !ConnectOnLoopback(pair)) return 0;
  constexpr int kRounds = 15;
  const auto forget = [](std::vector<char>& other) {
    for (std::size_t i = 0; i < other.size(); i += 64) ++other[i];
  };
  std::jthread sink([far = pair.far, message_bytes, between_bytes, &forget] {
    std::vector<char> piece(128u << 10), message(message_bytes), other(between_bytes);
    for (int i = 0; i < kRounds; ++i) {
      forget(other);
      if (::send(far, message.data(), 1, MSG_NOSIGNAL) != 1) return;  // ready
      for (std::size_t at = 0; at < message_bytes;) {
        const ssize_t n = ::recv(far, piece.data(), std::min(piece.size(), message_bytes - at), 0);
        if (n <= 0) return;
        std::copy_n(piece.data(), n, message.data() + at);
        at += static_cast<std::size_t>(n);
      }
      if (::send(far, message.data(), 1, MSG_NOSIGNAL) != 1) return;
    }
  });
  const std::vector<char> rows(message_bytes, 1);
  std::vector<char> message(message_bytes), other(between_bytes);
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    char answer = 0;
    bool ok = ::recv(pair.near, &answer, 1, MSG_WAITALL) == 1;
    forget(other);
    const auto start = std::chrono::steady_clock::now();
    std::ranges::copy(rows, message.begin());
    for (std::size_t at = 0; ok && at < message_bytes;) {
      const ssize_t n = ::send(pair.near, message.data() + at, message_bytes - at, MSG_NOSIGNAL);
      ok = n > 0;
      if (ok) at += static_cast<std::size_t>(n);
    }
    if (!ok || ::recv(pair.near, &answer, 1, MSG_WAITALL) != 1) {
      ::shutdown(pair.near, SHUT_RDWR);
      return 0;
    }
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(times, times.begin() + kRounds / 2);
  const double moving = times[kRounds / 2] - 2 * wake_seconds;
  return moving > 0 ? static_cast<double>(message_bytes) / moving / 1e9 : 0;
}

}  // namespace linkcpp
