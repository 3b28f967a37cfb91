// The way out of a connection: on the sender's thread while the socket takes it, else queued.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "net/tcp_connection.h"
#include "wire/messages.h"

namespace linkcpp {
namespace {

constexpr std::size_t kSendCapBytes = 64 << 20;
constexpr std::size_t kRecordBytes = 16 << 10;     // TLS's largest record
constexpr std::size_t kTlsBatchBytes = 256 << 10;  // encrypted before it is offered to the socket
constexpr std::size_t kMaxIov = 64;

}  // namespace

Result<void> TcpConnection::Send(std::span<const std::byte> header,
                                 std::span<const std::span<const std::byte>> payload) {
  std::size_t payload_bytes = 0;
  for (const auto& piece : payload) payload_bytes += piece.size();
  if (header.size() > 0xffffffffu || payload_bytes > 0xffffffffu) {
    return Fail(FaultCode::kLocal, "a frame of {} header and {} payload bytes is too large to send", header.size(),
                payload_bytes);
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
    asio::post(transport_.io,
               [self = shared_from_this()] { self->Drop({FaultCode::kLocal, "no memory for the send queue"}); });
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

}  // namespace linkcpp
