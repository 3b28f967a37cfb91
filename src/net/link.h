// A Link carries whole frames between two peers, in order, until it closes. TCP (with or without TLS), NATS or memory:
// everything above is the same.
//
// Frames are opaque here (wire/messages.h defines their outer layout). Each link has one reader thread of its transport
// that calls the handlers; Send may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace linkcpp {

// A received frame: header and payload as they lay on the wire (lengths were checked against the caps).
struct FrameView {
  std::span<const std::byte> header;   // FlatBuffers bytes, not yet verified
  std::span<const std::byte> payload;  // raw rows; aligned to 16 bytes
};

struct LinkLimits {
  std::uint32_t max_header_bytes = 1u << 20;
  std::uint32_t max_payload_bytes = 1u << 28;
};

struct LinkStats {
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

class Link {
 public:
  struct Handlers {
    // Called on the transport's thread; the view is valid for the call. A Fault closes the link with that reason.
    std::function<Result<void>(const FrameView&)> on_frame;
    // Called exactly once, last, on the transport's thread, unless the link is destroyed first; `why` is the reason.
    std::function<void(const Fault& why)> on_close;
  };

  // Closes (what is queued is still sent, in the background) and tells nobody: on_close is for losses that the owner
  // did not bring about. No handler runs after the destructor returns: it waits for one that is running, so hold no
  // lock that a handler takes. From inside a handler of this link it does not wait.
  virtual ~Link() = default;

  // Begins reading. Call once.
  virtual void Start(Handlers handlers) = 0;

  // Queues one frame; header and payload are copied or written before it returns. The payload may come in pieces, which
  // are concatenated (rows gathered from places apart). kGone: closed. kBusy: more than the send buffer's cap is
  // waiting for a slow peer (a frame alone may be larger). kLocal: no memory. Never blocks on the network.
  virtual Result<void> Send(std::span<const std::byte> header, std::span<const std::span<const std::byte>> payload) = 0;

  // Closes after what is queued has been written, or at once. on_close follows. Any thread, any number of times.
  virtual void Close(std::string reason) = 0;

  virtual std::string peer() const = 0;  // "127.0.0.1:4711", for logs
  virtual LinkStats stats() const = 0;
  virtual void set_limits(LinkLimits limits) = 0;  // tighter before the handshake, wider after
};

}  // namespace linkcpp
