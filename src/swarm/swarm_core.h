// The one implementation of Swarm, in two halves: compute.cc runs a layer on the caller's thread, swarm.cc does the
// rest.
//
// One mutex guards everything that is shared. It is never held while rows are copied, a link is called or destroyed,
// the local experts run or a line is logged.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "swarm/assign.h"
#include "swarm/call.h"
#include "swarm/link_cost.h"
#include "swarm/routing_table.h"
#include "swarm/swarm.h"
#include "wire/messages.h"

namespace linkcpp {

// One connected worker. Guarded by the swarm's mutex, but for the link itself.
struct WorkerLink {
  WorkerNumber number = 0;
  std::string node_id;
  std::string kernel_class;
  std::shared_ptr<LinkReport> figures;  // of the node; outlive the link
  LinkCost cost;
  std::map<std::uint64_t, std::shared_ptr<Flight>> flights;  // by id, so in the order sent
  bool lost = false;     // nothing is sent to it or believed from it any more; on_close follows
  bool leaving = false;  // said goodbye: answers what it has, gets no more
  std::shared_ptr<const SliceLists> holds = std::make_shared<SliceLists>();
  std::set<std::uint16_t> admitted;  // layers of `holds` that are in the table, when the swarm is gated
  struct Answer {                    // a live one: what it was trusted with last
    LayerId layer;
    std::vector<std::uint16_t> experts;
    std::size_t n_pairs = 0;
    TimePoint at{};
  };
  std::deque<Answer> last_answers;
  std::set<std::uint16_t> doubted;  // layers of which a frame with several experts was refused: next time one by one
  int faults_in_a_row = 0;
  TimePoint avoid_until{};  // it said busy or failed: others first
  TimePoint progress_at{};  // its last answer
  TimePoint heard_at{};     // its last frame of any kind
  TimePoint pinged_at{};
  std::uint64_t ping_nonce = 0;  // 0: no ping is out
  std::unique_ptr<Link> link;    // last, so destroyed first: no handler runs once the rest goes
};

class SwarmCore final : public Swarm {
 public:
  SwarmCore(const SwarmOptions& options, LocalExperts* local, const Clock& clock, LogSink& log);
  ~SwarmCore() override;

  void AddWorker(std::string node_id, std::string kernel_class, std::unique_ptr<Link> link) override;
  Result<void> Compute(LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                       std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out) override;
  void Tick() override;
  std::vector<WorkerOffer> Offers() const override;
  void Admit(WorkerNumber worker, std::span<const std::uint16_t> layers) override;
  void Expel(WorkerNumber worker, const std::string& reason) override;
  void Ask(WorkerNumber worker, LayerId layer, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
           std::span<const Pair> pairs, std::uint32_t n_out, OnAnswer on_answer) override;
  std::vector<LiveSample> TakeSamples() override;
  void Record(const NodeCheck& check) override;
  std::uint64_t CoveredSlices() const override;
  BackboneReport Report() const override;

 private:
  using WorkerPtr = std::shared_ptr<WorkerLink>;
  struct Closing {
    WorkerPtr worker;
    std::string reason;
  };
  enum class Why { kFirst, kRetry, kHedge };

  // ---- swarm.cc: a link's handlers and what they change. "Locked": the mutex is held.
  Result<void> OnFrame(WorkerLink& worker, const FrameView& frame);
  void OnClose(WorkerLink& worker, const Fault& why);
  Result<void> On(WorkerLink& worker, const ResultMessage& result, std::span<const std::byte> payload);
  Result<void> On(WorkerLink& worker, const FaultMessage& fault);
  Result<void> On(WorkerLink& worker, const HoldingsMessage& holdings);
  Result<void> On(WorkerLink& worker, const PingMessage& ping);
  Result<void> On(WorkerLink& worker, const GoodbyeMessage& goodbye);
  // Its flights fail with `fault`, its holdings go; the caller closes the link once the mutex is free.
  void LoseLocked(WorkerLink& worker, const Fault& fault);
  void FailFlightLocked(WorkerLink& worker, Flight& flight, Flight::State state, const Fault& fault);
  void LoseOverdueLocked(TimePoint now, std::vector<Closing>& closing);
  void Close(std::vector<Closing>& closing);
  void SignalLocked();

  // ---- checks.cc
  bool ConnectedLocked(const std::string& node_id) const;
  void EnterTableLocked(WorkerLink& worker);  // what it holds, as far as it is admitted
  // Positions in flight.pairs of the pairs to keep a sample of.
  std::vector<std::uint32_t> DrawSamplesLocked(std::span<const std::uint32_t> positions);
  void NoteAnswerLocked(WorkerLink& worker, const Flight& flight);

  // ---- compute.cc: the calling thread's side
  Result<void> Run(Call& call);
  // Plans `todo`, sends all frames, then computes what nobody can be asked for. kHedge: pairs without another holder
  // are left to the flight that carries them.
  Result<void> Route(Call& call, std::span<const std::uint32_t> todo, Why why, bool workers_allowed);
  Result<std::vector<std::pair<WorkerPtr, std::shared_ptr<Flight>>>> PlanLocked(Call& call,
                                                                                std::span<const std::uint32_t> todo,
                                                                                Why why, bool workers_allowed,
                                                                                std::vector<std::uint32_t>& local);
  void Send(Call& call, WorkerPtr worker, std::shared_ptr<Flight> flight);
  Result<void> ComputeLocally(Call& call, std::span<const std::uint32_t> numbers);
  Fault NobodyFault(const Call& call, std::uint32_t pair) const;
  std::uint32_t FrameCap(const WorkerLink& worker, const Call& call, TimePoint now) const;
  Duration HedgeAfter(double expected_us) const;
  void WaitUntil(TimePoint until);

  bool local_allowed() const { return options_.allow_local && local_ != nullptr; }

  const SwarmOptions options_;
  LocalExperts* const local_;
  const Clock& clock_;
  LogSink& log_;

  std::mutex compute_mutex_;  // one Compute at a time, whatever the callers do
  // Scratch of Compute, kept for its capacity.
  std::vector<std::uint32_t> row_in_frame_;
  std::vector<std::byte> packed_x_;
  std::vector<float> local_y_;
  std::vector<Pair> local_pairs_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::atomic<bool> signalled_ = false;  // written with the mutex held; read without it while spinning
  std::map<WorkerNumber, WorkerPtr> workers_;
  std::vector<WorkerPtr> graveyard_;  // closed; to be destroyed outside any handler
  RoutingTable table_;
  std::map<std::string, std::shared_ptr<LinkReport>> nodes_;
  std::unordered_map<std::uint16_t, std::vector<std::uint64_t>> heat_;  // [layer][expert]
  BackboneReport totals_;                                               // without links and heat
  std::map<std::string, std::string> expelled_;                         // node: why
  std::map<WorkerNumber, std::string> lost_because_;  // of the latest, for questions that come too late
  std::map<std::string, NodeCheck> checks_;           // by node
  std::deque<LiveSample> samples_;
  Rng sample_rng_;
  std::uint64_t pairs_to_sample_ = 0;  // live pairs until the next sample
  WorkerNumber next_worker_ = 1;
  std::uint64_t next_id_ = 1;
};

}  // namespace linkcpp
