#include "swarm/swarm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <limits>

#include "swarm/test_link.h"
#include "swarm/test_worker.h"

namespace linkcpp {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Mood = FakeWorker::Mood;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kIn = 32;
constexpr std::uint32_t kOut = 8;

class SwarmTest : public ::testing::Test {
 protected:
  void Make(SwarmOptions options = {}, bool with_local = true) {
    options.pump = [this](TimePoint until) { net.Pump(until); };
    swarm = Swarm::Create(options, with_local ? &local : nullptr, net.clock(), log);
  }

  FakeWorker& Add(const std::string& name, std::vector<LayerHoldings> ready, TestNet::Script script = {}) {
    auto [near, far] = net.MakePair(script, name);
    workers.emplace_back(net, std::move(far), kOut);
    swarm->AddWorker(name, "test", std::move(near));
    workers.back().Hold(std::move(ready));
    net.RunFor(milliseconds(5));
    return workers.back();
  }

  // Some rows, every one with every expert of the list.
  Result<void> Ask(const std::vector<std::uint16_t>& experts, std::uint32_t n_rows = 1, LayerId layer = LayerId(0)) {
    x.resize(n_rows * kIn);
    for (float& value : x) value = static_cast<float>(net.rng().Uniform());
    pairs.clear();
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      for (const std::uint16_t expert : experts) pairs.push_back({row, ExpertId(expert)});
    }
    y.assign(pairs.size() * kOut, std::numeric_limits<float>::quiet_NaN());
    auto done = swarm->Compute(layer, Recipe::Swiglu(), x, kIn, pairs, y, kOut);
    if (done.has_value()) ExpectAllRight(layer);
    return done;
  }

  void ExpectAllRight(LayerId layer) {
    std::vector<float> expected(kOut);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      FakeExpert(layer, pairs[i].expert, std::span(x).subspan(pairs[i].row * kIn, kIn), expected);
      ASSERT_TRUE(std::ranges::equal(std::span(y).subspan(i * kOut, kOut), expected)) << "pair " << i;
    }
  }

  const LinkReport& Figures(const std::string& name) {
    report = swarm->Report();
    const auto found = std::ranges::find(report.links, name, &LinkReport::node_id);
    EXPECT_NE(found, report.links.end());
    return *found;
  }

  TestNet net{1};
  NullLog log;
  FakeLocal local;
  std::deque<FakeWorker> workers;
  std::unique_ptr<Swarm> swarm;
  std::vector<float> x, y;
  std::vector<Pair> pairs;
  BackboneReport report;
};

TEST_F(SwarmTest, OneFrameAWorkerAndOneRoundTripALayer) {
  Make();
  FakeWorker& even = Add("even", {{0, "0,2,4,6"}});
  FakeWorker& odd = Add("odd", {{0, "1,3,5,7"}});
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Ask({0, 1, 2, 3, 4, 5, 6, 7}).has_value());
  EXPECT_THAT(even.dispatches, SizeIs(10));
  EXPECT_THAT(odd.dispatches, SizeIs(10));
  report = swarm->Report();
  EXPECT_EQ(report.dispatches, 10u);
  EXPECT_EQ(report.round_trips, 10u);
  EXPECT_EQ(report.pairs, 80u);
  EXPECT_EQ(report.pairs_local, 0u);
  EXPECT_EQ(report.pairs_retried, 0u);
  ASSERT_THAT(report.heat, SizeIs(1));
  EXPECT_EQ(report.heat[0].pairs_by_expert, std::vector<std::uint64_t>(8, 10));
  EXPECT_GT(Figures("even").rtt_us_mean, 90);  // 50 µs each way
  EXPECT_GT(Figures("even").bytes_sent, 10u * kIn * 4);
}

TEST_F(SwarmTest, AWorkerGetsOnlyTheRowsItNeedsEachOnce) {
  Make();
  FakeWorker& worker = Add("a", {{0, "0,1"}});
  x.assign(5 * kIn, 0);
  for (float& value : x) value = static_cast<float>(net.rng().Uniform());
  pairs = {{4, ExpertId(0)}, {1, ExpertId(1)}, {4, ExpertId(1)}, {2, ExpertId(9)}};
  y.assign(pairs.size() * kOut, 0);
  ASSERT_TRUE(swarm->Compute(LayerId(0), Recipe::Swiglu(), x, kIn, pairs, y, kOut).has_value());
  ExpectAllRight(LayerId(0));
  ASSERT_THAT(worker.dispatches, SizeIs(1));
  EXPECT_EQ(worker.dispatches[0].n_rows, 2u);
  EXPECT_THAT(worker.dispatches[0].pairs, SizeIs(3));
  EXPECT_EQ(swarm->Report().pairs_local, 1u);  // expert 9
}

TEST_F(SwarmTest, BigLayersAreSplitIntoFramesOfOneWave) {
  SwarmOptions options;
  options.max_pairs_per_frame = 100;
  Make(options);
  FakeWorker& worker = Add("a", {{0, "0:8"}});
  ASSERT_TRUE(Ask({0, 1, 2, 3, 4, 5, 6, 7}, 64).has_value());
  EXPECT_THAT(worker.dispatches, SizeIs(8));  // 64 pairs of each expert: none is cut
  EXPECT_EQ(swarm->Report().round_trips, 1u);
}

TEST_F(SwarmTest, NobodyHoldsItAndLocalIsOff) {
  SwarmOptions options;
  options.allow_local = false;
  Make(options);
  Add("a", {{0, "0:4"}});
  const auto done = Ask({0, 1, 7}, 1, LayerId(0));
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, FaultCode::kGone);
  EXPECT_THAT(done.error().text, HasSubstr("layer 0, expert 7: no worker holds it"));
  EXPECT_EQ(swarm->Report().failed, 1u);
  EXPECT_TRUE(Ask({0, 1, 2}).has_value());  // and the next one is served
}

TEST_F(SwarmTest, ALocalFaultIsTheAnswer) {
  Make();
  local.fail = true;
  Add("a", {{0, "0:4"}});
  const auto done = Ask({0, 7});
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, FaultCode::kLocal);
  EXPECT_THAT(done.error().text, HasSubstr("the disk is gone"));
}

TEST_F(SwarmTest, WrongSizesAreRefused) {
  Make();
  const std::vector<float> rows(kIn);
  std::vector<float> out(kOut);
  const std::vector<Pair> far = {{1, ExpertId(0)}};
  EXPECT_FALSE(swarm->Compute(LayerId(0), Recipe::Swiglu(), rows, kIn, far, out, kOut).has_value());
  EXPECT_FALSE(swarm->Compute(LayerId(0), Recipe::Swiglu(), rows, 0, {}, {}, kOut).has_value());
  EXPECT_FALSE(swarm->Compute(LayerId(0), Recipe::Swiglu(), rows, kIn, {}, out, kOut).has_value());
  EXPECT_TRUE(swarm->Compute(LayerId(0), Recipe::Swiglu(), {}, kIn, {}, {}, kOut).has_value());
}

TEST_F(SwarmTest, AKilledWorkersPairsGoToAnotherHolderAtOnce) {
  Make({}, false);
  FakeWorker& a = Add("a", {{0, "0:8"}});
  FakeWorker& b = Add("b", {{0, "0:8"}});
  bool first = true;  // whoever answers first dies
  a.mood = b.mood = [&] { return std::exchange(first, false) ? Mood::kDies : Mood::kHonest; };
  const TimePoint before = net.clock().Now();
  ASSERT_TRUE(Ask({0, 1, 2, 3, 4, 5, 6, 7}).has_value());
  EXPECT_LT(net.clock().Now() - before, milliseconds(5));
  report = swarm->Report();
  EXPECT_EQ(report.round_trips, 2u);
  EXPECT_GT(report.pairs_retried, 0u);
}

TEST_F(SwarmTest, ASilentWorkerIsHedgedThenCutOff) {
  Make({}, false);
  FakeWorker& a = Add("a", {{0, "0:8"}});
  FakeWorker& b = Add("b", {{0, "0:8"}});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Ask({0, 1, 2, 3, 4, 5, 6, 7}).has_value());
  FakeWorker& busier = a.dispatches.size() >= b.dispatches.size() ? a : b;
  FakeWorker& other = &busier == &a ? b : a;
  busier.mood = [] { return Mood::kStalls; };
  const TimePoint before = net.clock().Now();
  ASSERT_TRUE(Ask({0, 1, 2, 3, 4, 5, 6, 7}).has_value());
  const auto took = net.clock().Now() - before;
  EXPECT_GE(took, milliseconds(50));
  EXPECT_LT(took, milliseconds(60));
  EXPECT_FALSE(busier.closed);
  EXPECT_EQ(swarm->Report().round_trips, 22u);
  ASSERT_TRUE(Ask({0, 1, 2, 3}).has_value());  // it is still late: the other one is asked first
  EXPECT_EQ(swarm->Report().round_trips, 23u);
  net.RunFor(seconds(10));
  swarm->Tick();
  net.RunFor(milliseconds(1));
  EXPECT_TRUE(busier.closed);
  EXPECT_THAT(busier.closed_because, HasSubstr("no answer to dispatch"));
  EXPECT_FALSE(other.closed);
}

TEST_F(SwarmTest, ASilentOnlyHolderIsReplacedByLocal) {
  Make();
  FakeWorker& a = Add("a", {{0, "0:8"}});
  a.mood = [] { return Mood::kStalls; };
  const TimePoint before = net.clock().Now();
  ASSERT_TRUE(Ask({0, 1}).has_value());
  EXPECT_LE(net.clock().Now() - before, seconds(6));  // no figures of it yet: patient
  EXPECT_EQ(swarm->Report().pairs_local, 2u);
  const TimePoint then = net.clock().Now();
  ASSERT_TRUE(Ask({0, 1}).has_value());
  EXPECT_LT(net.clock().Now() - then, milliseconds(1));  // not asked again while it is stuck
}

TEST_F(SwarmTest, ASilentOnlyHolderWithoutLocalFailsAtTheDeadline) {
  Make({}, false);
  FakeWorker& a = Add("a", {{0, "0:8"}});
  a.mood = [] { return Mood::kStalls; };
  const TimePoint before = net.clock().Now();
  const auto done = Ask({3});
  ASSERT_FALSE(done.has_value());
  EXPECT_THAT(done.error().text, HasSubstr("layer 0, expert 3"));
  EXPECT_THAT(done.error().text, HasSubstr("worker a"));
  EXPECT_LE(net.clock().Now() - before, seconds(10) + milliseconds(1));
  net.RunFor(milliseconds(1));
  EXPECT_TRUE(a.closed);
}

TEST_F(SwarmTest, ABusyOnlyHolderIsAskedAgain) {
  Make({}, false);
  FakeWorker& a = Add("a", {{0, "0:8"}});
  a.mood = [n = 0]() mutable { return n++ < 3 ? Mood::kBusy : Mood::kHonest; };
  ASSERT_TRUE(Ask({3, 4}).has_value());
  EXPECT_THAT(a.dispatches, SizeIs(4));
}

TEST_F(SwarmTest, AHolderThatStaysBusyFailsTheCall) {
  Make({}, false);
  Add("a", {{0, "0:8"}}).mood = [] { return Mood::kBusy; };
  const TimePoint before = net.clock().Now();
  const auto done = Ask({3});
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, FaultCode::kBusy);
  EXPECT_LE(net.clock().Now() - before, seconds(21));
}

TEST_F(SwarmTest, ARefusalDropsThatHoldingOnly) {
  Make();
  FakeWorker& a = Add("a", {{0, "0:8"}});
  EXPECT_EQ(swarm->CoveredSlices(), 8u);
  a.mood = [first = true]() mutable { return std::exchange(first, false) ? Mood::kRefuses : Mood::kHonest; };
  ASSERT_TRUE(Ask({3}).has_value());
  EXPECT_EQ(swarm->CoveredSlices(), 7u);
  EXPECT_EQ(swarm->Report().pairs_local, 1u);
  ASSERT_TRUE(Ask({3, 4}).has_value());
  EXPECT_EQ(swarm->Report().pairs_local, 2u);
  EXPECT_FALSE(a.closed);
  a.Hold({{0, "0:8"}});
  net.RunFor(milliseconds(1));
  EXPECT_EQ(swarm->CoveredSlices(), 8u);
}

TEST_F(SwarmTest, OfARefusedFrameOnlyTheExpertThatIsMissingIsDropped) {
  Make();
  FakeWorker& a = Add("a", {{0, "0:8"}});
  a.mood = [&] {  // it has just dropped expert 3
    const auto& asked = a.dispatches[a.n_answered].pairs;
    return std::ranges::contains(asked, 3, &PairMessage::expert) ? Mood::kRefuses : Mood::kHonest;
  };
  ASSERT_TRUE(Ask({0, 1, 2, 3, 4}).has_value());
  EXPECT_EQ(swarm->Report().pairs_local, 5u);
  ASSERT_TRUE(Ask({0, 1, 2, 3, 4}).has_value());  // one frame each
  EXPECT_EQ(swarm->Report().pairs_local, 6u);
  EXPECT_EQ(swarm->CoveredSlices(), 7u);
  ASSERT_TRUE(Ask({0, 1, 2, 3, 4}).has_value());
  EXPECT_EQ(swarm->Report().pairs_local, 7u);
  EXPECT_THAT(a.dispatches, SizeIs(7));
  EXPECT_FALSE(a.closed);
}

TEST_F(SwarmTest, AFailingWorkerIsGivenUpAfterAWhile) {
  Make();
  FakeWorker& a = Add("a", {{0, "0:8"}});
  a.mood = [] { return Mood::kFails; };
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Ask({3}).has_value());
  net.RunFor(milliseconds(1));
  EXPECT_TRUE(a.closed);
  EXPECT_EQ(Figures("a").faults, 8u);
}

TEST_F(SwarmTest, GoodbyeMeansNoMoreButTheRestIsAnswered) {
  Make({}, false);
  FakeWorker& a = Add("a", {{0, "0:8"}});
  a.compute = milliseconds(2);
  net.After(milliseconds(1), [&] { a.Say(GoodbyeMessage{"SIGTERM"}); });
  ASSERT_TRUE(Ask({0, 1}).has_value());
  EXPECT_EQ(swarm->CoveredSlices(), 0u);
  EXPECT_FALSE(a.closed);
  EXPECT_FALSE(Ask({0, 1}).has_value());
  a.Hold({{0, "0:8"}});  // a last statement on its way does not bring it back
  net.RunFor(milliseconds(1));
  EXPECT_EQ(swarm->CoveredSlices(), 0u);
}

TEST_F(SwarmTest, ASecondLinkOfANodeReplacesTheFirst) {
  Make({}, false);
  FakeWorker& first = Add("a", {{0, "0:8"}});
  FakeWorker& second = Add("a", {{0, "0:4"}});
  EXPECT_TRUE(first.closed);
  EXPECT_EQ(swarm->CoveredSlices(), 4u);
  ASSERT_TRUE(Ask({0, 1}).has_value());
  EXPECT_THAT(second.dispatches, SizeIs(1));
  EXPECT_THAT(swarm->Report().links, SizeIs(1));
}

TEST_F(SwarmTest, IdleLinksArePingedAndDeadOnesClosed) {
  Make();
  FakeWorker& well = Add("well", {{0, "0"}});
  FakeWorker& dead = Add("dead", {{0, "1"}});
  dead.answers_pings = false;
  for (int i = 0; i < 20; ++i) {
    net.RunFor(seconds(1));
    swarm->Tick();
  }
  net.RunFor(milliseconds(1));
  EXPECT_FALSE(well.closed);
  EXPECT_TRUE(dead.closed);
  EXPECT_EQ(swarm->CoveredSlices(), 1u);
}

TEST_F(SwarmTest, OtherRowTypesTravelToo) {
  SwarmOptions options;
  options.row_type = RowType::kF16;
  options.reply_type = RowType::kF32;
  Make(options, false);
  FakeWorker& a = Add("a", {{0, "0:8"}});
  x.assign(kIn, 0.5f);  // exact in f16
  pairs = {{0, ExpertId(3)}};
  y.assign(kOut, 0);
  ASSERT_TRUE(swarm->Compute(LayerId(0), Recipe::Swiglu(), x, kIn, pairs, y, kOut).has_value());
  ExpectAllRight(LayerId(0));
  EXPECT_EQ(a.dispatches[0].row_type, RowType::kF16);
}

// ---------------------------------------------------------------- workers that lie

class HostileTest : public SwarmTest, public ::testing::WithParamInterface<Mood> {};

TEST_P(HostileTest, IsClosedAndTheRowsAreRight) {
  Make();
  FakeWorker& bad = Add("bad", {{0, "0:8"}});
  ASSERT_TRUE(Ask({0, 1, 2}).has_value());
  bad.mood = [] { return GetParam(); };
  ASSERT_TRUE(Ask({0, 1, 2}).has_value());
  net.RunFor(milliseconds(1));
  EXPECT_TRUE(bad.closed) << bad.closed_because;
  EXPECT_EQ(swarm->CoveredSlices(), 0u);
  swarm->Tick();
  ASSERT_TRUE(Ask({0, 1, 2}).has_value());
  // Nobody but us computed these, but where a right answer came first.
  EXPECT_EQ(swarm->Report().pairs_local, GetParam() == Mood::kAnswersTwice ? 3u : 6u);
}

INSTANTIATE_TEST_SUITE_P(Moods, HostileTest,
                         ::testing::Values(Mood::kTooFewPairs, Mood::kTooManyPairs, Mood::kWrongRowLen,
                                           Mood::kWrongType, Mood::kAnswersTwice, Mood::kUnknownId, Mood::kRandomBytes,
                                           Mood::kFaultForUnknown, Mood::kEmptyPayload));

TEST_F(SwarmTest, ALateAnswerOfAnEarlierCallIsIgnored) {
  Make();
  FakeWorker& slow = Add("slow", {{0, "0:8"}});
  slow.hold_back = true;
  ASSERT_TRUE(Ask({0, 1}).has_value());  // computed here at last
  slow.hold_back = false;
  slow.Release();
  net.RunFor(milliseconds(1));
  EXPECT_FALSE(slow.closed);
  ASSERT_TRUE(Ask({2, 3}).has_value());
  EXPECT_EQ(swarm->Report().pairs_local, 2u);
}

TEST_F(SwarmTest, MessagesThatOnlyABackboneSendsCloseTheLink) {
  Make();
  for (const Message& message :
       {Message(WelcomeMessage{"b", 1}), Message(HelloMessage{}), Message(HoldingsMessage{{{0, "no ranges"}}}),
        Message(FaultMessage{0, FaultCode::kLocal, "x"})}) {
    FakeWorker& bad = Add("bad" + std::to_string(workers.size()), {{0, "0"}});
    bad.Say(message);
    net.RunFor(milliseconds(1));
    EXPECT_TRUE(bad.closed);
  }
  EXPECT_EQ(swarm->CoveredSlices(), 0u);
}

}  // namespace
}  // namespace linkcpp
