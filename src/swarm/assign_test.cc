#include "swarm/assign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "swarm/link_cost.h"

namespace linkcpp {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

PairGroup Group(std::uint16_t expert, std::vector<std::uint32_t> pairs, std::vector<WorkerNumber> candidates) {
  return {ExpertId(expert), std::move(pairs), std::move(candidates)};
}

// Round trip and time per pair, by worker.
struct Figures {
  std::map<WorkerNumber, std::pair<double, double>> by_worker;
  double operator()(WorkerNumber worker, std::uint32_t n) const {
    const auto& [base, per_pair] = by_worker.at(worker);
    return base + per_pair * n;
  }
};

std::vector<PairGroup> Decode(const std::vector<WorkerNumber>& candidates) {
  std::vector<PairGroup> groups;
  for (std::uint16_t i = 0; i < 8; ++i) groups.push_back(Group(i, {i}, candidates));
  return groups;
}

TEST(AssignTest, SlowExpertsAreSharedByEqualWorkers) {
  const auto chosen = AssignPairs(Decode({1, 2}), Figures{{{1, {300, 500}}, {2, {300, 500}}}}, 30);
  ASSERT_THAT(chosen, SizeIs(2));
  EXPECT_THAT(chosen[0].pairs, SizeIs(4));
  EXPECT_THAT(chosen[1].pairs, SizeIs(4));
}

TEST(AssignTest, QuickExpertsGoInOneFrame) {
  const auto chosen = AssignPairs(Decode({1, 2}), Figures{{{1, {300, 2}}, {2, {300, 2}}}}, 30);
  ASSERT_THAT(chosen, SizeIs(1));
  EXPECT_EQ(chosen[0].worker, 1u);
}

TEST(AssignTest, AFarWorkerGetsNothingWhileTheNearOneIsQuicker) {
  const auto chosen = AssignPairs(Decode({1, 2}), Figures{{{1, {50'000, 100}}, {2, {300, 100}}}}, 30);
  ASSERT_THAT(chosen, SizeIs(1));
  EXPECT_EQ(chosen[0].worker, 2u);
}

TEST(AssignTest, ASlowWorkerGetsASmallerShare) {
  const auto chosen = AssignPairs(Decode({1, 2}), Figures{{{1, {300, 300}}, {2, {300, 900}}}}, 30);
  ASSERT_THAT(chosen, SizeIs(2));
  EXPECT_THAT(chosen[0].pairs, SizeIs(6));
  EXPECT_THAT(chosen[1].pairs, SizeIs(2));
}

TEST(AssignTest, OnlyHoldersAreAsked) {
  const auto chosen = AssignPairs({Group(0, {0}, {2}), Group(1, {1}, {1, 2}), Group(2, {2}, {3})},
                                  Figures{{{1, {300, 100}}, {2, {300, 100}}, {3, {9'000, 100}}}}, 30);
  ASSERT_THAT(chosen, SizeIs(2));
  EXPECT_THAT(chosen[0].pairs, ElementsAre(0, 1));  // 2 is asked anyway: its frame takes one more
  EXPECT_EQ(chosen[1].worker, 3u);
}

TEST(AssignTest, AManyTimesWantedExpertIsSplitAmongItsHolders) {
  std::vector<std::uint32_t> all(512);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  const auto chosen = AssignPairs({Group(0, all, {1, 2})}, Figures{{{1, {300, 20}}, {2, {300, 20}}}}, 30);
  ASSERT_THAT(chosen, SizeIs(2));
  EXPECT_THAT(chosen[0].pairs, SizeIs(256));
  EXPECT_THAT(chosen[1].pairs, SizeIs(256));
}

TEST(LinkCostTest, LearnsRoundTripAndTimePerPair) {
  LinkCost cost;
  const TimePoint now{std::chrono::hours(1)};
  EXPECT_FALSE(cost.measured());
  for (int i = 0; i < 100; ++i) cost.Observe(8, 1'000, 800, now);
  EXPECT_NEAR(cost.ExpectedUs(8, now), 1'000, 1);
  EXPECT_NEAR(cost.ExpectedUs(4, now), 600, 1);
  EXPECT_NEAR(cost.mean_us(), 1'000, 1);
  for (int i = 0; i < 100; ++i) cost.Observe(1'000, 5'200, 3'000, now);
  EXPECT_NEAR(cost.ExpectedUs(1'000, now), 5'200, 1);
  EXPECT_NEAR(cost.ExpectedUs(8, now), 1'000, 1);  // unchanged
  EXPECT_NEAR(cost.max_us(), 5'200, 1);
}

TEST(LinkCostTest, ALieAboutComputingTimeIsLimitedByTheClock) {
  LinkCost cost;
  const TimePoint now{std::chrono::hours(1)};
  cost.Observe(1, 1'000, 4e9, now);
  EXPECT_NEAR(cost.ExpectedUs(1, now), 1'000, 1);
}

TEST(LinkCostTest, ASlowWorkerIsTriedAgainAfterAWhile) {
  LinkCost cost;
  const TimePoint now{std::chrono::hours(1)};
  for (int i = 0; i < 100; ++i) cost.Observe(8, 200'000, 1'000, now);
  EXPECT_GT(cost.ExpectedUs(8, now), 190'000);
  EXPECT_LT(cost.ExpectedUs(8, now + std::chrono::minutes(3)), 2'000);
}

// ggml's bits change at kManyPairs rows of an expert, so no cut may move an expert to the other side.
TEST(CutIntoFrames, NeverMovesAnExpertAcrossManyPairs) {
  Rng rng(5);
  for (int round = 0; round < 500; ++round) {
    const std::size_t n_pairs = 1 + rng.Below(300);
    std::vector<std::uint16_t> experts(n_pairs);
    for (auto& expert : experts) expert = static_cast<std::uint16_t>(rng.Below(1 + rng.Below(20)));
    std::map<std::uint16_t, std::size_t> whole;
    std::vector<std::uint32_t> pairs(n_pairs);
    for (std::uint32_t i = 0; i < n_pairs; ++i) {
      pairs[i] = i;
      ++whole[experts[i]];
    }
    const std::size_t most = 1 + rng.Below(100);
    std::vector<int> seen(n_pairs);
    for (const auto& frame :
         CutIntoFrames(pairs, [&](std::uint32_t i) { return ExpertId(experts[i]); }, most, rng.Below(2) == 0)) {
      EXPECT_LT(frame.size(), std::max(most, kManyPairs) + kManyPairs);
      std::map<std::uint16_t, std::size_t> here;
      for (const std::uint32_t pair : frame) {
        ++seen[pair];
        ++here[experts[pair]];
      }
      for (const auto& [expert, count] : here) EXPECT_EQ(count >= kManyPairs, whole[expert] >= kManyPairs);
    }
    EXPECT_TRUE(std::ranges::all_of(seen, [](int count) { return count == 1; }));
  }
}

TEST(AssignPairs, CutsABigGroupIntoLargePieces) {
  for (std::uint32_t n = 1; n < 300; ++n) {
    PairGroup group{ExpertId(3), {}, {1, 2, 3}};
    for (std::uint32_t i = 0; i < n; ++i) group.pairs.push_back(i);
    std::size_t total = 0;
    for (const Assignment& part :
         AssignPairs({group}, [](WorkerNumber, std::uint32_t pairs) { return 1.0 * pairs; }, 0)) {
      total += part.pairs.size();
      EXPECT_EQ(part.pairs.size() >= kManyPairs, n >= kManyPairs) << n;
    }
    EXPECT_EQ(total, n);
  }
}

}  // namespace
}  // namespace linkcpp
