#include "swarm/swarm.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <random>
#include <utility>
#include <variant>

#include "swarm/swarm_core.h"

namespace linkcpp {
namespace {

constexpr auto kPingAfter = std::chrono::seconds(3);   // of silence
constexpr auto kDeadAfter = std::chrono::seconds(15);  // of silence
constexpr auto kAvoidAfterFault = std::chrono::milliseconds(50);
constexpr int kFaultsInARow = 8;  // then the link is closed
constexpr std::size_t kMaxNodesReported = 4096;
constexpr std::size_t kMaxSamples = 64;
constexpr std::size_t kLossesRemembered = 256;

double MicrosecondsBetween(TimePoint from, TimePoint to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

}  // namespace

std::unique_ptr<Swarm> Swarm::Create(const SwarmOptions& options, LocalExperts* local, const Clock& clock,
                                     LogSink& log) {
  return std::make_unique<SwarmCore>(options, local, clock, log);
}

SwarmCore::SwarmCore(const SwarmOptions& options, LocalExperts* local, const Clock& clock, LogSink& log)
    : options_(options), local_(local), clock_(clock), log_(log), sample_rng_(std::random_device()()) {}

SwarmCore::~SwarmCore() {
  std::map<WorkerNumber, WorkerPtr> workers;
  std::vector<WorkerPtr> graveyard;
  {
    std::lock_guard lock(mutex_);
    workers.swap(workers_);
    graveyard.swap(graveyard_);
    for (auto& [number, worker] : workers) LoseLocked(*worker, {FaultCode::kGone, "the backbone is ending"});
  }
  for (auto& [number, worker] : workers) worker->link->Close("the backbone is ending");
}

// ---------------------------------------------------------------- workers come and go

void SwarmCore::AddWorker(std::string node_id, std::string kernel_class, std::unique_ptr<Link> link) {
  const auto worker = std::make_shared<WorkerLink>();
  worker->node_id = std::move(node_id);
  worker->kernel_class = std::move(kernel_class);
  worker->link = std::move(link);
  worker->heard_at = worker->progress_at = clock_.Now();
  std::vector<Closing> closing;
  std::string expelled;
  {
    std::lock_guard lock(mutex_);
    if (const auto entry = expelled_.find(worker->node_id); entry != expelled_.end()) expelled = entry->second;
  }
  if (!expelled.empty()) {
    (void)worker->link->Send(EncodeMessage(FaultMessage{0, FaultCode::kRefused, expelled}), {});
    log_.Warning("worker {} was cut off before and is not taken again: {}", worker->node_id, expelled);
    return;  // destroys the link
  }
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, other] : workers_) {
      if (other->node_id != worker->node_id || other->lost) continue;
      LoseLocked(*other, {FaultCode::kGone, "replaced by a newer link of the same node"});
      closing.push_back({other, "replaced by a newer link of the same node"});
    }
    worker->number = next_worker_++;
    auto& figures = nodes_[worker->node_id];
    if (figures == nullptr) {
      figures = std::make_shared<LinkReport>();
      figures->node_id = worker->node_id;
    }
    worker->figures = figures;
    if (nodes_.size() > kMaxNodesReported) {
      std::erase_if(nodes_, [](const auto& entry) { return entry.second.use_count() == 1; });
    }
    workers_.emplace(worker->number, worker);
  }
  Close(closing);
  log_.Info("worker {} ({}) connected from {}", worker->node_id, worker->kernel_class, worker->link->peer());
  WorkerLink* const raw = worker.get();  // owns the link, so it outlives its handlers
  worker->link->set_limits({.max_header_bytes = 1u << 20, .max_payload_bytes = kMaxDataPayloadBytes});
  worker->link->Start({.on_frame = [this, raw](const FrameView& frame) { return OnFrame(*raw, frame); },
                       .on_close = [this, raw](const Fault& why) { OnClose(*raw, why); }});
}

void SwarmCore::LoseLocked(WorkerLink& worker, const Fault& fault) {
  if (worker.lost) return;
  worker.lost = true;
  table_.Remove(worker.number);
  lost_because_.emplace(worker.number, fault.text);
  if (lost_because_.size() > kLossesRemembered) lost_because_.erase(lost_because_.begin());
  auto flights = std::exchange(worker.flights, {});
  for (auto& [id, flight] : flights) FailFlightLocked(worker, *flight, Flight::State::kFailed, fault);
}

void SwarmCore::FailFlightLocked(WorkerLink& worker, Flight& flight, Flight::State state, const Fault& fault) {
  flight.state = state;
  if (const OnAnswer on_answer = std::exchange(flight.on_answer, {})) return on_answer(std::unexpected(fault));
  ++worker.figures->faults;
  Call* const call = std::exchange(flight.call, nullptr);
  if (call == nullptr) return;
  call->last_fault = {fault.code, "worker " + worker.node_id + ": " + fault.text};
  call->PutDown(flight);
  if (call->has_orphans()) SignalLocked();
}

void SwarmCore::LoseOverdueLocked(TimePoint now, std::vector<Closing>& closing) {
  for (auto& [number, worker] : workers_) {
    if (worker->lost || worker->flights.empty()) continue;
    const Flight& oldest = *worker->flights.begin()->second;
    if (now - std::max(oldest.sent_at, worker->progress_at) < options_.deadline) continue;
    Fault fault{FaultCode::kGone, std::format("no answer to dispatch {} of {} pairs within {} ms", oldest.id,
                                              oldest.pairs.size(), options_.deadline.count())};
    closing.push_back({worker, fault.text});
    LoseLocked(*worker, fault);
  }
}

void SwarmCore::Close(std::vector<Closing>& closing) {
  for (Closing& entry : closing) {
    log_.Warning("worker {}: {}; link closed", entry.worker->node_id, entry.reason);
    entry.worker->link->Close(std::move(entry.reason));
  }
  closing.clear();
}

void SwarmCore::SignalLocked() {
  signalled_.store(true, std::memory_order_release);
  wake_.notify_one();
}

void SwarmCore::Tick() {
  struct Ping {
    WorkerPtr worker;
    std::uint64_t nonce;
  };
  std::vector<Closing> closing;
  std::vector<Ping> pings;
  std::vector<WorkerPtr> graveyard;
  {
    std::lock_guard lock(mutex_);
    const TimePoint now = clock_.Now();
    LoseOverdueLocked(now, closing);
    for (auto& [number, worker] : workers_) {
      if (worker->lost) continue;
      const auto silence = now - worker->heard_at;
      if (silence >= kDeadAfter) {
        Fault fault{FaultCode::kGone, std::format("silent for {} s", kDeadAfter.count())};
        closing.push_back({worker, fault.text});
        LoseLocked(*worker, fault);
      } else if (silence >= kPingAfter && (worker->ping_nonce == 0 || now - worker->pinged_at >= kPingAfter)) {
        worker->pinged_at = now;
        worker->ping_nonce = next_id_++;
        pings.push_back({worker, worker->ping_nonce});
      }
    }
    graveyard.swap(graveyard_);
  }
  Close(closing);
  for (const Ping& ping : pings) {
    // A link that can not take a ping is noticed by its silence.
    (void)ping.worker->link->Send(EncodeMessage(PingMessage{ping.nonce, false}), {});
  }
}

// ---------------------------------------------------------------- what workers say (their transport's thread)

Result<void> SwarmCore::OnFrame(WorkerLink& worker, const FrameView& frame) try {
  const auto act = [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const Message message, DecodeMessage(frame.header, frame.payload.size()));
    if (const auto* result = std::get_if<ResultMessage>(&message)) return On(worker, *result, frame.payload);
    if (const auto* fault = std::get_if<FaultMessage>(&message)) return On(worker, *fault);
    if (const auto* holdings = std::get_if<HoldingsMessage>(&message)) return On(worker, *holdings);
    if (const auto* ping = std::get_if<PingMessage>(&message)) return On(worker, *ping);
    if (const auto* goodbye = std::get_if<GoodbyeMessage>(&message)) return On(worker, *goodbye);
    return Fail(FaultCode::kMalformed, "a worker does not send a message of this kind");
  };
  Result<void> done = act();
  if (!done.has_value()) {  // the link closes with this fault; its pairs need not wait for that
    std::lock_guard lock(mutex_);
    LoseLocked(worker, done.error());
  }
  return done;
} catch (const std::exception& error) {  // memory, mostly
  return Fail(FaultCode::kLocal, "handling a frame: {}", error.what());
}

void SwarmCore::OnClose(WorkerLink& worker, const Fault& why) {
  const LinkStats stats = worker.link->stats();
  std::uint64_t flights = 0;
  {
    std::lock_guard lock(mutex_);
    flights = worker.flights.size();
    LoseLocked(worker, why);
    worker.figures->bytes_sent += stats.bytes_sent;
    worker.figures->bytes_received += stats.bytes_received;
    worker.figures->rtt_us_mean = worker.cost.mean_us();
    worker.figures->rtt_us_max = std::max(worker.figures->rtt_us_max, worker.cost.max_us());
    if (const auto entry = workers_.find(worker.number); entry != workers_.end()) {
      graveyard_.push_back(std::move(entry->second));
      workers_.erase(entry);
    }
  }
  log_.Info("worker {} disconnected: {}{}", worker.node_id, why.text,
            flights == 0 ? std::string() : std::format(" ({} dispatches were out)", flights));
}

Result<void> SwarmCore::On(WorkerLink& worker, const ResultMessage& result, std::span<const std::byte> payload) {
  std::shared_ptr<Flight> flight;
  Call* call = nullptr;
  std::vector<std::uint32_t> positions, sampled;
  {
    std::lock_guard lock(mutex_);
    const TimePoint now = clock_.Now();
    worker.heard_at = now;
    if (worker.lost) return {};  // closing; whatever it still says is nobody's business
    const auto entry = worker.flights.find(result.id);
    if (entry == worker.flights.end()) {
      return Fail(FaultCode::kMalformed, "an answer to dispatch {}, which is not outstanding", result.id);
    }
    flight = entry->second;
    if (result.n_pairs != flight->pairs.size() || result.row_len != flight->n_out ||
        result.row_type != flight->reply_type) {
      return Fail(FaultCode::kMalformed,
                  "dispatch {} asked for {} rows of {} values of type {}, the answer has {} of {} of type {}",
                  result.id, flight->pairs.size(), flight->n_out, std::to_underlying(flight->reply_type),
                  result.n_pairs, result.row_len, std::to_underlying(result.row_type));
    }
    if (payload.size() != RowBytes(flight->reply_type, flight->n_out) * flight->pairs.size()) {
      return Fail(FaultCode::kMalformed, "the answer to dispatch {} has {} bytes of rows", result.id, payload.size());
    }
    worker.flights.erase(entry);
    worker.cost.Observe(result.n_pairs, MicrosecondsBetween(std::max(flight->sent_at, worker.progress_at), now),
                        result.compute_us, now);
    worker.progress_at = now;
    worker.faults_in_a_row = 0;
    flight->state = Flight::State::kAnswered;
    if (const OnAnswer on_answer = std::exchange(flight->on_answer, {})) {
      std::vector<float> rows(std::size_t{result.n_pairs} * flight->n_out);
      UnpackRows(flight->reply_type, payload, flight->n_out, rows);
      on_answer(std::move(rows));
      return {};
    }
    NoteAnswerLocked(worker, *flight);
    call = std::exchange(flight->call, nullptr);
    if (call == nullptr) return {};  // late: its pairs were answered otherwise
    positions = call->Claim(flight->pairs);
    call->PutDown(*flight);
    if (positions.empty()) return {};
    sampled = DrawSamplesLocked(positions);
  }
  // The claim keeps the call alive: Compute does not return while a row is being written.
  const std::size_t row_bytes = RowBytes(flight->reply_type, flight->n_out);
  for (const std::uint32_t position : positions) {
    const std::span<const std::byte> row = payload.subspan(position * row_bytes, row_bytes);
    float* const y = call->y.data() + std::size_t{flight->pairs[position]} * flight->n_out;
    if (flight->reply_type == RowType::kF32) {
      std::memcpy(y, row.data(), flight->n_out * sizeof(float));
    } else {
      UnpackRows(flight->reply_type, row, flight->n_out, std::span(y, flight->n_out));
    }
  }
  std::vector<LiveSample> samples;
  for (const std::uint32_t position : sampled) {
    const Pair& pair = call->pairs[flight->pairs[position]];
    const auto same = [&](std::uint32_t number) { return call->pairs[number].expert == pair.expert; };
    const auto x = call->x.subspan(std::size_t{pair.row} * call->n_in, call->n_in);
    const auto y = call->y.subspan(std::size_t{flight->pairs[position]} * flight->n_out, flight->n_out);
    samples.push_back({.worker = worker.number,
                       .slice = {call->layer, pair.expert},
                       .recipe = call->recipe,
                       .many = std::ranges::count_if(flight->pairs, same) >= static_cast<std::ptrdiff_t>(kManyPairs),
                       .x = {x.begin(), x.end()},
                       .y = {y.begin(), y.end()}});
  }
  bool done = false;
  {
    std::lock_guard lock(mutex_);
    for (LiveSample& sample : samples) {
      if (samples_.size() == kMaxSamples) samples_.pop_front();
      samples_.push_back(std::move(sample));
    }
    call->Wrote(positions.size());
    done = call->remaining() == 0 || call->ending;
    if (done) signalled_.store(true, std::memory_order_release);
  }
  if (done) wake_.notify_one();  // without the lock: the woken thread wants it
  if (!samples.empty() && options_.on_news) options_.on_news();
  return {};
}

Result<void> SwarmCore::On(WorkerLink& worker, const FaultMessage& fault) {
  std::string note;
  {
    std::lock_guard lock(mutex_);
    const TimePoint now = clock_.Now();
    worker.heard_at = now;
    if (worker.lost) return {};
    const Fault said{fault.code, std::format("{}: {}", FaultCodeName(fault.code), fault.text.substr(0, 200))};
    if (fault.id == 0) return Fail(fault.code, "the worker gave up this link: {}", said.text);
    const auto entry = worker.flights.find(fault.id);
    if (entry == worker.flights.end()) {
      return Fail(FaultCode::kMalformed, "a fault for dispatch {}, which is not outstanding", fault.id);
    }
    const std::shared_ptr<Flight> flight = entry->second;
    worker.flights.erase(entry);
    worker.progress_at = now;
    if (fault.code == FaultCode::kMalformed) {
      FailFlightLocked(worker, *flight, Flight::State::kFailed, said);
      return Fail(FaultCode::kMalformed, "the worker could not decode dispatch {}: {}", fault.id, said.text);
    }
    if (flight->on_answer) {  // a question says nothing of how it serves
      FailFlightLocked(worker, *flight, Flight::State::kFailed, said);
      return {};
    }
    if (fault.code == FaultCode::kRefused) {
      // It does not hold one of them, or not for this recipe. Which one shows when they are asked for one by one; a new
      // Holdings message may bring it back.
      if (flight->experts.size() == 1) {
        table_.Drop(worker.number, {flight->layer, ExpertId(flight->experts.front())});
      } else {
        worker.doubted.insert(flight->layer.value);
      }
    } else {
      worker.avoid_until = now + kAvoidAfterFault * ++worker.faults_in_a_row;
    }
    const bool busy = fault.code == FaultCode::kBusy;
    FailFlightLocked(worker, *flight, busy ? Flight::State::kBusy : Flight::State::kFailed, said);
    note = std::format("worker {} did not compute layer {}: {}", worker.node_id, flight->layer.value, said.text);
    if (!busy && worker.faults_in_a_row >= kFaultsInARow) {
      return Fail(FaultCode::kGone, "{} dispatches in a row failed, the last one: {}", kFaultsInARow, said.text);
    }
  }
  log_.Write(LogLevel::kWarning, note);
  return {};
}

Result<void> SwarmCore::On(WorkerLink& worker, const HoldingsMessage& holdings) {
  ASSIGN_OR_RETURN(SliceLists lists, SpellOut(holdings.ready));
  std::uint64_t n_slices = 0;
  for (const auto& [layer, experts] : lists) n_slices += experts.size();
  std::uint64_t covered = 0;
  {
    std::lock_guard lock(mutex_);
    worker.heard_at = clock_.Now();
    if (worker.lost || worker.leaving) return {};
    worker.holds = std::make_shared<SliceLists>(std::move(lists));
    EnterTableLocked(worker);
    worker.doubted.clear();
    covered = table_.covered_slices();
  }
  log_.Debug("worker {} holds {} slices; {} have a holder", worker.node_id, n_slices, covered);
  if (options_.on_news) options_.on_news();
  return {};
}

Result<void> SwarmCore::On(WorkerLink& worker, const PingMessage& ping) {
  {
    std::lock_guard lock(mutex_);
    const TimePoint now = clock_.Now();
    worker.heard_at = now;
    if (worker.lost) return {};
    if (ping.reply) {
      if (ping.nonce != 0 && ping.nonce == worker.ping_nonce) {
        worker.ping_nonce = 0;
        worker.cost.ObservePing(MicrosecondsBetween(worker.pinged_at, now), now);
      }
      return {};
    }
  }
  (void)worker.link->Send(EncodeMessage(PingMessage{ping.nonce, true}), {});  // lost with the link, if it is
  return {};
}

Result<void> SwarmCore::On(WorkerLink& worker, const GoodbyeMessage& goodbye) {
  {
    std::lock_guard lock(mutex_);
    worker.heard_at = clock_.Now();
    if (worker.lost || worker.leaving) return {};
    worker.leaving = true;
    table_.Remove(worker.number);
  }
  log_.Info("worker {} is leaving: {}", worker.node_id, goodbye.reason.substr(0, 200));
  return {};
}

// ---------------------------------------------------------------- figures

std::uint64_t SwarmCore::CoveredSlices() const {
  std::lock_guard lock(mutex_);
  return table_.covered_slices();
}

BackboneReport SwarmCore::Report() const {
  struct Live {
    WorkerPtr worker;
    std::size_t index;
  };
  std::vector<Live> live;
  BackboneReport report;
  {
    std::lock_guard lock(mutex_);
    report = totals_;
    std::map<std::string, std::size_t> index;
    for (const auto& [node_id, figures] : nodes_) {
      index.emplace(node_id, report.links.size());
      report.links.push_back(*figures);
    }
    for (const auto& [number, worker] : workers_) {
      LinkReport& link = report.links[index.at(worker->node_id)];
      link.rtt_us_mean = worker->cost.mean_us();
      link.rtt_us_max = std::max(link.rtt_us_max, worker->cost.max_us());
      link.connected = !worker->lost;
      live.push_back({worker, index.at(worker->node_id)});
    }
    for (const auto& [node_id, check] : checks_) {
      if (check.state == "refused" || ConnectedLocked(node_id)) report.checks.push_back(check);
    }
    for (const auto& [layer, pairs] : heat_) report.heat.push_back({layer, pairs});
  }
  std::ranges::sort(report.heat, {}, &LayerHeat::layer);
  for (const Live& entry : live) {
    const LinkStats stats = entry.worker->link->stats();
    report.links[entry.index].bytes_sent += stats.bytes_sent;
    report.links[entry.index].bytes_received += stats.bytes_received;
  }
  return report;
}

}  // namespace linkcpp
