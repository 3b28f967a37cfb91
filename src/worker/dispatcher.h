// A bounded queue of dispatches and the one thread that computes them on the device.
//
// The transport's thread submits: rows are unpacked there, into buffers that are used again. The compute thread runs
// the pairs, packs the rows and answers. Every accepted dispatch is answered exactly once, with a Result or a Fault.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "wire/messages.h"
#include "worker/rack.h"

namespace linkcpp {

// Where an answer goes. Called from the compute thread.
class ReplyPort {
 public:
  virtual ~ReplyPort() = default;
  virtual void Send(std::span<const std::byte> header, std::span<const std::byte> payload) = 0;
  virtual std::uint64_t max_payload_bytes() const = 0;  // that the other side accepts
};

struct DispatcherLimits {
  std::size_t max_jobs = 64;                      // waiting; one more is answered kBusy
  std::uint64_t max_queued_bytes = 256ull << 20;  // rows waiting, as f32; a single bigger dispatch is let in alone
  std::uint64_t max_kept_bytes = 64ull << 20;     // of buffers kept for reuse
};

class Dispatcher {
 public:
  struct Counters {
    std::uint64_t pairs = 0;
    std::uint64_t dispatches = 0;
    std::uint64_t faults = 0;
    std::uint64_t busy_us = 0;  // in the kernel
  };

  // `rack` must outlive the dispatcher. The thread starts here and ends in the destructor (queued work is dropped).
  Dispatcher(Rack& rack, LogSink& log, DispatcherLimits limits = {});
  ~Dispatcher();

  // payload: rows as the message says (DecodeMessage has checked the length). kBusy: the queue is full; kRefused: rows
  // that can not be unpacked. On a fault nothing is queued and the caller answers.
  Result<void> Submit(DispatchMessage&& message, std::span<const std::byte> payload, std::shared_ptr<ReplyPort> port);

  // Waits until nothing is queued or running. False: `timeout` passed first.
  bool WaitIdle(std::chrono::milliseconds timeout);

  Counters counters() const;

 private:
  struct Job {
    DispatchMessage message;
    std::shared_ptr<ReplyPort> port;
    std::vector<float> x;  // grows, never shrinks
    std::uint64_t x_bytes = 0;
  };
  void Loop();
  void Answer(Job& job);
  std::unique_ptr<Job> TakeSpare();
  void Recycle(std::unique_ptr<Job> job);

  Rack& rack_;
  LogSink& log_;
  const DispatcherLimits limits_;

  mutable std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::deque<std::unique_ptr<Job>> queue_;    // guarded by mutex_
  std::vector<std::unique_ptr<Job>> spares_;  // guarded by mutex_
  std::uint64_t queued_bytes_ = 0;            // guarded by mutex_
  std::uint64_t kept_bytes_ = 0;              // guarded by mutex_
  bool running_ = false, stop_ = false;       // guarded by mutex_

  std::atomic<std::uint64_t> pairs_{0}, dispatches_{0}, faults_{0}, busy_us_{0};
  std::vector<float> y_;           // the compute thread's
  std::vector<std::byte> packed_;  // the compute thread's
  std::thread thread_;
};

}  // namespace linkcpp
