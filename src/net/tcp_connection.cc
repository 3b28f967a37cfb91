#include "net/tcp_connection.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <format>
#include <new>
#include <utility>
#include <vector>

#include "wire/messages.h"

namespace linkcpp {
namespace {

constexpr std::size_t kReceiveBytes = 128 << 10;
constexpr std::size_t kDirectReadBytes = 64 << 10;      // a frame that lacks this much is read into place
constexpr std::size_t kKeepFrameBytes = 16 << 20;       // larger frame buffers are given back after use
constexpr std::size_t kSendCapBytes = 64 << 20;
constexpr std::size_t kRecordBytes = 16 << 10;          // TLS's largest record
constexpr std::size_t kTlsBatchBytes = 256 << 10;       // encrypted before it is offered to the socket
constexpr std::size_t kMaxIov = 64;
constexpr std::size_t kPayloadAlign = 16;
constexpr std::chrono::seconds kFlushTime(5);
constexpr std::chrono::seconds kLingerTime(1);

std::size_t RoundUp(std::size_t n) { return (n + kPayloadAlign - 1) / kPayloadAlign * kPayloadAlign; }

std::string NameOf(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "unknown peer";
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? std::format("[{}]:{}", address, endpoint.port()) : std::format("{}:{}", address, endpoint.port());
}

void SetOptions(asio::ip::tcp::socket& socket) {
  asio::error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
#ifdef __linux__
  // A machine that vanished is noticed within 25 s: idle, by keep-alive probes; with data under way, by the ack timeout.
  using Option = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  socket.set_option(Option(10), ignored);
  socket.set_option(asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>(5), ignored);
  socket.set_option(asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>(3), ignored);
  socket.set_option(asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>(25'000), ignored);
#endif
}

}  // namespace

bool RawBuffer::Reserve(std::size_t size) {
  if (size <= capacity_) return true;
  bytes_.reset();
  capacity_ = 0;
  bytes_.reset(static_cast<std::byte*>(::operator new(size, std::align_val_t(64), std::nothrow)));
  if (bytes_ == nullptr) return false;
  capacity_ = size;
  return true;
}

void RawBuffer::Delete::operator()(std::byte* bytes) const { ::operator delete(bytes, std::align_val_t(64)); }

// ---------------------------------------------------------------- life

std::shared_ptr<TcpConnection> TcpConnection::Create(Transport& transport, Socket socket, std::unique_ptr<TlsSession> tls) {
  SetOptions(socket);
  return std::shared_ptr<TcpConnection>(new TcpConnection(transport, std::move(socket), std::move(tls)));
}

TcpConnection::TcpConnection(Transport& transport, Socket socket, std::unique_ptr<TlsSession> tls)
    : transport_(transport), peer_(NameOf(socket)), socket_(std::move(socket)), tls_(std::move(tls)), timer_(transport.io) {
  set_limits({});
}

TcpConnection::~TcpConnection() {
  if (state_ != State::kOpen && socket_.is_open()) --transport_.n_closing;
}

LinkStats TcpConnection::stats() const {
  return {.frames_sent = frames_sent_, .frames_received = frames_received_, .bytes_sent = bytes_sent_, .bytes_received = bytes_received_};
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

// ---------------------------------------------------------------- out

Result<void> TcpConnection::Send(std::span<const std::byte> header, std::span<const std::span<const std::byte>> payload) {
  std::size_t payload_bytes = 0;
  for (const auto& piece : payload) payload_bytes += piece.size();
  if (header.size() > 0xffffffffu || payload_bytes > 0xffffffffu) {
    return Fail(FaultCode::kLocal, "a frame of {} header and {} payload bytes is too large to send", header.size(), payload_bytes);
  }
  std::array<std::byte, kFrameLengthBytes> lengths;
  PutFrameLengths({static_cast<std::uint32_t>(header.size()), static_cast<std::uint32_t>(payload_bytes)}, lengths);

  // Few pieces is the usual case; many (rows gathered one by one) get a list on the heap.
  std::array<std::span<const std::byte>, 34> few;
  std::vector<std::span<const std::byte>> many;
  std::span<std::span<const std::byte>> pieces;
  if (payload.size() + 2 <= few.size()) {
    pieces = std::span(few).first(payload.size() + 2);
  } else {
    try {
      many.resize(payload.size() + 2);
    } catch (const std::bad_alloc&) {
      return Fail(FaultCode::kLocal, "no memory to send {} pieces", payload.size());
    }
    pieces = many;
  }
  pieces[0] = lengths;
  pieces[1] = header;
  std::ranges::copy(payload, pieces.begin() + 2);
  const std::size_t size = kFrameLengthBytes + header.size() + payload_bytes;

  const std::lock_guard lock(mutex_);
  if (state_ != State::kOpen) return Fail(FaultCode::kGone, "link to {} is closed: {}", peer_, why_.text);
  if (write_broken_) return Fail(FaultCode::kGone, "link to {} is closed by the peer", peer_);
  if (!queue_.empty() && queued_bytes_ + size > kSendCapBytes) {
    return Fail(FaultCode::kBusy, "{} bytes wait for {} already", queued_bytes_, peer_);
  }
  if (!(tls_ ? SendTls(pieces) : SendPlain(pieces))) {
    // Half a frame may be on its way, so nothing can follow it.
    write_broken_ = true;
    asio::post(transport_.io, [self = shared_from_this()] { self->Drop({FaultCode::kLocal, "no memory for the send queue"}); });
    return Fail(FaultCode::kLocal, "no memory to queue {} bytes for {}", size, peer_);
  }
  if (write_broken_) return Fail(FaultCode::kGone, "link to {} is closed by the peer", peer_);
  if (!queue_.empty() && !pumping_) {
    pumping_ = true;
    asio::post(transport_.io, [self = shared_from_this()] { self->PumpQueue(); });
  }
  ++frames_sent_;
  bytes_sent_ += size;
  return {};
}

bool TcpConnection::SendPlain(Pieces pieces) {
  const std::size_t written = queue_.empty() ? WriteNow(pieces) : 0;
  return write_broken_ || Enqueue(pieces, written);
}

bool TcpConnection::SendTls(Pieces pieces) {
  // Records are filled across the pieces' borders: a record costs 22 bytes and about a microsecond.
  std::array<std::byte, kRecordBytes> record;
  std::size_t n = 0;
  const auto encrypt = [&](std::span<const std::byte> bytes) {
    if (!tls_->Write(bytes)) {
      write_broken_ = true;
      return false;
    }
    return tls_->Outgoing().size() < kTlsBatchBytes || SendRecords();
  };
  for (std::span<const std::byte> piece : pieces) {
    while (!piece.empty()) {
      if (n == 0 && piece.size() >= kRecordBytes) {
        if (!encrypt(piece.first(kRecordBytes))) return write_broken_;
        piece = piece.subspan(kRecordBytes);
        continue;
      }
      const std::size_t take = std::min(piece.size(), kRecordBytes - n);
      std::memcpy(record.data() + n, piece.data(), take);
      n += take;
      piece = piece.subspan(take);
      if (n == kRecordBytes) {
        if (!encrypt(record)) return write_broken_;
        n = 0;
      }
    }
  }
  if (n > 0 && !encrypt(std::span(record).first(n))) return write_broken_;
  return SendRecords();
}

bool TcpConnection::SendRecords() {
  const std::array pieces = {tls_->Outgoing()};
  const bool ok = pieces[0].empty() || SendPlain(pieces);
  tls_->ClearOutgoing();
  return ok;
}

std::size_t TcpConnection::WriteNow(Pieces pieces) {
  std::size_t written = 0;
  std::size_t next = 0;  // first piece that is not wholly written
  std::size_t offset = 0;
  while (true) {
    std::array<iovec, kMaxIov> parts;
    std::size_t n_parts = 0;
    std::size_t n_bytes = 0;
    for (std::size_t i = next; i < pieces.size() && n_parts < kMaxIov; ++i) {
      const auto part = i == next ? pieces[i].subspan(offset) : pieces[i];
      if (part.empty()) continue;
      parts[n_parts++] = {const_cast<std::byte*>(part.data()), part.size()};
      n_bytes += part.size();
    }
    if (n_parts == 0) return written;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = n_parts;
    const ssize_t n = sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      // The reader sees why, after what the peer said before it went.
      if (errno != EAGAIN && errno != EWOULDBLOCK) write_broken_ = true;
      return written;
    }
    written += static_cast<std::size_t>(n);
    if (static_cast<std::size_t>(n) < n_bytes) return written;
    for (std::size_t left = static_cast<std::size_t>(n); next < pieces.size();) {
      const std::size_t size = pieces[next].size() - offset;
      if (size > left) {
        offset += left;
        break;
      }
      left -= size;
      offset = 0;
      ++next;
    }
  }
}

bool TcpConnection::Enqueue(Pieces pieces, std::size_t skip_bytes) {
  std::size_t size = 0;
  for (const auto& piece : pieces) size += piece.size();
  if (size == skip_bytes) return true;
  Chunk chunk;
  if (!chunk.bytes.Reserve(size - skip_bytes)) return false;
  for (std::span<const std::byte> piece : pieces) {
    const std::size_t skip = std::min(skip_bytes, piece.size());
    skip_bytes -= skip;
    piece = piece.subspan(skip);
    if (piece.empty()) continue;
    std::memcpy(chunk.bytes.data() + chunk.end, piece.data(), piece.size());
    chunk.end += piece.size();
  }
  try {
    queued_bytes_ += chunk.end;
    queue_.push_back(std::move(chunk));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void TcpConnection::PumpQueue() {
  bool flushed = false;
  {
    const std::lock_guard lock(mutex_);
    while (!queue_.empty() && !write_broken_ && state_ != State::kClosed) {
      std::array<std::span<const std::byte>, kMaxIov> pieces;
      std::size_t n_pieces = 0;
      std::size_t n_bytes = 0;
      for (auto chunk = queue_.begin(); chunk != queue_.end() && n_pieces < kMaxIov; ++chunk) {
        pieces[n_pieces++] = {chunk->bytes.data() + chunk->begin, chunk->end - chunk->begin};
        n_bytes += chunk->end - chunk->begin;
      }
      std::size_t written = WriteNow(std::span(pieces).first(n_pieces));
      const bool full = written < n_bytes;
      queued_bytes_ -= written;
      while (written > 0) {
        Chunk& first = queue_.front();
        const std::size_t take = std::min(written, first.end - first.begin);
        first.begin += take;
        written -= take;
        if (first.begin == first.end) queue_.pop_front();
      }
      if (full && !write_broken_) {
        socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const asio::error_code& error) {
          if (!error) self->PumpQueue();
        });
        return;
      }
    }
    pumping_ = false;
    if (write_broken_) {
      queue_.clear();
      queued_bytes_ = 0;
    }
    flushed = state_ == State::kFlushing;
  }
  if (flushed) FinishClose();
}

// ---------------------------------------------------------------- in

void TcpConnection::Handshake(std::chrono::steady_clock::time_point deadline, std::function<void(Result<void>)> done) {
  handshake_done_ = std::move(done);
  timer_.expires_at(deadline);
  timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error) self->EndHandshake(Fail(FaultCode::kGone, "{} did not finish the TLS handshake in time", self->peer_));
  });
  StepHandshake();
}

void TcpConnection::StepHandshake() {
  Result<bool> step = false;
  {
    const std::lock_guard lock(mutex_);
    step = tls_->Handshake();
    if (!SendRecords()) step = Fail(FaultCode::kLocal, "no memory for the TLS handshake");  // an alert goes out on failure
  }
  if (!step) return EndHandshake(std::unexpected(step.error()));
  if (*step) return EndHandshake({});
  if (!received_.Reserve(kReceiveBytes)) return EndHandshake(Fail(FaultCode::kLocal, "no memory for the TLS handshake"));
  socket_.async_read_some(asio::buffer(received_.data(), received_.capacity()),
                          [self = shared_from_this()](const asio::error_code& error, std::size_t n_bytes) {
                            if (!self->handshake_done_) return;
                            if (error) {
                              return self->EndHandshake(Fail(FaultCode::kGone, "{} broke off the TLS handshake ({}): is it a TLS port?",
                                                             self->peer_, error.message()));
                            }
                            Result<void> fed;
                            {
                              const std::lock_guard lock(self->mutex_);
                              fed = self->tls_->Feed({self->received_.data(), n_bytes});
                            }
                            if (!fed) return self->EndHandshake(std::move(fed));
                            self->StepHandshake();
                          });
}

void TcpConnection::EndHandshake(Result<void> result) {
  const auto done = std::exchange(handshake_done_, nullptr);
  if (!done) return;
  timer_.cancel();
  if (!result) Drop(result.error());
  done(std::move(result));
}

void TcpConnection::ReadMore() {
  if (!received_.Reserve(kReceiveBytes)) return Drop({FaultCode::kLocal, "no memory to receive"});
  reading_ = true;
  asio::mutable_buffer into(received_.data(), received_.capacity());
  // The rest of a large plain frame goes where it belongs, without a copy.
  if (!tls_ && n_lengths_ == kFrameLengthBytes && n_frame_ >= header_bytes_ &&
      header_bytes_ + payload_bytes_ - n_frame_ >= kDirectReadBytes) {
    into = {frame_.data() + RoundUp(header_bytes_) + (n_frame_ - header_bytes_), header_bytes_ + payload_bytes_ - n_frame_};
  }
  socket_.async_read_some(into, [self = shared_from_this()](const asio::error_code& error, std::size_t n_bytes) {
    self->OnRead(error, n_bytes);
  });
}

void TcpConnection::OnRead(const asio::error_code& error, std::size_t n_bytes) {
  reading_ = false;
  bool open = false;
  {
    const std::lock_guard lock(mutex_);
    open = state_ == State::kOpen;
  }
  if (!open) {  // lingering: what still comes is thrown away
    n_lengths_ = 0;
    if (error) {
      bool closed = false;
      {
        const std::lock_guard lock(mutex_);
        closed = state_ == State::kClosed;
      }
      // While flushing, a peer that is gone ends the flush as well.
      closed ? CloseSocket() : Drop({});
    } else {
      ReadMore();
    }
    return;
  }
  if (error) {
    const bool ended = error == asio::error::eof;
    return Drop({FaultCode::kGone, ended ? std::format("{} closed the connection", peer_)
                                         : std::format("connection to {} lost: {}", peer_, error.message())});
  }
  bytes_received_ += n_bytes;

  const bool in_place = !tls_ && n_lengths_ == kFrameLengthBytes && n_frame_ >= header_bytes_ &&
                        header_bytes_ + payload_bytes_ - n_frame_ >= kDirectReadBytes;
  if (in_place) {
    n_frame_ += n_bytes;
    if (n_frame_ == header_bytes_ + payload_bytes_ && !Deliver()) return;
  } else if (!tls_) {
    if (!Consume({received_.data(), n_bytes})) return;
  } else {
    Result<void> fed;
    {
      const std::lock_guard lock(mutex_);
      fed = tls_->Feed({received_.data(), n_bytes});
    }
    if (!fed) return Drop(fed.error());
    if (!Decrypt()) return;
  }
  ReadMore();
}

bool TcpConnection::Decrypt() {
  if (!plain_.Reserve(kReceiveBytes)) {
    Drop({FaultCode::kLocal, "no memory to decrypt"});
    return false;
  }
  while (true) {
    std::size_t n = 0;
    std::optional<Fault> fault;
    {
      const std::lock_guard lock(mutex_);
      while (n < kReceiveBytes) {
        const auto read = tls_->Read({plain_.data() + n, kReceiveBytes - n});
        if (!read) fault = read.error();
        if (!read || *read == 0) break;
        n += *read;
      }
      if (!SendRecords()) fault = Fault{FaultCode::kLocal, "no memory for TLS"};  // key updates
      if (!queue_.empty() && !pumping_) {
        pumping_ = true;
        asio::post(transport_.io, [self = shared_from_this()] { self->PumpQueue(); });
      }
    }
    if (n > 0 && !Consume({plain_.data(), n})) return false;
    if (fault) {
      Drop({fault->code, std::format("{}: {}", peer_, fault->text)});
      return false;
    }
    if (n < kReceiveBytes) return true;
  }
}

// False: the connection is not open any more.
bool TcpConnection::Consume(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (n_lengths_ < kFrameLengthBytes) {
      const std::size_t take = std::min(bytes.size(), kFrameLengthBytes - n_lengths_);
      std::memcpy(lengths_.data() + n_lengths_, bytes.data(), take);
      n_lengths_ += take;
      bytes = bytes.subspan(take);
      if (n_lengths_ < kFrameLengthBytes) return true;
      if (!BeginFrame()) return false;
    }
    const auto copy = [&](std::size_t at, std::size_t wanted) {
      const std::size_t take = std::min(bytes.size(), wanted);
      std::memcpy(frame_.data() + at, bytes.data(), take);
      n_frame_ += take;
      bytes = bytes.subspan(take);
    };
    if (n_frame_ < header_bytes_) copy(n_frame_, header_bytes_ - n_frame_);
    if (n_frame_ >= header_bytes_ && !bytes.empty()) {
      copy(RoundUp(header_bytes_) + n_frame_ - header_bytes_, header_bytes_ + payload_bytes_ - n_frame_);
    }
    if (n_frame_ == header_bytes_ + payload_bytes_ && !Deliver()) return false;
  }
  return true;
}

bool TcpConnection::BeginFrame() {
  const FrameLengths lengths = GetFrameLengths(lengths_);
  if (lengths.header_bytes > max_header_bytes_ || lengths.payload_bytes > max_payload_bytes_) {
    Drop({FaultCode::kMalformed, std::format("{} announced a frame of {} header and {} payload bytes; at most {} and {} are taken: not a linkcpp "
                                             "peer, or one with other limits", peer_, lengths.header_bytes, lengths.payload_bytes,
                                             max_header_bytes_.load(), max_payload_bytes_.load())});
    return false;
  }
  header_bytes_ = lengths.header_bytes;
  payload_bytes_ = lengths.payload_bytes;
  n_frame_ = 0;
  if (!frame_.Reserve(RoundUp(header_bytes_) + payload_bytes_)) {
    Drop({FaultCode::kLocal, std::format("no memory for a frame of {} bytes from {}", header_bytes_ + payload_bytes_, peer_)});
    return false;
  }
  return true;
}

bool TcpConnection::Deliver() {
  n_lengths_ = 0;
  ++frames_received_;
  Result<void> result;
  bool delivered = false;
  try {
    delivered = gate_.Run([&] {
      if (handlers_.on_frame) {
        result = handlers_.on_frame({{frame_.data(), header_bytes_}, {frame_.data() + RoundUp(header_bytes_), payload_bytes_}});
      }
    });
  } catch (const std::exception& error) {
    result = Fail(FaultCode::kLocal, "handling a frame from {}: {}", peer_, error.what());
    delivered = true;
  } catch (...) {
    result = Fail(FaultCode::kLocal, "handling a frame from {} threw", peer_);
    delivered = true;
  }
  header_bytes_ = payload_bytes_ = n_frame_ = 0;
  if (frame_.capacity() > kKeepFrameBytes) frame_.Release();
  if (!delivered || gate_.shut()) handlers_ = {};
  if (!result) Close(result.error());
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kOpen) return true;
  }
  if (!reading_) ReadMore();  // until the peer closes too
  return false;
}

}  // namespace linkcpp
