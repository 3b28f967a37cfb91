#include "admission/auditor.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <format>
#include <mutex>
#include <random>
#include <stop_token>
#include <utility>

#include "base/quiet_thread.h"
#include "swarm/assign.h"

namespace linkcpp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A canary is one row asked alone and the same row among others: kernels multiply a few rows and many in different
// ways.
constexpr std::uint32_t kRows = kManyPairs + 1;
constexpr std::size_t kExamsAtOnce = 4;  // layers of one worker: hides round trips, leaves room for live traffic
constexpr milliseconds kFirstPause{500};
constexpr seconds kLongestPause{30};
constexpr seconds kOverTimeEvery{2};
constexpr std::size_t kMaxSamples = 256;
constexpr int kOpinionsAtOnce = 4;  // of one worker: its queue is for live traffic
constexpr double kMaxCreditS = 0.5;
constexpr std::uint64_t kOracleAnyway = 8;  // one in so many samples is judged here though another holder agrees

double Finite(double value) {
  return std::isfinite(value) ? value : 1e300;
}

}  // namespace

struct Auditor::Inbox {
  std::mutex mutex;
  std::condition_variable news;
  std::vector<Arrived> arrived;
  bool woken = false;

  void Put(Arrived answer) {
    {
      const std::lock_guard lock(mutex);
      arrived.push_back(std::move(answer));
      woken = true;
    }
    news.notify_one();
  }
};

Auditor::Auditor(const ModelFile& model, LocalExperts* kernel, const AuditorOptions& options, const Clock& clock,
                 LogSink& log)
    : options_(options),
      clock_(clock),
      log_(log),
      examiner_(model, kernel),
      inbox_(std::make_shared<Inbox>()),
      rng_(options.seed != 0 ? options.seed : (std::uint64_t{std::random_device()()} << 32) | std::random_device()()),
      canary_seed_(rng_.Next()),
      credited_at_(clock.Now()),
      over_time_at_(clock.Now()) {}

Auditor::~Auditor() {
  Stop();
}

void Auditor::Start(Swarm& swarm) {
  thread_ = StartQuietThread("linkcpp-audit", [this, &swarm](std::stop_token stop) {
    const std::stop_callback wake(stop, [this] { Wake(); });
    while (!stop.stop_requested()) {
      try {
        if (Step(swarm)) continue;
      } catch (const std::exception& error) {  // memory: what was asked is lost and asked again later
        log_.Warning("checking workers: {}", error.what());
        std::this_thread::sleep_for(kFirstPause);
      }
      std::unique_lock lock(inbox_->mutex);
      inbox_->news.wait_for(lock, samples_.empty() ? milliseconds(500) : milliseconds(50),
                            [&] { return inbox_->woken || stop.stop_requested(); });
    }
  });
}

void Auditor::Stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  Wake();
  thread_.join();
}

void Auditor::Wake() {
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->woken = true;
  }
  inbox_->news.notify_one();
}

bool Auditor::Step(Swarm& swarm) {
  std::vector<Arrived> arrived;
  {
    const std::lock_guard lock(inbox_->mutex);
    arrived.swap(inbox_->arrived);
    inbox_->woken = false;
  }
  bool did = Renew(swarm);
  for (Arrived& answer : arrived) did = Handle(swarm, std::move(answer)) || did;
  if (options_.canaries) {
    for (auto& [number, subject] : subjects_) did = Examine(swarm, subject) || did;
  }
  did = LookAtSamples(swarm) || did;
  if (options_.canaries) did = ExamineOverTime(swarm) || did;
  RecordNews(swarm);
  return did;
}

// ---------------------------------------------------------------- who is there

bool Auditor::Renew(Swarm& swarm) {
  bool did = false;
  std::map<WorkerNumber, Subject> now;
  for (WorkerOffer& offer : swarm.Offers()) {
    auto node = subjects_.extract(offer.worker);
    const bool is_new = node.empty();
    Subject& subject = is_new ? now[offer.worker] : now.insert(std::move(node)).position->second;
    if (is_new) {
      did = true;
      subject.is_gpu = !offer.kernel_class.contains("/CPU/");
      subject.check.node_id = offer.node_id;
      subject.check.kernel_class = offer.kernel_class;
      subject.check.state = options_.canaries ? "checking" : "admitted";
      if (!options_.ggml.empty() && !offer.kernel_class.starts_with(options_.ggml + "/")) {
        log_.Warning("worker {} computes with {}, this backbone has {}: their bits may differ{}", offer.node_id,
                     offer.kernel_class.substr(0, offer.kernel_class.find('/')), options_.ggml,
                     options_.canaries ? ", its results must lie within the derived bounds" : "");
      }
    } else if (subject.offer.holds != offer.holds) {
      did = true;
      subject.closed.clear();
    }
    subject.offer = std::move(offer);
  }
  subjects_ = std::move(now);
  return did;
}

Auditor::Subject* Auditor::Find(WorkerNumber worker) {
  const auto entry = subjects_.find(worker);
  return entry == subjects_.end() ? nullptr : &entry->second;
}

void Auditor::RecordNews(Swarm& swarm) {
  for (auto& [number, subject] : subjects_) {
    if (!std::exchange(subject.news, false)) continue;
    NodeCheck& check = subject.check;
    check.slices = subject.judged.size();
    check.cosine = subject.exact.Cosine();
    check.nmse = Finite(subject.exact.Nmse());
    check.max_abs = Finite(subject.exact.MaxAbs());
    swarm.Record(check);
  }
}

// ---------------------------------------------------------------- canaries

Auditor::Canaries Auditor::CanariesOf(const LayerPlan& plan) const {
  Rng rng(canary_seed_ + plan.layer->layer.value);
  Canaries canaries;
  canaries.judged = rng.Below(kRows);
  canaries.rows.reserve(std::size_t{kRows} * plan.n_in);
  for (std::size_t i = 0; i < std::size_t{kRows} * plan.n_in; ++i) {
    canaries.rows.push_back(static_cast<float>(Gaussian(rng)));
  }
  return canaries;
}

ExpertId Auditor::ChooseExpert(const Subject& subject, std::uint16_t layer) {
  const std::vector<std::uint16_t>& experts = subject.offer.holds->at(layer);
  const auto favourite = favourites_.find(layer);
  if (favourite != favourites_.end() && std::ranges::binary_search(experts, favourite->second.value)) {
    return favourite->second;
  }
  return favourites_[layer] = ExpertId(experts[rng_.Below(experts.size())]);
}

void Auditor::CloseLayer(Subject& subject, std::uint16_t layer, std::string why) {
  log_.Warning("worker {} is not asked for layer {}: {}", subject.offer.node_id, layer, why);
  subject.closed[layer] = std::move(why);
}

bool Auditor::Examine(Swarm& swarm, Subject& subject) {
  if (subject.check.state == "refused" || clock_.Now() < subject.not_before) return false;
  bool did = false, waiting = false;
  for (const auto& [layer, experts] : *subject.offer.holds) {
    if (experts.empty() || subject.offer.admitted.contains(layer) || subject.closed.contains(layer)) continue;
    waiting = true;
    if (subject.exams.contains(layer)) continue;
    if (subject.exams.size() >= kExamsAtOnce) break;
    const Result<ExamPlan>& exam = examiner_.PlanOf(LayerId(layer));
    if (!exam.has_value()) {
      CloseLayer(subject, layer, exam.error().text);
      continue;
    }
    if (const auto bad = std::ranges::find_if(experts, [&](auto e) { return e >= exam->plan.layer->n_experts; });
        bad != experts.end()) {
      CloseLayer(subject, layer, std::format("it claims expert {} of {}", *bad, exam->plan.layer->n_experts));
      continue;
    }
    const LayerPlan& plan = exam->plan;
    const ExpertId expert = ChooseExpert(subject, layer);
    const Canaries canaries = CanariesOf(plan);
    subject.exams[layer] = {.expert = expert, .n_out = 2};
    Asked asked{
        .worker = subject.offer.worker, .slice = {LayerId(layer), expert}, .holds = subject.offer.holds, .sample = {}};
    const auto alone = std::span(canaries.rows).subspan(canaries.judged * plan.n_in, plan.n_in);
    Ask(swarm, asked, plan.recipe, alone, plan.n_in, plan.n_out);
    asked.judged = canaries.judged;
    Ask(swarm, asked, plan.recipe, canaries.rows, plan.n_in, plan.n_out);
    did = true;
  }
  if (!waiting && !subject.offer.holds->empty() && subject.check.state == "checking" && subject.check.canaries > 0) {
    subject.check.state = "admitted";
    subject.news = true;
    log_.Info(
        "worker {} is admitted: {} canaries, cosine {:.7f} (worst {:.7f}), at most {:.3g} of the derived bound; {} "
        "({})",
        subject.offer.node_id, subject.check.canaries, subject.exact.Cosine(), subject.check.worst_cosine,
        subject.check.over_bound, subject.offer.kernel_class, subject.check.kernel_model);
  }
  return did;
}

void Auditor::Ask(Swarm& swarm, const Asked& asked, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                  std::uint32_t n_out) {
  std::vector<Pair> pairs;
  for (std::uint32_t row = 0; row < x.size() / n_in; ++row) pairs.push_back({row, asked.slice.expert});
  swarm.Ask(asked.worker, asked.slice.layer, recipe, x, n_in, pairs, n_out,
            [inbox = inbox_, asked](Result<std::vector<float>> answer) { inbox->Put({asked, std::move(answer)}); });
}

bool Auditor::Handle(Swarm& swarm, Arrived arrived) {
  const Asked& asked = arrived.asked;
  Subject* const subject = Find(asked.worker);
  if (asked.kind == Asked::Kind::kSecondOpinion) {
    // Whoever answered, it is about the worker of the sample; without an answer we look ourselves.
    const LiveSample& sample = *asked.sample;
    if (subject != nullptr) --subject->opinions;
    Subject* const sampled = Find(sample.worker);
    if (sampled == nullptr) return false;
    const bool agrees = arrived.answer.has_value() && BitIdentical(*arrived.answer, sample.y);
    if (agrees && rng_.Below(kOracleAnyway) != 0) {
      ++sampled->check.spot_checks;
      sampled->news = true;
      return true;
    }
    if (arrived.answer.has_value() && !agrees && subject != nullptr && HasBudget()) {
      (void)Charged(
          [&] { return Judge(swarm, *subject, asked.kind, sample.slice, sample.recipe, sample.x, *arrived.answer); });
    }
    if (HasBudget()) {
      JudgeSample(swarm, sample);
    } else if (agrees) {
      ++sampled->check.spot_checks;
      sampled->news = true;
    } else {
      Queue(asked.sample);  // two workers disagree, or one is busy: it waits for its turn
    }
    return true;
  }
  if (subject == nullptr) return false;
  const std::uint16_t layer = asked.slice.layer.value;
  const Result<ExamPlan>& exam = examiner_.PlanOf(asked.slice.layer);
  const bool canary = asked.kind == Asked::Kind::kCanary;
  if (!canary) subject->asked_over_time = false;
  LayerExam* const running = canary && subject->exams.contains(layer) ? &subject->exams[layer] : nullptr;
  if (!arrived.answer.has_value()) {
    const Fault& fault = arrived.answer.error();
    if (running != nullptr) running->failed = true;
    const bool stale = asked.holds != subject->offer.holds;  // it has stated other holdings since: asked anew
    if (canary && fault.code == FaultCode::kRefused && stale) {
      log_.Debug("worker {} refused a check of what it holds no more", subject->offer.node_id);
    } else if (canary && fault.code == FaultCode::kRefused) {
      if (!subject->closed.contains(layer)) CloseLayer(*subject, layer, "it says: " + fault.text);
    } else if (canary) {
      subject->pause = std::clamp<Duration>(2 * subject->pause, kFirstPause, kLongestPause);
      subject->not_before = clock_.Now() + subject->pause;
      log_.Info("worker {} did not answer a check of layer {} ({}); again in {:.1f} s", subject->offer.node_id, layer,
                fault.text, std::chrono::duration<double>(subject->pause).count());
    }
  } else if (exam.has_value()) {
    const LayerPlan& plan = exam->plan;
    const Canaries canaries = CanariesOf(plan);
    const auto x = std::span(canaries.rows).subspan(canaries.judged * plan.n_in, plan.n_in);
    const auto y = std::span(*arrived.answer).subspan(asked.judged * plan.n_out, plan.n_out);
    const auto judge = [&] { return Judge(swarm, *subject, asked.kind, asked.slice, plan.recipe, x, y); };
    const Verdict verdict = canary ? judge() : Charged(judge);
    if (verdict == Verdict::kWrong) return true;
    if (verdict == Verdict::kNone && running != nullptr) running->failed = true;
  }
  if (running == nullptr || --running->n_out > 0) return true;
  const bool passed = !running->failed;
  subject->exams.erase(layer);
  if (passed) {
    subject->pause = {};
    subject->offer.admitted.insert(layer);
    swarm.Admit(asked.worker, std::span(&layer, 1));
  }
  return true;
}

Auditor::Verdict Auditor::Judge(Swarm& swarm, Subject& subject, Asked::Kind kind, SliceId slice, const Recipe& recipe,
                                std::span<const float> x, std::span<const float> y) {
  if (subject.check.state == "refused") return Verdict::kWrong;
  // Only the canaries of admission are asked of every worker, so only their references are kept.
  const bool admission = kind == Asked::Kind::kCanary;
  const auto found = examiner_.Examine(slice, recipe, x, y, subject.is_gpu, subject.check.kernel_model, admission);
  if (!found.has_value()) {
    if (admission && !subject.closed.contains(slice.layer.value)) {
      CloseLayer(subject, slice.layer.value, found.error().text);
    }
    return Verdict::kNone;
  }
  NodeCheck& check = subject.check;
  const bool live = kind == Asked::Kind::kSecondOpinion;  // a row of live traffic
  ++(!live ? check.canaries : check.spot_checks);
  check.kernel_model = found->model;
  check.worst_cosine = std::min(check.worst_cosine, found->exact.Cosine());
  check.over_bound = std::max(check.over_bound, Finite(found->over_bound));
  subject.exact.Add(found->exact);
  subject.judged.insert(slice);
  subject.news = true;
  if (found->right) return Verdict::kRight;
  check.state = "refused";
  check.refusal =
      std::format("{} failed: {}; {}", live ? "a spot check" : "a check", found->text, subject.offer.kernel_class);
  RecordNews(swarm);
  swarm.Expel(subject.offer.worker, check.refusal);
  return Verdict::kWrong;
}

// ---------------------------------------------------------------- spot checks

bool Auditor::LookAtSamples(Swarm& swarm) {
  bool did = false;
  for (LiveSample& sample : swarm.TakeSamples()) {
    Subject* const subject = Find(sample.worker);
    if (subject == nullptr || subject->check.state == "refused") continue;
    if (!std::ranges::all_of(sample.x, [](float value) { return std::isfinite(value); })) continue;
    // Another holder of the same kernel class must have the same bits; that costs us nothing. Where it computed with
    // many rows of the expert, or on a GPU, the bits may differ with the batch.
    std::vector<WorkerNumber> others;
    for (const auto& [number, other] : subjects_) {
      if (number == sample.worker || other.is_gpu || other.offer.kernel_class != subject->offer.kernel_class) continue;
      if (other.opinions >= kOpinionsAtOnce) continue;
      if (options_.canaries && !other.offer.admitted.contains(sample.slice.layer.value)) continue;
      const auto layer = other.offer.holds->find(sample.slice.layer.value);
      if (layer == other.offer.holds->end()) continue;
      if (std::ranges::binary_search(layer->second, sample.slice.expert.value)) others.push_back(number);
    }
    auto shared = std::make_shared<const LiveSample>(std::move(sample));
    did = true;
    if (!others.empty() && !shared->many) {
      Asked asked{.kind = Asked::Kind::kSecondOpinion,
                  .worker = others[rng_.Below(others.size())],
                  .slice = shared->slice,
                  .sample = shared};
      ++Find(asked.worker)->opinions;
      Ask(swarm, asked, shared->recipe, shared->x, static_cast<std::uint32_t>(shared->x.size()),
          static_cast<std::uint32_t>(shared->y.size()));
      continue;
    }
    Queue(std::move(shared));
  }
  if (samples_.empty() || !HasBudget()) return did;
  const auto sample = samples_.back();  // the newest first: it finds soonest who has turned wrong
  samples_.pop_back();
  JudgeSample(swarm, *sample);
  return true;
}

void Auditor::Queue(std::shared_ptr<const LiveSample> sample) {
  while (samples_.size() >= kMaxSamples) {
    if (Subject* const oldest = Find(samples_.front()->worker)) {
      ++oldest->check.skipped;
      oldest->news = true;
    }
    samples_.pop_front();
  }
  samples_.push_back(std::move(sample));
}

void Auditor::JudgeSample(Swarm& swarm, const LiveSample& sample) {
  Subject* const subject = Find(sample.worker);
  if (subject == nullptr) return;
  (void)Charged([&] {
    return Judge(swarm, *subject, Asked::Kind::kSecondOpinion, sample.slice, sample.recipe, sample.x, sample.y);
  });
}

// ---------------------------------------------------------------- all experts over time

bool Auditor::ExamineOverTime(Swarm& swarm) {
  const TimePoint now = clock_.Now();
  if (now < over_time_at_ || subjects_.empty() || !HasBudget()) return false;
  over_time_at_ = now + kOverTimeEvery;
  auto next = subjects_.upper_bound(over_time_last_);
  if (next == subjects_.end()) next = subjects_.begin();
  over_time_last_ = next->first;
  Subject& subject = next->second;
  if (subject.asked_over_time || subject.check.state != "admitted" || now < subject.not_before) return false;
  // A few draws find an expert that was not judged yet, until most were.
  for (int draw = 0; draw < 16; ++draw) {
    auto layer = subject.offer.holds->begin();
    if (layer == subject.offer.holds->end()) return false;
    std::advance(layer, static_cast<std::ptrdiff_t>(rng_.Below(subject.offer.holds->size())));
    if (layer->second.empty() || !subject.offer.admitted.contains(layer->first)) continue;
    const SliceId slice{LayerId(layer->first), ExpertId(layer->second[rng_.Below(layer->second.size())])};
    if (subject.judged.contains(slice)) continue;
    const Result<ExamPlan>& exam = examiner_.PlanOf(slice.layer);
    if (!exam.has_value()) return false;
    const LayerPlan& plan = exam->plan;
    const Canaries canaries = CanariesOf(plan);
    subject.asked_over_time = true;
    Ask(swarm, {.kind = Asked::Kind::kOverTime, .worker = subject.offer.worker, .slice = slice}, plan.recipe,
        std::span(canaries.rows).subspan(canaries.judged * plan.n_in, plan.n_in), plan.n_in, plan.n_out);
    return true;
  }
  return false;
}

// ---------------------------------------------------------------- budget

bool Auditor::HasBudget() {
  if (options_.cpu_share >= 1) return true;
  const TimePoint now = clock_.Now();
  credit_s_ =
      std::min(kMaxCreditS, credit_s_ + options_.cpu_share * std::chrono::duration<double>(now - credited_at_).count());
  credited_at_ = now;
  return credit_s_ > 0;
}

Auditor::Verdict Auditor::Charged(const std::function<Verdict()>& judge) {
  const auto begin = std::chrono::steady_clock::now();
  const Verdict verdict = judge();
  credit_s_ -= std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return verdict;
}

}  // namespace linkcpp
