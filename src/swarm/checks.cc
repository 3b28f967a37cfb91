// SwarmCore's part for admission: who may be asked, questions to one worker, samples of live results.
#include "swarm/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "swarm/swarm_core.h"

namespace linkcpp {
namespace {

constexpr std::size_t kAnswersRemembered = 8;
constexpr std::size_t kMaxExpelled = 65'536;
constexpr std::size_t kChecksKept = 512;  // about 400 bytes each in a report, of which the coordinator takes 4 MB

}  // namespace

std::vector<WorkerOffer> SwarmCore::Offers() const {
  std::lock_guard lock(mutex_);
  std::vector<WorkerOffer> offers;
  for (const auto& [number, worker] : workers_) {
    if (worker->lost || worker->leaving) continue;
    offers.push_back({number, worker->node_id, worker->kernel_class, worker->holds, worker->admitted});
  }
  return offers;
}

bool SwarmCore::ConnectedLocked(const std::string& node_id) const {
  return std::ranges::any_of(
      workers_, [&](const auto& entry) { return entry.second->node_id == node_id && !entry.second->lost; });
}

void SwarmCore::EnterTableLocked(WorkerLink& worker) {
  if (!options_.gated) return table_.Replace(worker.number, *worker.holds);
  SliceLists allowed;
  for (const auto& [layer, experts] : *worker.holds) {
    if (worker.admitted.contains(layer)) allowed.emplace(layer, experts);
  }
  table_.Replace(worker.number, std::move(allowed));
}

void SwarmCore::Admit(WorkerNumber number, std::span<const std::uint16_t> layers) {
  std::lock_guard lock(mutex_);
  const auto entry = workers_.find(number);
  if (entry == workers_.end() || entry->second->lost || entry->second->leaving) return;
  entry->second->admitted.insert(layers.begin(), layers.end());
  EnterTableLocked(*entry->second);
}

void SwarmCore::Expel(WorkerNumber number, const std::string& reason) {
  WorkerPtr worker;
  std::string last;
  {
    std::lock_guard lock(mutex_);
    const auto entry = workers_.find(number);
    if (entry == workers_.end()) return;
    worker = entry->second;
    if (expelled_.size() < kMaxExpelled) expelled_.emplace(worker->node_id, reason);
    const TimePoint now = clock_.Now();
    for (const WorkerLink::Answer& answer : worker->last_answers) {
      std::string experts;
      for (const std::uint16_t expert : answer.experts) {
        if (experts.size() > 60) {
          experts += ",…";
          break;
        }
        experts += std::format("{}{}", experts.empty() ? "" : ",", expert);
      }
      last += std::format("{}layer {} experts {} ({:.1f} s ago)", last.empty() ? "" : "; ", answer.layer.value, experts,
                          std::chrono::duration<double>(now - answer.at).count());
    }
    LoseLocked(*worker, {FaultCode::kRefused, reason});
  }
  log_.Error("worker {} is cut off: {}; its last results in use: {}", worker->node_id, reason,
             last.empty() ? "none" : last);
  (void)worker->link->Send(EncodeMessage(FaultMessage{0, FaultCode::kRefused, reason}), {});
  worker->link->Close(reason);
}

void SwarmCore::Ask(WorkerNumber number, LayerId layer, const Recipe& recipe, std::span<const float> x,
                    std::uint32_t n_in, std::span<const Pair> pairs, std::uint32_t n_out, OnAnswer on_answer) {
  DispatchMessage message;
  message.layer = layer;
  message.recipe = recipe;
  message.n_rows = static_cast<std::uint32_t>(n_in == 0 ? 0 : x.size() / n_in);
  message.row_len = n_in;
  for (const Pair& pair : pairs) message.pairs.push_back({pair.row, pair.expert.value});
  const auto flight = std::make_shared<Flight>();
  flight->layer = layer;
  flight->n_out = n_out;
  flight->reply_type = RowType::kF32;
  for (std::uint32_t i = 0; i < pairs.size(); ++i) {
    flight->pairs.push_back(i);
    flight->experts.push_back(pairs[i].expert.value);
  }
  std::ranges::sort(flight->experts);
  flight->experts.erase(std::unique(flight->experts.begin(), flight->experts.end()), flight->experts.end());

  WorkerPtr worker;
  std::string why;
  {
    std::lock_guard lock(mutex_);
    if (const auto lost = lost_because_.find(number); lost != lost_because_.end()) why = ": " + lost->second;
    const auto entry = workers_.find(number);
    if (entry != workers_.end() && !entry->second->lost) {
      worker = entry->second;
      flight->id = message.id = next_id_++;
      flight->worker = number;
      flight->on_answer = on_answer;
      flight->sent_at = clock_.Now();
      if (worker->cost.measured()) {
        flight->expected_us = worker->cost.ExpectedUs(static_cast<std::uint32_t>(pairs.size()), flight->sent_at);
      }
      worker->flights.emplace(flight->id, flight);
    }
  }
  if (worker == nullptr) {
    on_answer(Fail(FaultCode::kGone, "the worker has gone{}", why));
    return;
  }
  const auto rows = std::as_bytes(x);
  const auto sent = worker->link->Send(EncodeMessage(message), std::span(&rows, 1));
  if (sent.has_value()) return;
  OnAnswer answer;
  {
    std::lock_guard lock(mutex_);
    worker->flights.erase(flight->id);
    answer = std::exchange(flight->on_answer, {});
  }
  if (answer) answer(std::unexpected(sent.error()));  // else it was lost and answered in the meantime
}

// ---------------------------------------------------------------- samples

std::vector<std::uint32_t> SwarmCore::DrawSamplesLocked(std::span<const std::uint32_t> positions) {
  std::vector<std::uint32_t> drawn;
  const double share = options_.spot_share;
  if (!(share > 0) || options_.row_type != RowType::kF32 || options_.reply_type != RowType::kF32) return drawn;
  // Distances between samples are geometric, so that no pair is likelier than another and few numbers are drawn.
  const auto distance = [&]() -> std::uint64_t {
    if (share >= 1) return 1;
    const double pairs = std::log(1 - sample_rng_.Uniform()) / std::log1p(-share);
    return 1 + static_cast<std::uint64_t>(std::min(pairs, 1e15));
  };
  if (pairs_to_sample_ == 0) pairs_to_sample_ = distance();
  std::size_t at = 0;
  while (positions.size() - at >= pairs_to_sample_) {
    at += pairs_to_sample_;
    drawn.push_back(positions[at - 1]);
    pairs_to_sample_ = distance();
  }
  pairs_to_sample_ -= positions.size() - at;
  return drawn;
}

void SwarmCore::NoteAnswerLocked(WorkerLink& worker, const Flight& flight) {
  if (!options_.gated && !(options_.spot_share > 0)) return;
  if (worker.last_answers.size() == kAnswersRemembered) worker.last_answers.pop_front();
  worker.last_answers.push_back({flight.layer, flight.experts, flight.pairs.size(), clock_.Now()});
}

std::vector<LiveSample> SwarmCore::TakeSamples() {
  std::lock_guard lock(mutex_);
  std::vector<LiveSample> taken(std::make_move_iterator(samples_.begin()), std::make_move_iterator(samples_.end()));
  samples_.clear();
  return taken;
}

void SwarmCore::Record(const NodeCheck& check) {
  std::lock_guard lock(mutex_);
  // A worker that restarts is a new node: what is known of those that left goes, refusals too once they are many.
  if (checks_.size() >= kChecksKept && !checks_.contains(check.node_id)) {
    std::erase_if(checks_, [this](const auto& entry) { return !ConnectedLocked(entry.first); });
  }
  checks_[check.node_id] = check;
}

}  // namespace linkcpp
