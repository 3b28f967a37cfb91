// How much does a link cost over a bare socket? One frame there and back on loopback, as one MoE layer of a decode
// step.
//
// Four ways, interleaved, so that a busy machine disturbs all alike:
//   bare      two threads, blocking sockets, one send and one full recv each way: the limit
//   link      TcpNet both ends, the answer handled on the transport's thread
//   waiting   the same, but a thread sends and sleeps until the transport's thread wakes it (one more wake-up)
//   tls       as link, over TLS 1.3
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <print>
#include <string_view>
#include <thread>
#include <vector>

#include "net/tcp.h"

namespace linkcpp {
namespace {

using std::chrono::steady_clock;
using Micros = std::chrono::duration<double, std::micro>;

constexpr std::size_t kHeaderBytes = 200;

bool RecvAll(int socket, std::byte* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t n = recv(socket, bytes, size, MSG_WAITALL);
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

class BareEcho {
 public:
  BareEcho(std::size_t size) : bytes_(size + kHeaderBytes + 8) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof at;
    bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof at);
    listen(listener, 1);
    getsockname(listener, reinterpret_cast<sockaddr*>(&at), &n);
    near_ = socket(AF_INET, SOCK_STREAM, 0);
    connect(near_, reinterpret_cast<const sockaddr*>(&at), sizeof at);
    far_ = accept(listener, nullptr, nullptr);
    close(listener);
    const int on = 1;
    for (const int s : {near_, far_}) setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    thread_ = std::thread([this] {
      std::vector<std::byte> bytes(bytes_.size());
      while (RecvAll(far_, bytes.data(), bytes.size())) {
        if (send(far_, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return;
      }
    });
  }
  ~BareEcho() {
    shutdown(near_, SHUT_RDWR);
    thread_.join();
    close(near_);
    close(far_);
  }
  void Round() {
    if (send(near_, bytes_.data(), bytes_.size(), MSG_NOSIGNAL) < 0 || !RecvAll(near_, bytes_.data(), bytes_.size()))
      std::abort();
  }

 private:
  std::vector<std::byte> bytes_;
  int near_ = -1, far_ = -1;
  std::thread thread_;
};

class LinkEcho {
 public:
  LinkEcho(std::size_t size, bool tls) : header_(kHeaderBytes), payload_(size) {
    const Certificate certificate = tls ? *MakeCertificate("bench") : Certificate{};
    std::promise<std::unique_ptr<Link>> accepted;
    listener_ = *far_net_->Listen("127.0.0.1:0", tls ? &certificate : nullptr,
                                  [&](std::unique_ptr<Link> link) { accepted.set_value(std::move(link)); });
    near_ = *near_net_->Dial(listener_->address(), certificate.fingerprint, std::chrono::seconds(5));
    far_ = accepted.get_future().get();
    far_->Start({.on_frame = [this](const FrameView& frame) { return Send(*far_, frame.header, frame.payload); },
                 .on_close = {}});
    near_->Start({.on_frame = [this](const FrameView&) { return on_answer_(); }, .on_close = {}});
  }

  // The transport's thread plays on alone. Microseconds of each round.
  std::vector<double> Play(int n_rounds) {
    std::vector<double> took;
    std::promise<void> done;
    auto start = steady_clock::now();
    on_answer_ = [&]() -> Result<void> {
      const auto now = steady_clock::now();
      took.push_back(Micros(now - start).count());
      start = now;
      if (static_cast<int>(took.size()) < n_rounds) return Send(*near_, header_, payload_);
      done.set_value();
      return {};
    };
    if (!Send(*near_, header_, payload_)) std::abort();
    done.get_future().wait();
    return took;
  }

  // This thread sends and sleeps.
  std::vector<double> PlayWaiting(int n_rounds) {
    std::mutex mutex;
    std::condition_variable changed;
    int n_answers = 0;
    on_answer_ = [&]() -> Result<void> {
      const std::lock_guard lock(mutex);
      ++n_answers;
      changed.notify_one();
      return {};
    };
    std::vector<double> took;
    for (int i = 0; i < n_rounds; ++i) {
      const auto start = steady_clock::now();
      if (!Send(*near_, header_, payload_)) std::abort();
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return n_answers > i; });
      took.push_back(Micros(steady_clock::now() - start).count());
    }
    return took;
  }

 private:
  static Result<void> Send(Link& link, std::span<const std::byte> header, std::span<const std::byte> payload) {
    const std::array pieces = {payload};
    return link.Send(header, pieces);
  }

  NullLog log_;
  std::unique_ptr<TcpNet> near_net_ = TcpNet::Create(log_), far_net_ = TcpNet::Create(log_);
  std::unique_ptr<TcpNet::Listener> listener_;
  std::vector<std::byte> header_, payload_;
  std::function<Result<void>()> on_answer_;
  std::unique_ptr<Link> near_, far_;
};

double Quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

void Compare(std::size_t size, int n_turns, int n_rounds) {
  BareEcho bare(size);
  LinkEcho link(size, false), tls(size, true);
  std::map<std::string_view, std::vector<double>> took;
  const auto add = [&](std::string_view name, const std::vector<double>& rounds, bool warm) {
    if (warm) took[name].insert(took[name].end(), rounds.begin(), rounds.end());
  };
  for (int turn = 0; turn <= n_turns; ++turn) {  // the first is to warm up
    std::vector<double> rounds;
    for (int i = 0; i < n_rounds; ++i) {
      const auto start = steady_clock::now();
      bare.Round();
      rounds.push_back(Micros(steady_clock::now() - start).count());
    }
    add("bare", rounds, turn > 0);
    add("link", link.Play(n_rounds), turn > 0);
    add("waiting", link.PlayWaiting(n_rounds), turn > 0);
    add("tls", tls.Play(n_rounds), turn > 0);
  }
  const double limit = Quantile(took["bare"], 0.5);
  std::println("{} bytes there and back, {} rounds each, microseconds:", size, n_turns * n_rounds);
  for (const std::string_view name : {"bare", "link", "waiting", "tls"}) {
    const double median = Quantile(took[name], 0.5);
    std::println("  {:8} median {:7.1f}  p10 {:7.1f}  p90 {:7.1f}   {:.2f} x bare", name, median,
                 Quantile(took[name], 0.1), Quantile(took[name], 0.9), median / limit);
  }
}

}  // namespace
}  // namespace linkcpp

int main(int argc, char** argv) {
  const bool smoke = argc > 1 && std::string_view(argv[1]) == "--smoke";
  if (argc > 1 && !smoke) {
    std::println(
        "usage: net_bench [--smoke]\nRound trips of a frame on loopback: bare socket, link, link with a waiting "
        "thread, TLS.");
    return std::string_view(argv[1]) == "--help" ? 0 : 2;
  }
  for (const std::size_t size : {std::size_t{12} << 10, std::size_t{96} << 10})
    linkcpp::Compare(size, smoke ? 2 : 40, smoke ? 20 : 100);
  return 0;
}
