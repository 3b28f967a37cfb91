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

double MeasureWake() {
  Pair pair;
  if (!ConnectOnLoopback(pair)) return 0;
  constexpr int kRounds = 2000;
  std::array<char, 64> bytes{};
  std::jthread echo([far = pair.far] {
    std::array<char, 64> back{};
    for (int i = 0; i < kRounds && ::recv(far, back.data(), back.size(), MSG_WAITALL) == std::ssize(back); ++i) {
      if (::send(far, back.data(), back.size(), MSG_NOSIGNAL) < 0) break;
    }
  });
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (::send(pair.near, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 ||
        ::recv(pair.near, bytes.data(), bytes.size(), MSG_WAITALL) != std::ssize(bytes)) {
      ::shutdown(pair.near, SHUT_RDWR);
      return 0;
    }
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(times, times.begin() + kRounds / 2);
  return times[kRounds / 2] / 2;
}

double MeasureLoopback() {
  Pair pair;
  if (!ConnectOnLoopback(pair)) return 0;
  constexpr int kRounds = 9;
  constexpr std::size_t kMessage = 8u << 20;
  std::jthread sink([far = pair.far] {
    std::vector<char> piece(256u << 10), message(kMessage);
    for (int i = 0; i < kRounds; ++i) {
      for (std::size_t at = 0; at < kMessage;) {
        const ssize_t n = ::recv(far, piece.data(), std::min(piece.size(), kMessage - at), 0);
        if (n <= 0) return;
        std::copy_n(piece.data(), n, message.data() + at);
        at += static_cast<std::size_t>(n);
      }
      if (::send(far, message.data(), 1, MSG_NOSIGNAL) != 1) return;
    }
  });
  const std::vector<char> rows(kMessage, 1);
  std::vector<char> message(kMessage);
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::ranges::copy(rows, message.begin());
    std::size_t at = 0;
    while (at < kMessage) {
      const ssize_t n = ::send(pair.near, message.data() + at, kMessage - at, MSG_NOSIGNAL);
      if (n <= 0) break;
      at += static_cast<std::size_t>(n);
    }
    char answer = 0;
    if (at < kMessage || ::recv(pair.near, &answer, 1, MSG_WAITALL) != 1) {
      ::shutdown(pair.near, SHUT_RDWR);
      return 0;
    }
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(times, times.begin() + kRounds / 2);
  return kMessage / times[kRounds / 2] / 1e9;
}

}  // namespace linkcpp
