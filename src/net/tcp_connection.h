// One TCP connection with frames on it, plain or TLS: the state behind a TcpNet link. Private to src/net.
//
// Reading happens on the transport's thread. Sending happens on the thread that sends as long as the socket takes the
// bytes; what it does not take is queued and written by the transport's thread. The mutex guards the way out (queue,
// TLS session, state); the way in belongs to the transport's thread alone.
#pragma once

#include <array>
#include <asio.hpp>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/log.h"
#include "net/gate.h"
#include "net/link.h"
#include "net/raw_buffer.h"
#include "net/tls.h"

namespace linkcpp {

// What connections share. Lives as long as TcpNet.
struct Transport {
  explicit Transport(LogSink& sink) : log(sink) {}
  LogSink& log;
  std::atomic<int> n_closing = 0;  // connections whose last bytes are still under way
  std::thread::id thread_id;       // set before anything runs
  asio::io_context io{1};          // last: what waits in it refers to the rest
};

class TcpConnection : public std::enable_shared_from_this<TcpConnection> {
 public:
  using Socket = asio::ip::tcp::socket;

  // tls: nullptr for plain.
  static std::shared_ptr<TcpConnection> Create(Transport& transport, Socket socket, std::unique_ptr<TlsSession> tls);
  ~TcpConnection();

  // TLS only, on the transport's thread, before anything else. `done` is called once, on that thread.
  void Handshake(std::chrono::steady_clock::time_point deadline, std::function<void(Result<void>)> done);

  // The owner's calls, any thread; see net/link.h.
  void Start(Link::Handlers handlers);
  Result<void> Send(std::span<const std::byte> header, std::span<const std::span<const std::byte>> payload);
  void Close(Fault why);
  void Abandon();  // the owner goes away

  const std::string& peer() const { return peer_; }
  LinkStats stats() const;
  void set_limits(LinkLimits limits);

 private:
  enum class State { kOpen, kFlushing, kClosed };
  struct Chunk {
    RawBuffer bytes;
    std::size_t begin = 0, end = 0;
  };
  using Pieces = std::span<const std::span<const std::byte>>;

  TcpConnection(Transport& transport, Socket socket, std::unique_ptr<TlsSession> tls);

  // Way out; mutex_ held.
  std::size_t WriteNow(Pieces pieces);  // bytes that the socket took; sets write_broken_
  bool Enqueue(Pieces pieces, std::size_t skip_bytes);
  bool SendPlain(Pieces pieces);
  bool SendTls(Pieces pieces);
  bool SendRecords();  // what tls_ has made

  // Transport's thread.
  void PumpQueue();
  void StepHandshake();
  void EndHandshake(Result<void> result);
  void ReadMore();
  void OnRead(const asio::error_code& error, std::size_t n_bytes);
  bool Decrypt();  // false: closed
  bool Consume(std::span<const std::byte> bytes);
  bool BeginFrame();
  bool Deliver();
  void WaitForFlush();
  void FinishClose();  // everything is written, or will not be
  void Drop(Fault why);
  void TellClosed();
  void CloseSocket();

  Transport& transport_;
  const std::string peer_;
  Gate gate_;

  mutable std::mutex mutex_;
  Socket socket_;  // closed under mutex_ only
  std::unique_ptr<TlsSession> tls_;
  State state_ = State::kOpen;
  Fault why_;                // once not open
  std::deque<Chunk> queue_;  // bytes as they go on the wire
  std::size_t queued_bytes_ = 0;
  bool pumping_ = false;  // the transport's thread will empty the queue
  bool write_broken_ = false;

  // Transport's thread.
  Link::Handlers handlers_;
  bool started_ = false;
  bool told_ = false;  // on_close was called, or nobody is there to hear
  bool reading_ = false;
  asio::steady_timer timer_;  // handshake, then flushing, then lingering
  std::function<void(Result<void>)> handshake_done_;
  RawBuffer received_;  // one recv's worth
  RawBuffer plain_;     // TLS only: one decrypted piece
  std::array<std::byte, 8> lengths_;
  std::size_t n_lengths_ = 0;                                       // bytes of lengths_ that are here
  RawBuffer frame_;                                                 // header, padding to 16, payload
  std::size_t header_bytes_ = 0, payload_bytes_ = 0, n_frame_ = 0;  // n_frame_: header and payload bytes that are here

  std::atomic<std::uint32_t> max_header_bytes_, max_payload_bytes_;
  std::atomic<std::uint64_t> frames_sent_ = 0, frames_received_ = 0, bytes_sent_ = 0, bytes_received_ = 0;
};

}  // namespace linkcpp
