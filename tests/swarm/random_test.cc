// Thousands of random swarms on a fake clock: workers that are slow, lose frames, die, lie, come back, while layers are
// computed. Whatever happens, every row is the reference's, or the call fails and says why. One number makes a run:
// SWARM_SEED=n repeats run n alone, SWARM_RUNS=n does more.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <limits>
#include <map>

#include "swarm/assign.h"
#include "swarm/swarm.h"
#include "swarm/test_link.h"
#include "swarm/test_worker.h"

namespace linkcpp {
namespace {

using Mood = FakeWorker::Mood;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kIn = 8;
constexpr std::uint32_t kOut = 3;
constexpr std::uint16_t kLayers = 2;
constexpr std::uint16_t kExperts = 12;

struct Outcome {
  int right = 0, failed = 0;
};

class RandomSwarm {
 public:
  RandomSwarm(std::uint64_t seed, bool honest) : net_(seed), honest_(honest) {
    Rng& rng = net_.rng();
    options_.allow_local = !honest && rng.Below(3) != 0;
    options_.deadline = milliseconds(100 + rng.Below(1000));
    options_.local_after = milliseconds(20 + rng.Below(300));
    options_.hedge_after = milliseconds(rng.Below(2) == 0 ? 0 : 1 + rng.Below(50));
    options_.max_pairs_per_frame = static_cast<std::uint32_t>(1 + rng.Below(60));
    options_.pump = [this](TimePoint until) { net_.Pump(until); };
    if (honest) options_.hedge_after = milliseconds(0);
    local_.fail = rng.Below(10) == 0;
    swarm_ = Swarm::Create(options_, rng.Below(5) == 0 ? nullptr : &local_, net_.clock(), log_);
    const std::uint64_t n_workers = 1 + rng.Below(7);
    for (std::uint64_t i = 0; i < n_workers; ++i) AddWorker();
    if (honest) {  // all experts have a holder
      workers_.front().Hold({{0, "0:12"}, {1, "0:12"}});
    }
    net_.RunFor(milliseconds(50));
  }

  Outcome Run() {
    Outcome outcome;
    for (int call = 0; call < 8 && !::testing::Test::HasFatalFailure(); ++call) {
      ComputeOnce(outcome);
      if (!honest_) Meddle();
    }
    return outcome;
  }

  BackboneReport Report() const { return swarm_->Report(); }

 private:
  std::vector<LayerHoldings> SomeHoldings() {
    std::vector<LayerHoldings> ready;
    for (std::uint16_t layer = 0; layer < kLayers; ++layer) {
      std::string experts;
      for (int expert = 0; expert < kExperts; ++expert) {
        if (net_.rng().Below(2) == 0) experts += (experts.empty() ? "" : ",") + std::to_string(expert);
      }
      ready.push_back({layer, experts});
    }
    return ready;
  }

  void AddWorker() {
    Rng& rng = net_.rng();
    TestNet::Script script;
    script.least_delay = microseconds(20 + rng.Below(2000));
    script.most_delay = script.least_delay + microseconds(rng.Below(honest_ ? 2000 : 40'000));
    if (!honest_) {
      if (rng.Below(4) == 0) script.lose = 0.05;
      if (rng.Below(4) == 0) script.busy = 0.2;
      if (rng.Below(4) == 0) script.cut_after = rng.Below(40);
    }
    const std::uint64_t number = rng.Below(10);  // sometimes a node we know: its older link is closed
    const std::string name = "n" + std::to_string(honest_ ? workers_.size() : number);
    auto [near, far] = net_.MakePair(script, name);
    FakeWorker& worker = workers_.emplace_back(net_, std::move(far), kOut);
    worker.compute = microseconds(rng.Below(5000));
    if (!honest_) {
      const std::uint64_t kind = rng.Below(6);  // 0: wicked, 1: unlucky, 2: mostly well, else well
      worker.mood = [this, kind] {
        const std::uint64_t odds = kind == 0 ? 2 : kind == 1 ? 3 : 20;
        if (kind > 2 || net_.rng().Below(odds) != 0) return Mood::kHonest;
        return static_cast<Mood>(kind == 1 ? net_.rng().Below(6) : net_.rng().Below(FakeWorker::kMoods));
      };
      worker.answers_pings = rng.Below(5) != 0;
    }
    swarm_->AddWorker(name, "test", std::move(near));
    worker.Hold(SomeHoldings());
  }

  void ComputeOnce(Outcome& outcome) {
    Rng& rng = net_.rng();
    const LayerId layer(static_cast<std::uint16_t>(rng.Below(kLayers)));
    const auto n_rows = static_cast<std::uint32_t>(1 + rng.Below(rng.Below(4) == 0 ? 64 : 2));
    std::vector<float> x(n_rows * kIn);
    for (float& value : x) value = static_cast<float>(rng.Uniform());
    std::vector<Pair> pairs;
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      const auto first = static_cast<std::uint16_t>(rng.Below(kExperts));
      for (std::uint16_t i = 0; i < 4; ++i) {
        pairs.push_back({row, ExpertId(static_cast<std::uint16_t>((first + i * 5) % kExperts))});
      }
    }
    std::vector<float> y(pairs.size() * kOut, std::numeric_limits<float>::quiet_NaN());
    const TimePoint before = net_.clock().Now();
    local_.asked.clear();
    Recipe recipe = Recipe::Swiglu();  // with the call's number, by which its dispatches are known
    recipe.steps.push_back({.op = StepOp::kFactor, .a = 4, .p0 = static_cast<float>(++n_calls_)});
    const auto done = swarm_->Compute(layer, recipe, x, kIn, pairs, y, kOut);
    ASSERT_LE(net_.clock().Now() - before, 2 * options_.deadline + milliseconds(1)) << "it took too long";
    if (done.has_value()) {
      ++outcome.right;
      std::vector<float> expected(kOut);
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        FakeExpert(layer, pairs[i].expert, std::span(x).subspan(pairs[i].row * kIn, kIn), expected);
        ASSERT_TRUE(std::ranges::equal(std::span(y).subspan(i * kOut, kOut), expected))
            << "pair " << i << " of " << pairs.size() << " is not what the reference says";
      }
    } else {
      ++outcome.failed;
      ASSERT_NE(done.error().text.find("layer " + std::to_string(layer.value)), std::string::npos) << done.error().text;
      ASSERT_FALSE(honest_) << done.error().text;
    }
    CheckCuts(recipe, pairs);
    // What arrives now is nobody's: y was handed back.
    const std::vector<float> kept = y;
    net_.RunFor(milliseconds(rng.Below(3) == 0 ? 200 : 0));
    ASSERT_EQ(std::memcmp(kept.data(), y.data(), y.size() * sizeof(float)), 0) << "y was written to after the call";
  }

  // A kernel's bits depend on whether an expert has kManyPairs rows or fewer: whoever is asked, for the first time or
  // again, gets pieces on the whole batch's side of that.
  void CheckCuts(const Recipe& recipe, const std::vector<Pair>& pairs) {
    std::map<std::uint16_t, std::size_t> whole;
    for (const Pair& pair : pairs) ++whole[pair.expert.value];
    const auto check = [&](const auto& asked, auto expert_of) {
      std::map<std::uint16_t, std::size_t> part;
      for (const auto& pair : asked) ++part[expert_of(pair)];
      for (const auto& [expert, count] : part) {
        ASSERT_EQ(count >= kManyPairs, whole[expert] >= kManyPairs)
            << count << " of " << whole[expert] << " rows of " << expert;
      }
    };
    for (const FakeWorker& worker : workers_) {
      for (const DispatchMessage& dispatch : worker.dispatches) {
        if (dispatch.recipe == recipe) check(dispatch.pairs, [](const PairMessage& pair) { return pair.expert; });
      }
    }
    for (const auto& asked : local_.asked) check(asked, [](const Pair& pair) { return pair.expert.value; });
  }

  void Meddle() {
    Rng& rng = net_.rng();
    FakeWorker& someone = workers_[rng.Below(workers_.size())];
    switch (rng.Below(8)) {
      case 0: AddWorker(); break;
      case 1: someone.Hold(SomeHoldings()); break;
      case 2: someone.Die(); break;
      case 3: someone.Say(GoodbyeMessage{"test"}); break;
      case 4: net_.RunFor(seconds(5)); break;
      case 5: someone.Say(PingMessage{rng.Next(), rng.Below(2) == 0}); break;
      default: break;
    }
    swarm_->Tick();
  }

  TestNet net_;
  const bool honest_;
  NullLog log_;
  FakeLocal local_;
  SwarmOptions options_;
  int n_calls_ = 0;
  std::deque<FakeWorker> workers_;
  std::unique_ptr<Swarm> swarm_;
};

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(RandomSwarmTest, EveryRowIsRightOrTheCallFails) {
  const std::uint64_t only = FromEnvironment("SWARM_SEED", 0);
  const std::uint64_t runs = FromEnvironment("SWARM_RUNS", 4000);
  Outcome all;
  std::uint64_t retried = 0, local = 0;
  for (std::uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : runs); ++seed) {
    SCOPED_TRACE("SWARM_SEED=" + std::to_string(seed));
    RandomSwarm swarm(seed, false);
    const Outcome outcome = swarm.Run();
    all.right += outcome.right;
    all.failed += outcome.failed;
    retried += swarm.Report().pairs_retried;
    local += swarm.Report().pairs_local;
    if (HasFailure()) break;
  }
  std::printf("%d calls right, %d failed with a reason; %llu pairs moved, %llu computed here\n", all.right, all.failed,
              static_cast<unsigned long long>(retried), static_cast<unsigned long long>(local));
  if (only == 0 && !HasFailure()) {  // the runs must have met what they are about
    EXPECT_GT(all.right, all.failed);
    EXPECT_GT(all.failed, 0);
    EXPECT_GT(retried, runs);
  }
}

TEST(RandomSwarmTest, WithoutTroubleThereIsOneRoundTripALayer) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomSwarm swarm(seed, true);
    swarm.Run();
    const BackboneReport report = swarm.Report();
    ASSERT_EQ(report.dispatches, 8u);
    ASSERT_EQ(report.round_trips, 8u);
    ASSERT_EQ(report.pairs_retried, 0u);
    ASSERT_EQ(report.pairs_local, 0u);
    ASSERT_EQ(report.failed, 0u);
  }
}

}  // namespace
}  // namespace linkcpp
