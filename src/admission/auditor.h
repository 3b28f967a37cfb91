// Admission by equivalence: a worker is asked for a layer only after it answered canary rows of it as the oracle does,
// and goes on being checked while it serves. Who fails is cut off. docs/admission.md tells the story.
//
// Canaries are ordinary dispatches with rows drawn when the backbone starts: a worker can not tell them from live ones.
// One thread does everything, beside the host's; it never waits for a worker.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "admission/examiner.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "gguf/model.h"
#include "swarm/swarm.h"

namespace linkcpp {

struct AuditorOptions {
  bool canaries = true;     // false: only spot checks
  double cpu_share = 0.02;  // of one core, at most, for spot checks judged here and for experts checked over time
  std::string ggml;         // "ggml-0.27.0": a worker with another one is named in the log; "": none is
  std::uint64_t seed = 0;   // of canary rows and choices; 0: drawn, so that no worker knows them
};

class Auditor {
 public:
  // All borrowed must outlive it. `kernel`: examiner.h; used from the auditor's thread only.
  Auditor(const ModelFile& model, LocalExperts* kernel, const AuditorOptions& options, const Clock& clock,
          LogSink& log);
  ~Auditor();  // stops

  // Starts the thread. Ended by Stop, which must be called before the swarm goes; the auditor itself may outlive it, so
  // that Wake can be the swarm's on_news.
  void Start(Swarm& swarm);
  void Stop();
  void Wake();  // any thread

  // What can be done now; for tests instead of the thread. False: nothing was done.
  bool Step(Swarm& swarm);

 private:
  struct Asked {
    enum class Kind : std::uint8_t { kCanary, kOverTime, kSecondOpinion } kind = Kind::kCanary;
    WorkerNumber worker = 0;
    SliceId slice;
    std::size_t judged = 0;                    // which row of the answer
    std::shared_ptr<const SliceLists> holds;   // what the worker said it had when it was asked
    std::shared_ptr<const LiveSample> sample;  // kSecondOpinion
  };
  struct Arrived {
    Asked asked;
    Result<std::vector<float>> answer;
  };
  struct Inbox;  // answers; outlives the auditor while questions are out

  // One layer of one worker on its way to admission.
  struct LayerExam {
    ExpertId expert;
    int n_out = 0;  // answers to come
    bool failed = false;
  };
  struct Subject {
    WorkerOffer offer;
    bool is_gpu = false;
    NodeCheck check;
    Comparison exact;
    std::map<std::uint16_t, LayerExam> exams;  // running
    std::map<std::uint16_t, std::string>
        closed;  // layers it can not be asked for, and why; until it states its holdings anew
    TimePoint not_before{};
    Duration pause{};
    std::set<SliceId> judged;
    bool asked_over_time = false;
    int opinions = 0;  // second opinions that it owes
    bool news = true;  // its check changed since it was recorded
  };
  struct Canaries {           // of one layer
    std::vector<float> rows;  // [kRows, n_in]
    std::size_t judged = 0;
  };

  bool Handle(Swarm& swarm, Arrived arrived);
  bool Renew(Swarm& swarm);                      // subjects ⇄ offers
  bool Examine(Swarm& swarm, Subject& subject);  // asks canaries of layers that wait
  bool LookAtSamples(Swarm& swarm);
  bool ExamineOverTime(Swarm& swarm);
  void CloseLayer(Subject& subject, std::uint16_t layer, std::string why);
  // Judges one row of a worker; false: it was cut off.
  enum class Verdict : std::uint8_t { kRight, kWrong, kNone };
  Verdict Judge(Swarm& swarm, Subject& subject, Asked::Kind kind, SliceId slice, const Recipe& recipe,
                std::span<const float> x, std::span<const float> y);
  void JudgeSample(Swarm& swarm, const LiveSample& sample);
  void Queue(std::shared_ptr<const LiveSample> sample);  // to be judged here; drops the oldest when there are too many
  void Ask(Swarm& swarm, const Asked& asked, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
           std::uint32_t n_out);
  Canaries CanariesOf(const LayerPlan& plan) const;  // the same every time
  ExpertId ChooseExpert(const Subject& subject, std::uint16_t layer);
  void RecordNews(Swarm& swarm);

  Subject* Find(WorkerNumber worker);
  bool HasBudget();
  Verdict Charged(const std::function<Verdict()>& judge);  // takes its time off the budget

  const AuditorOptions options_;
  const Clock& clock_;
  LogSink& log_;
  Examiner examiner_;
  const std::shared_ptr<Inbox> inbox_;
  Rng rng_;
  const std::uint64_t canary_seed_;
  std::map<WorkerNumber, Subject> subjects_;
  std::map<std::uint16_t, ExpertId> favourites_;  // the expert whose reference is at hand
  std::deque<std::shared_ptr<const LiveSample>> samples_;
  double credit_s_ = 0;
  TimePoint credited_at_;
  TimePoint over_time_at_;
  WorkerNumber over_time_last_ = 0;
  std::jthread thread_;
};

}  // namespace linkcpp
