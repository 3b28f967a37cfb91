// One Compute() in progress and the dispatches that carry its pairs.
//
// A pair is open until someone claims it: the first worker whose answer arrives, or the local experts. Whoever claims
// it writes its row of y, once; later answers are ignored. A pair that is open and carried by no flight is an orphan
// and must be routed again. Everything here is guarded by the swarm's mutex, except that a claimed row is written
// outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "swarm/routing_table.h"
#include "swarm/swarm.h"

namespace linkcpp {

class Call;

// One dispatch to one worker, from the plan until its answer, fault or loss.
struct Flight {
  enum class State : std::uint8_t { kOpen, kAnswered, kFailed, kBusy };

  std::uint64_t id = 0;  // never used twice in a process
  WorkerNumber worker = 0;
  Call* call = nullptr;  // nullptr: nobody waits for it any more
  OnAnswer on_answer;    // of a question to this worker (Swarm::Ask): there is no call then
  LayerId layer;
  std::vector<std::uint32_t> pairs;    // numbers in the call, in the order asked
  std::vector<std::uint16_t> experts;  // of those pairs, ascending, without doubles
  std::uint32_t n_out = 0;
  RowType reply_type = RowType::kF32;
  State state = State::kOpen;
  bool hedged = false;    // another holder was asked too
  bool given_up = false;  // computed here too
  double expected_us = 0;
  TimePoint sent_at{};
};

class Call {
 public:
  Call(LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in, std::span<const Pair> pairs,
       std::span<float> y, std::uint32_t n_out);

  // Marks what is still open among `numbers` as claimed and returns the positions in `numbers` of those pairs. Whoever
  // gets any must write their rows and then call Wrote.
  std::vector<std::uint32_t> Claim(std::span<const std::uint32_t> numbers);
  void Wrote(std::size_t n_pairs) {
    remaining_ -= n_pairs;
    --writers_;
  }

  void Carry(const Flight& flight);    // a flight takes its pairs along
  void PutDown(const Flight& flight);  // and does not any more: what is open and carried by no other is an orphan
  void Orphan(std::uint32_t pair) { orphans_.push_back(pair); }
  std::vector<std::uint32_t> TakeOrphans();  // ascending

  bool open(std::uint32_t pair) const { return claimed_[pair] == 0; }
  bool carried(std::uint32_t pair) const { return carriers_[pair] != 0; }
  std::size_t remaining() const { return remaining_; }  // pairs whose rows are not written
  int writers() const { return writers_; }              // threads that are writing claimed rows
  bool has_orphans() const { return !orphans_.empty(); }

  const LayerId layer;
  const Recipe& recipe;
  const std::span<const float> x;
  const std::uint32_t n_in;
  const std::span<const Pair> pairs;
  const std::span<float> y;
  const std::uint32_t n_out;

  std::vector<std::shared_ptr<Flight>> flights;  // all of them, for who was asked for what
  Fault last_fault;                              // of a flight; text names the worker
  TimePoint total_deadline{};
  bool ending = false;  // Compute is about to return

 private:
  std::vector<std::uint8_t> claimed_;
  std::vector<std::uint8_t> carriers_;
  std::vector<std::uint32_t> orphans_;
  std::size_t remaining_;
  int writers_ = 0;
};

}  // namespace linkcpp
