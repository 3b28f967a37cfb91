#include "worker/dispatcher.h"

#include <new>
#include <utility>

namespace linkcpp {

Dispatcher::Dispatcher(Rack& rack, LogSink& log, DispatcherLimits limits)
    : rack_(rack), log_(log), limits_(limits), thread_([this] { Loop(); }) {}

Dispatcher::~Dispatcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  thread_.join();
}

std::unique_ptr<Dispatcher::Job> Dispatcher::TakeSpare() {
  if (spares_.empty()) return std::make_unique<Job>();
  std::unique_ptr<Job> job = std::move(spares_.back());
  spares_.pop_back();
  kept_bytes_ -= job->x.capacity() * sizeof(float);
  return job;
}

void Dispatcher::Recycle(std::unique_ptr<Job> job) {
  const std::uint64_t bytes = job->x.capacity() * sizeof(float);
  if (kept_bytes_ + bytes > limits_.max_kept_bytes || spares_.size() >= limits_.max_jobs) return;
  kept_bytes_ += bytes;
  spares_.push_back(std::move(job));
}

Result<void> Dispatcher::Submit(DispatchMessage&& message, std::span<const std::byte> payload,
                                std::shared_ptr<ReplyPort> port) try {
  const std::uint64_t n_values = std::uint64_t{message.n_rows} * message.row_len;
  const std::uint64_t x_bytes = n_values * sizeof(float);
  if (payload.size() != RowBytes(message.row_type, message.row_len) * message.n_rows) {
    return Fail(FaultCode::kRefused, "{} payload bytes for {} rows of {}", payload.size(), message.n_rows,
                message.row_len);
  }
  std::unique_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= limits_.max_jobs || (!queue_.empty() && queued_bytes_ + x_bytes > limits_.max_queued_bytes)) {
      return Fail(FaultCode::kBusy, "{} dispatches are waiting here already", queue_.size());
    }
    job = TakeSpare();
    queued_bytes_ += x_bytes;  // reserved while the rows are unpacked outside of the lock
  }
  job->x_bytes = x_bytes;
  try {
    if (job->x.size() < n_values) job->x.resize(n_values);
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    queued_bytes_ -= x_bytes;
    return Fail(FaultCode::kBusy, "out of memory for {} rows of {}", message.n_rows, message.row_len);
  }
  UnpackRows(message.row_type, payload, message.row_len, std::span(job->x).first(n_values));
  job->message = std::move(message);
  job->port = std::move(port);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
  }
  work_.notify_one();
  return {};
} catch (const std::bad_alloc&) {
  return Fail(FaultCode::kBusy, "out of memory for a dispatch");
}

bool Dispatcher::WaitIdle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [this] { return queue_.empty() && !running_; });
}

Dispatcher::Counters Dispatcher::counters() const {
  return {.pairs = pairs_, .dispatches = dispatches_, .faults = faults_, .busy_us = busy_us_};
}

void Dispatcher::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    std::unique_ptr<Job> job = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= job->x_bytes;
    running_ = true;
    lock.unlock();
    Answer(*job);
    job->port.reset();
    lock.lock();
    running_ = false;
    Recycle(std::move(job));
    if (queue_.empty()) idle_.notify_all();
  }
}

void Dispatcher::Answer(Job& job) try {
  const DispatchMessage& ask = job.message;
  const auto x = std::span<const float>(job.x).first(std::size_t{ask.n_rows} * ask.row_len);
  // Never more than f32 rows that fit the other side's frame; narrower reply types only shrink them.
  auto output = rack_.Compute(ask, x, job.port->max_payload_bytes(), y_);
  if (output && ask.reply_type == RowType::kQ8_0 && output->n_out % 32 != 0) {
    output = Fail(FaultCode::kRefused, "rows of {} can not be packed as q8_0", output->n_out);
  }
  if (!output) {
    ++faults_;
    log_.Debug("dispatch {} refused: {}", ask.id, output.error().text);
    job.port->Send(EncodeMessage(FaultMessage{.id = ask.id, .code = output.error().code, .text = output.error().text}),
                   {});
    return;
  }
  const std::size_t n_pairs = ask.pairs.size();
  const auto rows = std::span<const float>(y_).first(n_pairs * output->n_out);
  std::span<const std::byte> payload = std::as_bytes(rows);
  if (ask.reply_type != RowType::kF32) {
    const std::size_t bytes = n_pairs * RowBytes(ask.reply_type, output->n_out);
    if (packed_.size() < bytes) packed_.resize(bytes);
    PackRows(ask.reply_type, rows, output->n_out, std::span(packed_).first(bytes));
    payload = std::span(packed_).first(bytes);
  }
  ++dispatches_;
  pairs_ += n_pairs;
  busy_us_ += output->compute_us;
  job.port->Send(EncodeMessage(ResultMessage{.id = ask.id,
                                             .row_type = ask.reply_type,
                                             .n_pairs = static_cast<std::uint32_t>(n_pairs),
                                             .row_len = output->n_out,
                                             .compute_us = output->compute_us}),
                 payload);
} catch (const std::bad_alloc&) {
  ++faults_;
  job.port->Send(EncodeMessage(FaultMessage{.id = job.message.id, .code = FaultCode::kBusy, .text = "out of memory"}),
                 {});
}

}  // namespace linkcpp
