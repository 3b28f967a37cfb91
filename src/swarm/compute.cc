// SwarmCore's half that runs on the thread calling Compute: plan, send, compute the rest here, wait, mend.
#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <tuple>
#include <utility>

#include "swarm/swarm_core.h"

namespace linkcpp {
namespace {

constexpr double kFrameUs = 30;            // what one more frame costs this side: encode, write, wake up
constexpr std::size_t kMaxTries = 6;       // workers asked for one pair, at most
constexpr std::size_t kMaxBusyRounds = 7;  // waits of 5, 10, 20, … ms for busy holders when nobody else can
constexpr auto kBusyWait = std::chrono::milliseconds(5);
constexpr auto kLeastHedge = std::chrono::milliseconds(50);
constexpr double kHedgeFactor = 8;  // times what was expected
constexpr std::uint32_t kLeastFramePairs = 16;
constexpr std::uint32_t kFirstFramePairs = 512;  // of a worker whose speed with large frames is not known yet

void Relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

RowType Fitting(RowType wanted, std::uint32_t row_len) {
  return wanted == RowType::kQ8_0 && row_len % kQ8BlockValues != 0 ? RowType::kF32 : wanted;
}

// A group and who had its pairs already: asking the same worker again is of no use, unless all it said was "busy".
struct AskedGroup : PairGroup {
  std::vector<WorkerNumber> asked;
  std::vector<WorkerNumber> busy;
};

// The pairs of one expert that are asked again may be fewer than kManyPairs where the call has more of them: others of
// the call go along, so that the kernel's order stays that of the whole. What is claimed already is not written again.
void KeepMany(const Call& call, ExpertId expert, std::vector<std::uint32_t>& pairs) {
  if (pairs.size() >= kManyPairs) return;
  std::vector<std::uint32_t> others;
  for (std::uint32_t i = 0; i < call.pairs.size(); ++i) {
    if (call.pairs[i].expert == expert && !std::ranges::contains(pairs, i)) others.push_back(i);
  }
  if (pairs.size() + others.size() < kManyPairs) return;
  others.resize(std::min(others.size(), kManyPairs - pairs.size()));
  pairs.insert(pairs.end(), others.begin(), others.end());
  std::ranges::sort(pairs);
}

std::vector<AskedGroup> GroupByExpert(const Call& call, std::span<const std::uint32_t> todo) {
  std::vector<AskedGroup> groups;
  std::vector<std::uint32_t> group_of;  // by expert, 0: none yet
  for (const std::uint32_t pair : todo) {
    const ExpertId expert = call.pairs[pair].expert;
    if (group_of.size() <= expert.value) group_of.resize(expert.value + std::size_t{1});
    if (group_of[expert.value] == 0) {
      groups.emplace_back().expert = expert;
      group_of[expert.value] = static_cast<std::uint32_t>(groups.size());
    }
    groups[group_of[expert.value] - 1].pairs.push_back(pair);
  }
  return groups;
}

// Pairs of one expert may have been asked of different workers when it is split among its holders.
std::vector<AskedGroup> GroupByHistory(const Call& call, std::span<const std::uint32_t> todo) {
  using Numbers = std::vector<WorkerNumber>;
  std::unordered_map<std::uint32_t, std::pair<Numbers, Numbers>> history;
  for (const std::uint32_t pair : todo) history[pair];
  for (const auto& flight : call.flights) {
    for (const std::uint32_t pair : flight->pairs) {
      const auto entry = history.find(pair);
      if (entry == history.end()) continue;
      Numbers& list = flight->state == Flight::State::kBusy ? entry->second.second : entry->second.first;
      if (!std::ranges::contains(list, flight->worker)) list.push_back(flight->worker);
    }
  }
  std::map<std::tuple<ExpertId, Numbers, Numbers>, std::vector<std::uint32_t>> sorted;
  for (const std::uint32_t pair : todo) {
    auto& [asked, busy] = history[pair];
    sorted[{call.pairs[pair].expert, asked, busy}].push_back(pair);
  }
  std::vector<AskedGroup> groups;
  for (auto& [key, pairs] : sorted) {
    AskedGroup& group = groups.emplace_back();
    std::tie(group.expert, group.asked, group.busy) = key;
    group.pairs = std::move(pairs);
    KeepMany(call, group.expert, group.pairs);
  }
  return groups;
}

}  // namespace

Result<void> SwarmCore::Compute(LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                                std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out) try {
  if (n_in == 0 || n_out == 0 || x.size() % n_in != 0 || y.size() != pairs.size() * n_out) {
    return Fail(FaultCode::kLocal,
                "layer {}: {} values of x in rows of {}, {} pairs, {} values of y in rows of {} do not fit",
                layer.value, x.size(), n_in, pairs.size(), y.size(), n_out);
  }
  const std::size_t n_rows = x.size() / n_in;
  for (const Pair& pair : pairs) {
    if (pair.row >= n_rows) {
      return Fail(FaultCode::kLocal, "layer {}: a pair names row {} of {}", layer.value, pair.row, n_rows);
    }
  }
  if (pairs.empty()) return {};
  std::lock_guard one(compute_mutex_);
  Call call(layer, recipe, x, n_in, pairs, y, n_out);
  call.total_deadline = clock_.Now() + 2 * options_.deadline;
  {
    std::lock_guard lock(mutex_);
    ++totals_.dispatches;
    totals_.pairs += pairs.size();
    auto& heat = heat_[layer.value];
    for (const Pair& pair : pairs) {
      if (heat.size() <= pair.expert.value) heat.resize(pair.expert.value + std::size_t{1});
      ++heat[pair.expert.value];
    }
  }
  packed_x_.clear();
  Result<void> done;
  try {
    done = Run(call);
  } catch (const std::exception& error) {  // memory; the call must be let go of all the same
    done = Fail(FaultCode::kLocal, "layer {}: {}", layer.value, error.what());
    row_in_frame_.clear();
  }
  // Nobody may touch the call, x or y once this returns. A row being written is a copy in memory and ends soon.
  std::unique_lock lock(mutex_);
  call.ending = true;
  for (const auto& flight : call.flights) flight->call = nullptr;
  wake_.wait(lock, [&] { return call.writers() == 0; });
  if (!done.has_value()) ++totals_.failed;
  return done;
} catch (const std::exception& error) {
  return Fail(FaultCode::kLocal, "layer {}: {}", layer.value, error.what());
}

Result<void> SwarmCore::Run(Call& call) {
  std::vector<std::uint32_t> todo(call.pairs.size());
  for (std::uint32_t i = 0; i < todo.size(); ++i) todo[i] = i;
  RETURN_IF_FAULT(Route(call, todo, Why::kFirst, true));

  std::vector<Closing> closing;
  for (;;) {
    std::vector<std::uint32_t> orphans, late, here;
    TimePoint wake = call.total_deadline;
    bool workers_allowed = true;
    {
      std::lock_guard lock(mutex_);
      signalled_.store(false, std::memory_order_relaxed);
      const TimePoint now = clock_.Now();
      if (call.remaining() == 0) break;
      LoseOverdueLocked(now, closing);
      if (now >= call.total_deadline) {  // whoever has not answered by now is asked no more
        workers_allowed = false;
        for (const auto& flight : call.flights) {
          if (flight->call == nullptr) continue;
          if (const auto worker = workers_.find(flight->worker); worker != workers_.end()) {
            Fault fault{FaultCode::kGone, "no answer within twice the deadline"};
            closing.push_back({worker->second, fault.text});
            LoseLocked(*worker->second, fault);
          }
        }
      }
      orphans = call.TakeOrphans();
      for (const auto& [number, worker] : workers_) {
        double expected_us = 0;  // an answer waits for those before it
        for (const auto& [id, flight] : worker->flights) {
          expected_us += flight->expected_us;
          const TimePoint since = std::max(flight->sent_at, worker->progress_at);
          wake = std::min(wake, since + options_.deadline);
          if (flight->call != &call || (flight->hedged && flight->given_up)) continue;
          const Duration patience = HedgeAfter(expected_us);
          const TimePoint hedge_at = since + patience;
          const TimePoint here_at = since + std::max<Duration>(2 * patience, options_.local_after);
          const auto open_pairs = [&] {
            std::vector<std::uint32_t> open;
            std::ranges::copy_if(flight->pairs, std::back_inserter(open),
                                 [&](std::uint32_t pair) { return call.open(pair); });
            return open;
          };
          if (!flight->hedged && now >= hedge_at) {
            flight->hedged = true;
            late.append_range(open_pairs());
          } else if (!flight->hedged) {
            wake = std::min(wake, hedge_at);
          }
          if (!flight->given_up && local_allowed() && now >= here_at) {
            flight->given_up = true;
            for (AskedGroup& group : GroupByHistory(call, open_pairs())) here.append_range(group.pairs);
          } else if (!flight->given_up && local_allowed()) {
            wake = std::min(wake, here_at);
          }
        }
      }
    }
    Close(closing);
    if (!orphans.empty()) RETURN_IF_FAULT(Route(call, orphans, Why::kRetry, workers_allowed));
    if (!late.empty()) RETURN_IF_FAULT(Route(call, late, Why::kHedge, workers_allowed));
    if (!here.empty()) {
      // A fault here is no harm yet: the worker may still answer.
      if (auto done = ComputeLocally(call, here); !done.has_value()) {
        log_.Warning("layer {}: a worker is late and computing here failed: {}", call.layer.value, done.error().text);
      }
    }
    if (orphans.empty() && late.empty() && here.empty()) WaitUntil(wake);
  }
  return {};
}

// ---------------------------------------------------------------- planning

Result<void> SwarmCore::Route(Call& call, std::span<const std::uint32_t> todo, Why why, bool workers_allowed) {
  std::vector<std::uint32_t> local;
  std::vector<std::pair<WorkerPtr, std::shared_ptr<Flight>>> frames;
  for (std::size_t round = 0;; ++round) {
    {
      std::lock_guard lock(mutex_);
      local.clear();
      auto planned = PlanLocked(call, todo, why, workers_allowed, local);
      if (planned.has_value()) {
        frames = std::move(*planned);
        if (!frames.empty()) ++totals_.round_trips;
        if (why != Why::kFirst) {
          totals_.pairs_retried += local.size();
          for (const auto& [worker, flight] : frames) totals_.pairs_retried += flight->pairs.size();
        }
        break;
      }
      // Busy holders and nobody else: give them a moment, a few times.
      if (planned.error().code != FaultCode::kBusy || round >= kMaxBusyRounds || clock_.Now() >= call.total_deadline) {
        return std::unexpected(std::move(planned.error()));
      }
    }
    const TimePoint until = std::min(call.total_deadline, clock_.Now() + kBusyWait * (1 << round));
    while (clock_.Now() < until) {
      WaitUntil(until);
      std::lock_guard lock(mutex_);
      signalled_.store(false, std::memory_order_relaxed);
    }
  }
  for (auto& [worker, flight] : frames) Send(call, std::move(worker), std::move(flight));
  return local.empty() ? Result<void>() : ComputeLocally(call, local);
}

Result<std::vector<std::pair<SwarmCore::WorkerPtr, std::shared_ptr<Flight>>>> SwarmCore::PlanLocked(
    Call& call, std::span<const std::uint32_t> todo, Why why, bool workers_allowed, std::vector<std::uint32_t>& local) {
  const TimePoint now = clock_.Now();

  std::vector<AskedGroup> groups = why == Why::kFirst ? GroupByExpert(call, todo) : GroupByHistory(call, todo);

  const bool fits_a_frame = call.n_in <= kMaxRowLen && call.n_out <= kMaxRowLen;
  bool any_busy = false;
  std::uint32_t nobody_for = 0;
  bool failed = false;
  const auto stuck = [&](WorkerNumber number) {  // it is so late that its pairs were computed here
    return std::ranges::any_of(workers_.at(number)->flights, [](const auto& entry) { return entry.second->given_up; });
  };
  const auto avoided = [&](WorkerNumber number) { return now < workers_.at(number)->avoid_until; };
  std::erase_if(groups, [&](AskedGroup& group) {
    std::vector<WorkerNumber> fresh, calm, busy;
    for (const WorkerNumber number : table_.Holders(call.layer, group.expert)) {
      if (!workers_allowed || !fits_a_frame || group.asked.size() >= kMaxTries) break;
      if (std::ranges::contains(group.asked, number)) continue;
      if (std::ranges::contains(group.busy, number)) {
        busy.push_back(number);
        continue;
      }
      fresh.push_back(number);
      if (!stuck(number) && !avoided(number)) calm.push_back(number);
    }
    if (!calm.empty()) {
      group.candidates = std::move(calm);
      return false;
    }
    const bool only_stuck = why == Why::kFirst && local_allowed() && std::ranges::all_of(fresh, stuck);
    if (!fresh.empty() && !only_stuck) {
      group.candidates = std::move(fresh);
      return false;
    }
    if (why == Why::kHedge) return true;  // the late one may still answer
    if (local_allowed()) {
      local.insert(local.end(), group.pairs.begin(), group.pairs.end());
      return true;
    }
    if (!busy.empty() && std::ranges::none_of(busy, avoided)) {
      group.candidates = std::move(busy);  // it had its moment: ask again
      return false;
    }
    any_busy = any_busy || !busy.empty();
    if (busy.empty() && !failed) {
      failed = true;
      nobody_for = group.pairs.front();
    }
    return true;
  });
  if (failed) return std::unexpected(NobodyFault(call, nobody_for));
  if (any_busy) {
    return Fail(FaultCode::kBusy,
                "layer {}: all holders of some expert are busy ({}) and computing here is not allowed",
                call.layer.value, call.last_fault.text);
  }
  std::ranges::sort(local);
  local.erase(std::unique(local.begin(), local.end()), local.end());

  // What each of them still has to do for us, by what was expected, and how long it has been late already.
  std::unordered_map<WorkerNumber, double> backlog_us;
  const auto finish_us = [&](WorkerNumber number, std::uint32_t n_pairs) {
    const WorkerLink& worker = *workers_.at(number);
    const auto [entry, is_new] = backlog_us.try_emplace(number, 0.0);
    if (is_new && !worker.flights.empty()) {
      double expected = 0;
      for (const auto& [id, flight] : worker.flights) expected += flight->expected_us;
      const Flight& oldest = *worker.flights.begin()->second;
      const double waited =
          std::chrono::duration<double, std::micro>(now - std::max(oldest.sent_at, worker.progress_at)).count();
      entry->second = waited < expected ? expected - waited : waited;
    }
    return entry->second + worker.cost.ExpectedUs(n_pairs, now);
  };
  std::vector<std::pair<WorkerPtr, std::shared_ptr<Flight>>> frames;
  std::vector<PairGroup> assignable;
  for (AskedGroup& group : groups) assignable.push_back(std::move(group));
  for (const Assignment& assignment : AssignPairs(std::move(assignable), finish_us, kFrameUs)) {
    const WorkerPtr& worker = workers_.at(assignment.worker);
    const bool one_by_one = worker->doubted.erase(call.layer.value) != 0;
    const auto expert_of = [&](std::uint32_t pair) { return call.pairs[pair].expert; };
    for (const auto& part : CutIntoFrames(assignment.pairs, expert_of, FrameCap(*worker, call, now), one_by_one)) {
      auto flight = std::make_shared<Flight>();
      flight->id = next_id_++;
      flight->worker = worker->number;
      flight->call = &call;
      flight->layer = call.layer;
      flight->pairs.assign(part.begin(), part.end());
      for (const std::uint32_t pair : part) flight->experts.push_back(call.pairs[pair].expert.value);
      std::ranges::sort(flight->experts);
      flight->experts.erase(std::unique(flight->experts.begin(), flight->experts.end()), flight->experts.end());
      flight->n_out = call.n_out;
      flight->reply_type = Fitting(options_.reply_type, call.n_out);
      const auto n_pairs = static_cast<std::uint32_t>(part.size());
      // No figure yet: patience of a quarter of the deadline.
      flight->expected_us =
          worker->cost.measured()
              ? worker->cost.ExpectedUs(n_pairs, now)
              : std::chrono::duration<double, std::micro>(options_.deadline).count() / (4 * kHedgeFactor);
      call.Carry(*flight);
      call.flights.push_back(flight);
      frames.emplace_back(worker, std::move(flight));
    }
  }
  return frames;
}

Fault SwarmCore::NobodyFault(const Call& call, std::uint32_t pair) const {
  const std::string& last = call.last_fault.text;
  return {call.last_fault.code == FaultCode::kBusy ? FaultCode::kBusy : FaultCode::kGone,
          std::format("layer {}, expert {}: no worker {} and computing here is {}{}{}", call.layer.value,
                      call.pairs[pair].expert.value, last.empty() ? "holds it" : "is left to ask",
                      local_ == nullptr ? "not possible" : "off (LINKCPP_LOCAL=deny)", last.empty() ? "" : "; ", last)};
}

// Frames are split only where they must be, or where a slow worker would otherwise show no progress for too long.
std::uint32_t SwarmCore::FrameCap(const WorkerLink& worker, const Call& call, TimePoint now) const {
  std::uint64_t cap = std::min(kMaxPairs, kMaxRows);
  cap = std::min(cap, kMaxDataPayloadBytes / RowBytes(Fitting(options_.row_type, call.n_in), call.n_in));
  cap = std::min(cap, kMaxDataPayloadBytes / RowBytes(Fitting(options_.reply_type, call.n_out), call.n_out));
  cap -= std::min(cap - 1, kManyPairs);  // CutIntoFrames may take that much more
  auto pairs = std::max(std::min(static_cast<std::uint32_t>(cap), options_.max_pairs_per_frame), 1u);
  if (!worker.cost.measured(kFirstFramePairs)) pairs = std::min(pairs, kFirstFramePairs);
  if (worker.cost.measured()) {
    const double most_us = std::chrono::duration<double, std::micro>(options_.deadline).count() / 4;
    while (pairs > kLeastFramePairs && worker.cost.ExpectedUs(pairs, now) > most_us) pairs /= 2;
  }
  return pairs;
}

Duration SwarmCore::HedgeAfter(double expected_us) const {
  if (options_.hedge_after.count() > 0) return options_.hedge_after;
  const auto patience =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::micro>(kHedgeFactor * expected_us));
  return std::max<Duration>(patience, kLeastHedge);
}

// ---------------------------------------------------------------- doing

void SwarmCore::Send(Call& call, WorkerPtr worker, std::shared_ptr<Flight> flight) {
  DispatchMessage message;
  message.id = flight->id;
  message.layer = call.layer;
  message.recipe = call.recipe;
  message.row_type = Fitting(options_.row_type, call.n_in);
  message.reply_type = flight->reply_type;
  message.row_len = call.n_in;
  message.pairs.reserve(flight->pairs.size());

  // Only the rows this worker needs, each once, in the order of first use.
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  row_in_frame_.resize(call.x.size() / call.n_in, kNone);  // all kNone between frames
  const std::size_t row_bytes = RowBytes(message.row_type, call.n_in);
  std::span<const std::byte> x = std::as_bytes(call.x);
  if (message.row_type != RowType::kF32) {
    if (packed_x_.empty()) {
      packed_x_.resize(row_bytes * row_in_frame_.size());
      PackRows(message.row_type, call.x, call.n_in, packed_x_);
    }
    x = packed_x_;
  }
  std::vector<std::span<const std::byte>> pieces;
  std::vector<std::uint32_t> used;
  for (const std::uint32_t pair : flight->pairs) {
    const std::uint32_t row = call.pairs[pair].row;
    if (row_in_frame_[row] == kNone) {
      row_in_frame_[row] = message.n_rows++;
      used.push_back(row);
      const std::span<const std::byte> bytes = x.subspan(row * row_bytes, row_bytes);
      if (!pieces.empty() && pieces.back().data() + pieces.back().size() == bytes.data()) {
        pieces.back() = {pieces.back().data(), pieces.back().size() + row_bytes};
      } else {
        pieces.push_back(bytes);
      }
    }
    message.pairs.push_back({row_in_frame_[row], call.pairs[pair].expert.value});
  }
  for (const std::uint32_t row : used) row_in_frame_[row] = kNone;
  const std::vector<std::byte> header = EncodeMessage(message);
  {
    std::lock_guard lock(mutex_);
    if (worker->lost) {
      FailFlightLocked(*worker, *flight, Flight::State::kFailed, {FaultCode::kGone, "link lost"});
      return;
    }
    flight->sent_at = clock_.Now();
    worker->flights.emplace(flight->id, flight);
    ++worker->figures->dispatches;
    worker->figures->pairs += flight->pairs.size();
  }
  Result<void> sent = worker->link->Send(header, pieces);
  if (sent.has_value()) return;
  std::vector<Closing> closing;
  {
    std::lock_guard lock(mutex_);
    if (worker->flights.erase(flight->id) == 0) return;  // lost in the meantime, or answered by a mind reader
    if (sent.error().code == FaultCode::kBusy) {
      worker->avoid_until = clock_.Now() + kBusyWait;
      FailFlightLocked(*worker, *flight, Flight::State::kBusy, sent.error());
    } else {
      FailFlightLocked(*worker, *flight, Flight::State::kFailed, sent.error());
      closing.push_back({worker, "sending failed: " + sent.error().text});
      LoseLocked(*worker, sent.error());
    }
  }
  Close(closing);
}

Result<void> SwarmCore::ComputeLocally(Call& call, std::span<const std::uint32_t> numbers) {
  local_pairs_.clear();
  for (const std::uint32_t number : numbers) local_pairs_.push_back(call.pairs[number]);
  const bool all = call.flights.empty() && numbers.size() == call.pairs.size();  // nobody else writes to y
  if (!all) local_y_.resize(numbers.size() * std::size_t{call.n_out});
  const std::span<float> y = all ? call.y : std::span(local_y_).first(numbers.size() * std::size_t{call.n_out});
  if (auto done = local_->Compute(call.layer, call.recipe, call.x, call.n_in, local_pairs_, y, call.n_out);
      !done.has_value()) {
    return Wrap(done.error(), std::format("layer {}: computing {} pairs here", call.layer.value, numbers.size()));
  }
  std::vector<std::uint32_t> positions;
  {
    std::lock_guard lock(mutex_);
    positions = call.Claim(numbers);
    totals_.pairs_local += positions.size();
  }
  if (positions.empty()) return {};
  if (!all) {
    for (const std::uint32_t position : positions) {
      std::memcpy(call.y.data() + std::size_t{numbers[position]} * call.n_out,
                  y.data() + std::size_t{position} * call.n_out, call.n_out * sizeof(float));
    }
  }
  std::lock_guard lock(mutex_);
  call.Wrote(positions.size());
  return {};
}

void SwarmCore::WaitUntil(TimePoint until) {
  if (options_.pump) {
    while (!signalled_.load(std::memory_order_acquire) && clock_.Now() < until) options_.pump(until);
    return;
  }
  // Most answers of a fast worker arrive within the time it takes to fall asleep and be woken.
  const auto spin_end = std::chrono::steady_clock::now() + options_.spin;
  while (!signalled_.load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() >= spin_end) break;
    Relax();
  }
  const auto rest = until - clock_.Now();
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, rest, [&] { return signalled_.load(std::memory_order_relaxed); });
}

}  // namespace linkcpp
