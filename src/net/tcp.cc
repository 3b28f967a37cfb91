#include "net/tcp.h"

#include <pthread.h>
#include <signal.h>

#include <asio.hpp>
#include <future>
#include <thread>
#include <utility>

#include "net/tcp_connection.h"
#include "net/tls.h"

namespace linkcpp {
namespace {

using asio::ip::tcp;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kAcceptHandshakeTime(10);
constexpr int kMaxHandshakes = 256;  // at once; more are closed: whoever opens that many means no good
constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

class TcpLink final : public Link {
 public:
  explicit TcpLink(std::shared_ptr<TcpConnection> connection) : connection_(std::move(connection)) {}
  ~TcpLink() override { connection_->Abandon(); }

  void Start(Handlers handlers) override { connection_->Start(std::move(handlers)); }
  Result<void> Send(std::span<const std::byte> header, std::span<const std::span<const std::byte>> payload) override {
    return connection_->Send(header, payload);
  }
  void Close(std::string reason) override { connection_->Close({FaultCode::kGone, std::move(reason)}); }
  std::string peer() const override { return connection_->peer(); }
  LinkStats stats() const override { return connection_->stats(); }
  void set_limits(LinkLimits limits) override { connection_->set_limits(limits); }

 private:
  const std::shared_ptr<TcpConnection> connection_;
};

std::string NameOf(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? std::format("[{}]:{}", address, endpoint.port())
                                    : std::format("{}:{}", address, endpoint.port());
}

// ---------------------------------------------------------------- listening

struct Listening {
  Listening(Transport& t, std::shared_ptr<TlsServer> server, std::function<void(std::unique_ptr<Link>)> handler)
      : transport(t), acceptor(t.io), pause(t.io), tls(std::move(server)), on_link(std::move(handler)) {}

  Transport& transport;
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  const std::shared_ptr<TlsServer> tls;
  const std::function<void(std::unique_ptr<Link>)> on_link;
  Gate gate;
  int n_handshakes = 0;  // transport's thread

  void HandOver(std::shared_ptr<TcpConnection> connection) {
    auto link = std::make_unique<TcpLink>(std::move(connection));
    try {
      gate.Run([&] { on_link(std::move(link)); });  // the listener is gone: so is the link
    } catch (const std::exception& error) {
      transport.log.Error("taking a new link: {}", error.what());
    }
  }
};

void Accepted(const std::shared_ptr<Listening>& listening, tcp::socket socket) {
  if (!listening->tls)
    return listening->HandOver(TcpConnection::Create(listening->transport, std::move(socket), nullptr));
  if (listening->n_handshakes >= kMaxHandshakes) return;
  auto session = TlsSession::Server(*listening->tls);
  if (!session) return listening->transport.log.Error("accepting a link: {}", session.error().text);
  const auto connection = TcpConnection::Create(listening->transport, std::move(socket), std::move(*session));
  ++listening->n_handshakes;
  connection->Handshake(steady_clock::now() + kAcceptHandshakeTime, [listening, connection](Result<void> result) {
    --listening->n_handshakes;
    if (result) return listening->HandOver(connection);
    listening->transport.log.Debug("{} did not become a link: {}", connection->peer(), result.error().text);
  });
}

asio::awaitable<void> AcceptLoop(std::shared_ptr<Listening> listening) {
  while (!listening->gate.shut()) {
    auto [error, socket] = co_await listening->acceptor.async_accept(kAsTuple);
    if (listening->gate.shut()) co_return;
    if (error) {  // out of file handles, most likely; those that wait stay in the kernel's queue
      listening->transport.log.Warning("accepting links: {}; trying again", error.message());
      listening->pause.expires_after(std::chrono::milliseconds(200));
      co_await listening->pause.async_wait(kAsTuple);
      continue;
    }
    try {
      Accepted(listening, std::move(socket));
    } catch (const std::exception& failure) {
      listening->transport.log.Error("accepting a link: {}", failure.what());
    }
  }
}

class TcpListener final : public TcpNet::Listener {
 public:
  TcpListener(std::shared_ptr<Listening> listening, std::string address)
      : listening_(std::move(listening)), address_(std::move(address)) {}
  ~TcpListener() override {
    listening_->gate.Shut(listening_->transport.thread_id);
    asio::post(listening_->transport.io, [listening = listening_] {
      asio::error_code ignored;
      listening->acceptor.close(ignored);
      listening->pause.cancel();
    });
  }
  std::string address() const override { return address_; }

 private:
  const std::shared_ptr<Listening> listening_;
  const std::string address_;
};

std::unexpected<Fault> CannotListen(const std::string& address, const asio::error_code& error) {
  if (error == asio::error::address_in_use) {
    return Fail(FaultCode::kLocal,
                "{} is in use by another program: stop that one, or choose another port (port 0 takes a free one)",
                address);
  }
  if (error == asio::error::access_denied) {
    return Fail(FaultCode::kLocal, "may not listen on {}: ports below 1024 need privileges, choose a higher one",
                address);
  }
  if (error == asio::error_code(EADDRNOTAVAIL, asio::system_category())) {
    return Fail(FaultCode::kLocal,
                "cannot listen on {}: no interface of this machine has that address (0.0.0.0 means all)", address);
  }
  return Fail(FaultCode::kLocal, "cannot listen on {}: {}", address, error.message());
}

// ---------------------------------------------------------------- dialling

// Until the promise is kept; the thread that dials may have given up before.
struct Dialling {
  std::promise<Result<std::unique_ptr<Link>>> promise;
  bool kept = false;
  void Keep(Result<std::unique_ptr<Link>> result) {
    if (!std::exchange(kept, true)) promise.set_value(std::move(result));
  }
};

asio::awaitable<void> DialLoop(std::shared_ptr<Dialling> dialling, Transport& transport, HostPort to,
                               std::string address, std::unique_ptr<TlsSession> tls,
                               steady_clock::time_point deadline) {
  std::vector<tcp::endpoint> endpoints;
  asio::error_code error;
  if (const auto numeric = asio::ip::make_address(to.host, error); !error) {
    endpoints.emplace_back(numeric, to.port);
  } else {
    tcp::resolver resolver(transport.io);
    auto [failed, found] = co_await resolver.async_resolve(to.host, std::to_string(to.port), kAsTuple);
    if (failed)
      co_return dialling->Keep(Fail(FaultCode::kGone, "the name {} does not resolve: {}", to.host, failed.message()));
    for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  }
  std::string reason = "the name has no address";
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    // What is left of the time is shared among the addresses that are left.
    const auto left = (deadline - steady_clock::now()) / static_cast<long>(endpoints.size() - i);
    if (left <= left.zero()) break;
    tcp::socket socket(transport.io);
    const auto [failed] = co_await socket.async_connect(endpoints[i], asio::cancel_after(left, kAsTuple));
    if (failed == asio::error::operation_aborted) {
      reason = "no answer in time";
      continue;
    }
    if (failed) {
      reason =
          failed == asio::error::connection_refused ? "connection refused: nothing listens there" : failed.message();
      continue;
    }
    if (socket.local_endpoint(error) == socket.remote_endpoint(error)) {
      reason =
          "connection refused: nothing listens there";  // TCP let us dial ourselves; it may for a local ephemeral port
      continue;
    }
    const bool secure = tls != nullptr;
    const auto connection = TcpConnection::Create(transport, std::move(socket), std::move(tls));
    if (!secure) co_return dialling->Keep(std::make_unique<TcpLink>(connection));
    connection->Handshake(deadline, [dialling, connection, address](Result<void> result) {
      if (result) return dialling->Keep(std::make_unique<TcpLink>(connection));
      dialling->Keep(Wrap(result.error(), std::format("dialling {}", address)));
    });
    co_return;
  }
  dialling->Keep(Fail(FaultCode::kGone, "dialling {}: {}", address, reason));
}

// ---------------------------------------------------------------- the transport

class AsioTcpNet final : public TcpNet {
 public:
  explicit AsioTcpNet(LogSink& log)
      : transport_(std::make_shared<Transport>(log)), work_(asio::make_work_guard(transport_->io)) {
    // Signals belong to the host's own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::promise<void> named;
    thread_ = std::thread([transport = transport_, go = named.get_future()]() mutable {
      go.wait();
      Run(*transport);
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    transport_->thread_id = thread_.get_id();
    named.set_value();
  }

  ~AsioTcpNet() override {
    if (std::this_thread::get_id() == transport_->thread_id) {
      // The last owner was a handler. A thread cannot wait for its own end; it takes the transport down as it returns.
      transport_->io.stop();
      thread_.detach();
      return;
    }
    // Last words of links that were just closed. A peer that does not listen can hold us up for so long only.
    const auto deadline = steady_clock::now() + std::chrono::milliseconds(500);
    std::promise<void> turned;  // what was posted before has run
    asio::post(transport_->io, [&] { turned.set_value(); });
    turned.get_future().wait();
    while (transport_->n_closing > 0 && steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    transport_->io.stop();
    thread_.join();
  }

  Result<std::unique_ptr<Listener>> Listen(const std::string& address, const Certificate* certificate,
                                           std::function<void(std::unique_ptr<Link>)> on_link) override {
    try {
      ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(address));
      std::shared_ptr<TlsServer> tls;
      if (certificate != nullptr) {
        ASSIGN_OR_RETURN(tls, TlsServer::Create(*certificate));
      }
      asio::error_code error;
      tcp::endpoint endpoint(asio::ip::make_address(at.host, error), at.port);
      if (error) {
        const auto found =
            tcp::resolver(transport_->io).resolve(at.host, std::to_string(at.port), tcp::resolver::passive, error);
        if (error || found.empty())
          return Fail(FaultCode::kLocal, "cannot listen on {}: the name {} does not resolve", address, at.host);
        endpoint = found.begin()->endpoint();
      }
      auto listening = std::make_shared<Listening>(*transport_, std::move(tls), std::move(on_link));
      tcp::acceptor& acceptor = listening->acceptor;
      acceptor.open(endpoint.protocol(), error);
      if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
      if (!error) acceptor.bind(endpoint, error);
      if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
      if (error) return CannotListen(address, error);
      const tcp::endpoint real = acceptor.local_endpoint(error);
      asio::co_spawn(transport_->io, AcceptLoop(listening), asio::detached);
      return std::make_unique<TcpListener>(std::move(listening), NameOf(real));
    } catch (const std::exception& error) {
      return Fail(FaultCode::kLocal, "cannot listen on {}: {}", address, error.what());
    }
  }

  Result<std::unique_ptr<Link>> Dial(const std::string& address, const std::string& fingerprint,
                                     std::chrono::milliseconds timeout) override {
    if (std::this_thread::get_id() == transport_->thread_id) {
      return Fail(FaultCode::kLocal, "Dial blocks, so it cannot be called on the transport's own thread");
    }
    try {
      ASSIGN_OR_RETURN(HostPort to, ParseHostPort(address));
      std::unique_ptr<TlsSession> tls;
      if (!fingerprint.empty()) {
        ASSIGN_OR_RETURN(tls, TlsSession::Client(fingerprint));
      }
      const auto dialling = std::make_shared<Dialling>();
      auto result = dialling->promise.get_future();
      asio::co_spawn(
          transport_->io,
          DialLoop(dialling, *transport_, std::move(to), address, std::move(tls), steady_clock::now() + timeout),
          asio::detached);
      // A little more than the deadline, so that its own, better reason comes first. Names may take longer to resolve.
      if (result.wait_for(timeout + std::chrono::milliseconds(200)) != std::future_status::ready) {
        return Fail(FaultCode::kGone, "dialling {}: no answer within {} ms", address, timeout.count());
      }
      return result.get();
    } catch (const std::exception& error) {
      return Fail(FaultCode::kGone, "dialling {}: {}", address, error.what());
    }
  }

 private:
  static void Run(Transport& transport) {
    pthread_setname_np(pthread_self(), "linkcpp-net");
    while (true) {
      try {
        transport.io.run();
        return;
      } catch (const std::exception& error) {  // no memory, or a bug; the other links go on
        transport.log.Error("on the transport's thread: {}", error.what());
      }
    }
  }

  const std::shared_ptr<Transport> transport_;  // the thread has it too
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<TcpNet> TcpNet::Create(LogSink& log) {
  return std::make_unique<AsioTcpNet>(log);
}

}  // namespace linkcpp
