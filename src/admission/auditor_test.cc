// A model of 4 layers × 16 experts, workers on links in memory that compute what the oracle says, or something else.
#include "admission/auditor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>

#include "swarm/test_link.h"
#include "swarm/test_worker.h"

namespace linkcpp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr char kCpu[] = "ggml-0.27.0/CPU/test/0/libc";

class Lines final : public LogSink {
 public:
  void Write(LogLevel, std::string_view text) override { all += std::string(text) + "\n"; }
  std::string all;
};

class AuditorTest : public ::testing::Test {
 protected:
  AuditorTest() : model_(ModelFile::Open(LINKCPP_ASSETS "/austen-moe-q4km.gguf").value()) {
    for (const MoeLayer& layer : model_.moe_layers()) {
      plans_[layer.layer.value] = PlanLayer(model_, layer.layer.value).value();
    }
  }

  // A kernel of the CPU model: rows as its format has them, then exact.
  void Honest(LayerId layer, ExpertId expert, std::span<const float> row, std::span<float> y) {
    const LayerPlan& plan = plans_.at(layer.value);
    auto& oracle = experts_[{layer, expert}];
    if (!oracle.has_value()) oracle = LoadOracleExpert(model_, plan, expert.value).value();
    const auto result = BoundExpert(plan.recipe, *oracle, row, KernelModels(false)[0]).value();
    std::ranges::transform(result.replayed, y.begin(), [](double value) { return static_cast<float>(value); });
  }

  void Make(SwarmOptions swarm = {}, AuditorOptions audit = {}) {
    swarm.pump = [this](TimePoint until) { net_.Pump(until); };
    swarm.gated = audit.canaries;
    if (audit.seed == 0) audit.seed = 7;
    auditor_.emplace(model_, nullptr, audit, net_.clock(), log_);
    swarm_ = Swarm::Create(swarm, nullptr, net_.clock(), log_);
  }

  FakeWorker& Add(const std::string& name, std::vector<LayerHoldings> ready, std::string kernel_class = kCpu) {
    auto [near, far] = net_.MakePair({}, name);
    FakeWorker& worker = workers_.emplace_back(net_, std::move(far), plans_.begin()->second.n_out);
    worker.expert = [this](const DispatchMessage& dispatch, std::size_t i, std::span<const float> row,
                           std::span<float> y) { Honest(dispatch.layer, ExpertId(dispatch.pairs[i].expert), row, y); };
    swarm_->AddWorker(name, std::move(kernel_class), std::move(near));
    worker.Hold(std::move(ready));
    return worker;
  }

  void Run(Duration time = milliseconds(50)) {
    const TimePoint until = net_.clock().Now() + time;
    while (net_.clock().Now() < until) {
      while (auditor_->Step(*swarm_)) {
      }
      net_.RunFor(milliseconds(1));
    }
  }

  // One row through experts of a layer.
  Result<void> Compute(const std::vector<std::uint16_t>& experts, LayerId layer = LayerId(0),
                       std::uint32_t n_rows = 1) {
    const LayerPlan& plan = plans_.at(layer.value);
    std::vector<float> x(std::size_t{n_rows} * plan.n_in);
    for (float& value : x) value = static_cast<float>(Gaussian(net_.rng()));
    std::vector<Pair> pairs;
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      for (const std::uint16_t expert : experts) pairs.push_back({row, ExpertId(expert)});
    }
    std::vector<float> y(pairs.size() * plan.n_out);
    return swarm_->Compute(layer, plan.recipe, x, plan.n_in, pairs, y, plan.n_out);
  }

  NodeCheck CheckOf(const std::string& node) {
    for (const NodeCheck& check : swarm_->Report().checks) {
      if (check.node_id == node) return check;
    }
    return {};
  }

  const ModelFile model_;
  std::map<std::uint16_t, LayerPlan> plans_;
  std::map<SliceId, std::optional<OracleExpert>> experts_;
  Lines log_;
  TestNet net_{1};
  std::optional<Auditor> auditor_;
  std::deque<FakeWorker> workers_;
  std::unique_ptr<Swarm> swarm_;
};

TEST_F(AuditorTest, AWorkerIsAskedOnceEveryLayerItOffersWasAnsweredRight) {
  Make();
  FakeWorker& worker = Add("w", {{0, "0:16"}, {1, "3,5"}});
  net_.RunFor(milliseconds(5));
  EXPECT_EQ(swarm_->CoveredSlices(), 0u);
  EXPECT_FALSE(Compute({3}).has_value());  // nobody may be asked yet
  Run();
  EXPECT_EQ(swarm_->CoveredSlices(), 18u);
  EXPECT_TRUE(Compute({3, 15}).has_value());
  const NodeCheck check = CheckOf("w");
  EXPECT_EQ(check.state, "admitted");
  EXPECT_EQ(check.kernel_class, kCpu);
  EXPECT_EQ(check.kernel_model, "cpu");
  EXPECT_EQ(check.canaries, 4u);  // two layers, alone and among others
  EXPECT_GT(check.worst_cosine, 0.999);
  EXPECT_GT(check.over_bound, 0);
  EXPECT_LE(check.over_bound, 1);
  std::set<std::size_t> sizes;
  for (const DispatchMessage& dispatch : worker.dispatches) sizes.insert(dispatch.pairs.size());
  EXPECT_THAT(sizes, ::testing::Contains(1));
  EXPECT_THAT(sizes, ::testing::Contains(::testing::Ge(std::size_t{8})));
}

TEST_F(AuditorTest, AWorkerThatComputesWrongIsCutOffAndToldWhy) {
  using Spoil = std::function<void(const DispatchMessage&, std::size_t, std::span<const float>, std::span<float>)>;
  const std::vector<std::pair<std::string, Spoil>> evils{
      {"scaled",
       [](auto&, auto, auto, std::span<float> y) {
         for (float& v : y) v *= 1.01f;
       }},
      {"nan", [](auto&, auto, auto, std::span<float> y) { y[7] = std::numeric_limits<float>::quiet_NaN(); }},
      {"one element", [](auto&, auto, auto, std::span<float> y) { y[y.size() / 2] += 0.05f; }},
      {"zeros", [](auto&, auto, auto, std::span<float> y) { std::ranges::fill(y, 0.0f); }},
      {"other expert",
       [this](auto& d, std::size_t i, std::span<const float> row, std::span<float> y) {
         Honest(d.layer, ExpertId(static_cast<std::uint16_t>((d.pairs[i].expert + 1) % 16)), row, y);
       }},
      {"other layer",
       [this](auto& d, std::size_t i, std::span<const float> row, std::span<float> y) {
         Honest(LayerId(static_cast<std::uint16_t>((d.layer.value + 1) % 4)), ExpertId(d.pairs[i].expert), row, y);
       }},
      {"only among others",
       [](auto& d, auto, auto, std::span<float> y) {
         if (d.pairs.size() > 1) y[0] += 1;
       }},
  };
  for (const auto& [name, spoil] : evils) {
    SCOPED_TRACE(name);
    swarm_.reset();
    workers_.clear();
    log_.all.clear();
    Make();
    FakeWorker& worker = Add("evil", {{0, "0:16"}, {1, "0:16"}});
    worker.expert = [this, &spoil](const DispatchMessage& dispatch, std::size_t i, std::span<const float> row,
                                   std::span<float> y) {
      Honest(dispatch.layer, ExpertId(dispatch.pairs[i].expert), row, y);
      spoil(dispatch, i, row, y);
    };
    Run();
    EXPECT_TRUE(worker.closed);
    EXPECT_EQ(swarm_->CoveredSlices(), 0u);
    const NodeCheck check = CheckOf("evil");
    EXPECT_EQ(check.state, "refused");
    EXPECT_THAT(check.refusal, HasSubstr("expert"));
    EXPECT_THAT(check.refusal, HasSubstr("NMSE"));
    EXPECT_THAT(check.refusal, HasSubstr(kCpu));
    EXPECT_THAT(log_.all, HasSubstr("evil is cut off"));

    Add("evil", {{0, "0:16"}});  // the same node dials again
    Run();
    EXPECT_TRUE(workers_.back().closed);
    EXPECT_EQ(swarm_->CoveredSlices(), 0u);
  }
}

TEST_F(AuditorTest, ALiveResultThatIsWrongCutsItsWorkerOff) {
  Make({.spot_share = 1}, {.cpu_share = 1});
  bool evil = false;
  FakeWorker& worker = Add("turncoat", {{0, "0:16"}});
  worker.expert = [&](const DispatchMessage& dispatch, std::size_t i, std::span<const float> row, std::span<float> y) {
    Honest(dispatch.layer, ExpertId(dispatch.pairs[i].expert), row, y);
    if (evil) y[0] += 0.5f;
  };
  Run();
  ASSERT_TRUE(Compute({1, 2, 3}).has_value());
  Run();
  EXPECT_EQ(CheckOf("turncoat").spot_checks, 3u);
  EXPECT_EQ(CheckOf("turncoat").state, "admitted");
  evil = true;
  ASSERT_TRUE(Compute({4, 9}).has_value());
  Run();
  EXPECT_TRUE(worker.closed);
  EXPECT_EQ(CheckOf("turncoat").state, "refused");
  EXPECT_THAT(CheckOf("turncoat").refusal, HasSubstr("spot check"));
  EXPECT_THAT(log_.all, HasSubstr("last results in use: "));
  EXPECT_THAT(log_.all, HasSubstr("layer 0 experts 4,9"));
}

TEST_F(AuditorTest, AnotherHolderOfTheSameClassSparesTheOracle) {
  Make({.spot_share = 1}, {.cpu_share = 0});  // no time to judge anything here
  Add("a", {{0, "0:16"}});
  Add("b", {{0, "0:16"}});
  Run();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Compute({1, 2, 3, 4}).has_value());
    Run(milliseconds(2));
  }
  Run();
  EXPECT_EQ(CheckOf("a").spot_checks + CheckOf("b").spot_checks, 80u);
  EXPECT_EQ(CheckOf("a").skipped + CheckOf("b").skipped, 0u);
}

TEST_F(AuditorTest, OfTwoThatDisagreeTheWrongOneGoes) {
  Make({.spot_share = 1}, {.cpu_share = 1});
  bool evil = false;
  FakeWorker& bad = Add("bad", {{0, "0:16"}});
  bad.expert = [&](const DispatchMessage& dispatch, std::size_t i, std::span<const float> row, std::span<float> y) {
    Honest(dispatch.layer, ExpertId(dispatch.pairs[i].expert), row, y);
    if (evil) y[1] *= 3;
  };
  Add("good", {{0, "0:16"}});
  Run();
  const std::uint64_t canaries = CheckOf("good").canaries;
  evil = true;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Compute({1, 2, 3, 4}).has_value());
  Run();
  EXPECT_EQ(CheckOf("bad").state, "refused");
  EXPECT_EQ(CheckOf("good").state, "admitted");
  EXPECT_GT(CheckOf("good").spot_checks, 0u);         // its second opinions were judged as what they are
  EXPECT_LE(CheckOf("good").canaries, canaries + 1);  // at most one over time
}

TEST_F(AuditorTest, WithoutTimeSamplesAreCountedAsSkipped) {
  Make({.spot_share = 1}, {.cpu_share = 0});
  Add("w", {{0, "0:16"}});
  Run();
  for (int i = 0; i < 70; ++i) {
    ASSERT_TRUE(Compute({0, 1, 2, 3, 4, 5, 6, 7}).has_value());
    Run(milliseconds(2));
  }
  EXPECT_EQ(CheckOf("w").spot_checks, 0u);
  EXPECT_EQ(CheckOf("w").skipped, 560u - 256u);
}

TEST_F(AuditorTest, SecondOpinionsThatDoNotComeDoNotPileUp) {
  Make({.spot_share = 1}, {.cpu_share = 0});
  Add("a", {{0, "0:16"}});
  FakeWorker& busy = Add("b", {{0, "0:16"}});
  Run();
  busy.mood = [] { return FakeWorker::Mood::kBusy; };
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Compute({1, 2, 3, 4}).has_value());
    Run(milliseconds(2));
  }
  Run();
  EXPECT_EQ(CheckOf("a").skipped, 400u - 256u);
  EXPECT_EQ(CheckOf("b").state, "admitted");
}

TEST_F(AuditorTest, ARefusalOfWhatAWorkerHoldsNoMoreClosesNothing) {
  Make();
  FakeWorker& worker = Add("w", {{2, "0:16"}});
  worker.mood = [] { return FakeWorker::Mood::kRefuses; };
  worker.hold_back = true;
  Run();
  worker.Hold({{2, "0:8"}});
  Run();
  worker.Release();  // the refusals of questions from before
  worker.hold_back = false;
  worker.mood = [] { return FakeWorker::Mood::kHonest; };
  Run(seconds(1));
  EXPECT_EQ(swarm_->CoveredSlices(), 8u);
}

TEST_F(AuditorTest, ASilentWorkerHoldsNobodyUpAndIsCutOffByTheDeadline) {
  Make({.deadline = milliseconds(500)});
  FakeWorker& silent = Add("silent", {{0, "0:16"}});
  silent.hold_back = true;
  Add("good", {{1, "0:16"}});
  Run();
  EXPECT_EQ(swarm_->CoveredSlices(), 16u);
  EXPECT_EQ(CheckOf("good").state, "admitted");
  Run(milliseconds(600));
  swarm_->Tick();
  Run();
  EXPECT_TRUE(silent.closed);
}

TEST_F(AuditorTest, BusyIsAskedAgainRefusedClosesTheLayerUntilItsHoldingsChange) {
  Make();
  FakeWorker& worker = Add("w", {{0, "0:16"}, {1, "0:16"}});
  int n = 0;
  worker.mood = [&] { return n++ < 3 ? FakeWorker::Mood::kBusy : FakeWorker::Mood::kHonest; };
  Run(seconds(3));
  EXPECT_EQ(CheckOf("w").state, "admitted");
  EXPECT_EQ(swarm_->CoveredSlices(), 32u);

  FakeWorker& refuses = Add("r", {{2, "0:16"}});
  refuses.mood = [] { return FakeWorker::Mood::kRefuses; };
  Run(seconds(1));
  const std::size_t asked = refuses.dispatches.size();
  EXPECT_THAT(log_.all, HasSubstr("worker r is not asked for layer 2: it says: refused: do not hold this"));
  Run(seconds(1));
  EXPECT_EQ(refuses.dispatches.size(), asked);
  EXPECT_EQ(swarm_->CoveredSlices(), 32u);
  refuses.mood = [] { return FakeWorker::Mood::kHonest; };
  refuses.Hold({{2, "0:16"}});
  Run();
  EXPECT_EQ(swarm_->CoveredSlices(), 48u);
}

TEST_F(AuditorTest, LayersAndExpertsThatDoNotExistAreNotAskedFor) {
  Make();
  FakeWorker& worker = Add("w", {{0, "0:17"}, {99, "0:4"}, {1, "0:2"}});
  Run();
  EXPECT_EQ(swarm_->CoveredSlices(), 2u);
  EXPECT_FALSE(worker.closed);
  EXPECT_THAT(log_.all, HasSubstr("it claims expert 16 of 16"));
}

TEST_F(AuditorTest, AWorkerWithAnotherGgmlIsNamedAndJudgedLikeAnyOther) {
  Make({}, {.ggml = "ggml-0.27.0"});
  Add("same", {{0, "0:16"}});
  Add("other", {{0, "0:16"}}, "ggml-0.28.1/CPU/test/0/libc");
  Run();
  EXPECT_THAT(log_.all, HasSubstr("worker other computes with ggml-0.28.1, this backbone has ggml-0.27.0"));
  EXPECT_THAT(log_.all, ::testing::Not(HasSubstr("worker same computes with")));
  EXPECT_EQ(CheckOf("other").state, "admitted");
}

TEST_F(AuditorTest, EveryExpertIsJudgedOverTime) {
  Make({}, {.cpu_share = 1});
  Add("w", {{0, "0:16"}, {1, "0:16"}});
  Run();
  EXPECT_EQ(CheckOf("w").slices, 2u);
  Run(seconds(200));
  EXPECT_EQ(CheckOf("w").slices, 32u);
}

TEST_F(AuditorTest, AGpuMayRoundAsGpusDoAndACpuMayNot) {
  const KernelModel& f16 = KernelModels(true)[2];
  const auto half_rows = [&](const DispatchMessage& dispatch, std::size_t i, std::span<const float> row,
                             std::span<float> y) {
    const LayerPlan& plan = plans_.at(dispatch.layer.value);
    const auto expert = LoadOracleExpert(model_, plan, dispatch.pairs[i].expert).value();
    const auto result = BoundExpert(plan.recipe, expert, row, f16).value();
    std::ranges::transform(result.replayed, y.begin(), [](double value) { return static_cast<float>(value); });
  };
  Make();
  Add("gpu", {{0, "0:16"}}, "ggml-0.27.0/Vulkan/some GPU/driver").expert = half_rows;
  Add("cpu", {{0, "0:16"}}).expert = half_rows;  // not what its kind of kernel does, so something is wrong with it
  Run();
  EXPECT_EQ(CheckOf("gpu").state, "admitted");
  EXPECT_EQ(CheckOf("cpu").state, "refused");
}

}  // namespace
}  // namespace linkcpp
