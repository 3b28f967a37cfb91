// A connection's life: made, started, closed, let go. Its two directions are in tcp_send.cc and tcp_receive.cc.
#include "net/tcp_connection.h"

#include <netinet/tcp.h>

#include <format>
#include <utility>

namespace linkcpp {
namespace {

constexpr std::chrono::seconds kFlushTime(5);
constexpr std::chrono::seconds kLingerTime(1);

std::string NameOf(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "unknown peer";
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? std::format("[{}]:{}", address, endpoint.port())
                                    : std::format("{}:{}", address, endpoint.port());
}

void SetOptions(asio::ip::tcp::socket& socket) {
  asio::error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
#ifdef __linux__
  // A machine that vanished is noticed within 25 s: idle, by keep-alive probes; with data under way, by the ack
  // timeout.
  using Option = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  socket.set_option(Option(10), ignored);
  socket.set_option(asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>(5), ignored);
  socket.set_option(asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>(3), ignored);
  socket.set_option(asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>(25'000), ignored);
#endif
}

}  // namespace

std::shared_ptr<TcpConnection> TcpConnection::Create(Transport& transport, Socket socket,
                                                     std::unique_ptr<TlsSession> tls) {
  SetOptions(socket);
  return std::shared_ptr<TcpConnection>(new TcpConnection(transport, std::move(socket), std::move(tls)));
}

TcpConnection::TcpConnection(Transport& transport, Socket socket, std::unique_ptr<TlsSession> tls)
    : transport_(transport),
      peer_(NameOf(socket)),
      socket_(std::move(socket)),
      tls_(std::move(tls)),
      timer_(transport.io) {
  set_limits({});
}

TcpConnection::~TcpConnection() {
  if (state_ != State::kOpen && socket_.is_open()) --transport_.n_closing;
}

LinkStats TcpConnection::stats() const {
  return {.frames_sent = frames_sent_,
          .frames_received = frames_received_,
          .bytes_sent = bytes_sent_,
          .bytes_received = bytes_received_};
}

void TcpConnection::set_limits(LinkLimits limits) {
  max_header_bytes_ = limits.max_header_bytes;
  max_payload_bytes_ = limits.max_payload_bytes;
}

void TcpConnection::Start(Link::Handlers handlers) {
  asio::post(transport_.io, [self = shared_from_this(), handlers = std::move(handlers)]() mutable {
    if (self->started_ || self->gate_.shut()) return;
    self->started_ = true;
    self->handlers_ = std::move(handlers);
    bool open = false;
    {
      const std::lock_guard lock(self->mutex_);
      open = self->state_ == State::kOpen;
    }
    if (!open) {
      self->TellClosed();
    } else if (!self->tls_ || self->Decrypt()) {  // frames may have come with the end of the handshake
      self->ReadMore();
    }
  });
}

void TcpConnection::Close(Fault why) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kOpen) return;
    state_ = State::kFlushing;
    why_ = std::move(why);
    ++transport_.n_closing;
  }
  asio::post(transport_.io, [self = shared_from_this()] {
    bool flushed = false;
    {
      const std::lock_guard lock(self->mutex_);
      if (self->state_ != State::kFlushing) return;
      flushed = self->queue_.empty();
    }
    if (flushed) {
      self->FinishClose();
      return;
    }
    self->WaitForFlush();
  });
}

void TcpConnection::WaitForFlush() {
  std::size_t left = 0;
  {
    const std::lock_guard lock(mutex_);
    left = queued_bytes_;
  }
  timer_.expires_after(kFlushTime);
  timer_.async_wait([self = shared_from_this(), left](const asio::error_code& error) {
    if (error) return;
    bool moves = false;  // a slow peer is waited for, one that takes nothing is not
    {
      const std::lock_guard lock(self->mutex_);
      if (self->state_ != State::kFlushing) return;
      moves = self->queued_bytes_ < left;
    }
    moves ? self->WaitForFlush() : self->FinishClose();
  });
}

void TcpConnection::Abandon() {
  gate_.Shut(transport_.thread_id);
  Close({FaultCode::kGone, "the link was destroyed"});
  // What the handlers captured goes now, unless one of them is what called us: then it goes when that one returns.
  if (std::this_thread::get_id() != transport_.thread_id) {
    // No handler runs any more, but Start's post may still be on its way: it looks at the gate first.
    asio::post(transport_.io, [self = shared_from_this()] { self->handlers_ = {}; });
  } else if (!gate_.inside()) {
    handlers_ = {};
  }
}

void TcpConnection::FinishClose() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    queue_.clear();
    queued_bytes_ = 0;
    asio::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  // Closing with unread bytes would reset the connection, and the peer might lose what we said last. So read, and
  // throw away, until the peer closes too; but not for long.
  timer_.expires_after(kLingerTime);
  timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error) self->CloseSocket();
  });
  if (!reading_) ReadMore();
  TellClosed();
}

void TcpConnection::Drop(Fault why) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kClosed) return;
    if (state_ == State::kOpen) {
      why_ = std::move(why);
      ++transport_.n_closing;
    }
    state_ = State::kClosed;
    queue_.clear();
    queued_bytes_ = 0;
  }
  CloseSocket();
  TellClosed();
}

void TcpConnection::CloseSocket() {
  timer_.cancel();
  const std::lock_guard lock(mutex_);
  if (!socket_.is_open()) return;
  asio::error_code ignored;
  socket_.close(ignored);
  --transport_.n_closing;
}

void TcpConnection::TellClosed() {
  if (!started_ || told_) return;
  told_ = true;
  Fault why;
  {
    const std::lock_guard lock(mutex_);
    why = why_;
  }
  const auto handlers = std::exchange(handlers_, {});  // the owner may destroy the link in there
  try {
    gate_.Run([&] {
      if (handlers.on_close) handlers.on_close(why);
    });
  } catch (...) {
    transport_.log.Error("link to {}: on_close threw", peer_);
  }
}

}  // namespace linkcpp
