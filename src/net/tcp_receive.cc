// The way into a connection: the TLS handshake, then bytes into frames into the owner's handler.
#include <algorithm>
#include <cstring>
#include <format>
#include <utility>

#include "net/tcp_connection.h"
#include "wire/messages.h"

namespace linkcpp {
namespace {

constexpr std::size_t kReceiveBytes = 128 << 10;
constexpr std::size_t kDirectReadBytes = 64 << 10;  // a frame that lacks this much is read into place
constexpr std::size_t kKeepFrameBytes = 16 << 20;   // larger frame buffers are given back after use
constexpr std::size_t kPayloadAlign = 16;

std::size_t RoundUp(std::size_t n) {
  return (n + kPayloadAlign - 1) / kPayloadAlign * kPayloadAlign;
}

}  // namespace

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
    if (!SendRecords())
      step = Fail(FaultCode::kLocal, "no memory for the TLS handshake");  // an alert goes out on failure
  }
  if (!step) return EndHandshake(std::unexpected(step.error()));
  if (*step) return EndHandshake({});
  if (!received_.Reserve(kReceiveBytes))
    return EndHandshake(Fail(FaultCode::kLocal, "no memory for the TLS handshake"));
  socket_.async_read_some(
      asio::buffer(received_.data(), received_.capacity()),
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
    into = {frame_.data() + RoundUp(header_bytes_) + (n_frame_ - header_bytes_),
            header_bytes_ + payload_bytes_ - n_frame_};
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
    Drop(
        {FaultCode::kMalformed,
         std::format(
             "{} announced a frame of {} header and {} payload bytes; at most {} and {} are taken: not a linkcpp "
             "peer, or one with other limits",
             peer_, lengths.header_bytes, lengths.payload_bytes, max_header_bytes_.load(), max_payload_bytes_.load())});
    return false;
  }
  header_bytes_ = lengths.header_bytes;
  payload_bytes_ = lengths.payload_bytes;
  n_frame_ = 0;
  if (!frame_.Reserve(RoundUp(header_bytes_) + payload_bytes_)) {
    Drop({FaultCode::kLocal,
          std::format("no memory for a frame of {} bytes from {}", header_bytes_ + payload_bytes_, peer_)});
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
        result = handlers_.on_frame(
            {{frame_.data(), header_bytes_}, {frame_.data() + RoundUp(header_bytes_), payload_bytes_}});
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
