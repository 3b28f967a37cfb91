#include "kernel/arrange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"

namespace linkcpp {
namespace {

std::vector<SlotPair> Pairs(std::initializer_list<std::pair<std::uint32_t, std::uint32_t>> list) {
  std::vector<SlotPair> pairs;
  for (const auto& [row, slot] : list) pairs.push_back({row, slot});
  return pairs;
}

TEST(Arrange, DecodeSharesTheRow) {
  ArrangeScratch scratch;
  const Arrangement arrangement = Arrange(Pairs({{0, 5}, {0, 1}, {0, 9}}), true, scratch);
  EXPECT_EQ(arrangement, (Arrangement{.used = 3, .tokens = 1, .shared_rows = true}));
}

TEST(Arrange, AsManyPairsForEachRowShareRows) {
  ArrangeScratch scratch;
  EXPECT_EQ(Arrange(Pairs({{4, 0}, {4, 1}, {5, 1}, {5, 2}}), true, scratch),
            (Arrangement{.used = 2, .tokens = 2, .shared_rows = true}));
}

TEST(Arrange, RowsThatSkipOrRepeatAreCopied) {
  ArrangeScratch scratch;
  EXPECT_FALSE(Arrange(Pairs({{0, 0}, {2, 1}}), true, scratch).shared_rows);
  EXPECT_FALSE(Arrange(Pairs({{1, 0}, {0, 1}}), true, scratch).shared_rows);
  EXPECT_FALSE(Arrange(Pairs({{0, 0}, {0, 1}, {1, 2}}), true, scratch).shared_rows);
}

TEST(Arrange, DistinctSlotsAreOneToken) {
  ArrangeScratch scratch;
  EXPECT_EQ(Arrange(Pairs({{0, 0}, {0, 1}, {1, 2}}), true, scratch), (Arrangement{.used = 3, .tokens = 1}));
  EXPECT_EQ(Arrange(Pairs({{0, 5}, {0, 1}}), false, scratch), (Arrangement{.used = 2, .tokens = 1}));
}

TEST(Arrange, ASlotNeverRepeatsWithinAToken) {  // ggml's repacked kernels would write past their tables
  Rng rng(1);
  ArrangeScratch scratch;
  for (int round = 0; round < 3000; ++round) {
    std::vector<SlotPair> pairs(1 + rng.Below(12));
    for (SlotPair& pair : pairs) {
      pair = {static_cast<std::uint32_t>(rng.Below(4)), static_cast<std::uint32_t>(rng.Below(6))};
    }
    if (rng.Below(2) == 0) std::ranges::stable_sort(pairs, {}, &SlotPair::row);
    const Arrangement arrangement = Arrange(pairs, rng.Below(2) == 0, scratch);
    ASSERT_EQ(arrangement.n_pairs(), static_cast<std::int64_t>(pairs.size()));
    const auto used = static_cast<std::size_t>(arrangement.used);
    for (std::size_t token = 0; token * used < pairs.size(); ++token) {
      std::map<std::uint32_t, int> seen;
      for (std::size_t i = token * used; i < (token + 1) * used; ++i) {
        EXPECT_EQ(++seen[pairs[i].slot], 1);
        if (arrangement.shared_rows) {
          EXPECT_EQ(pairs[i].row, pairs.front().row + token);
        }
      }
    }
  }
}

TEST(Arrange, StampsSurviveWrappingRound) {
  ArrangeScratch scratch;
  scratch.stamp = 0xfffffffeu;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Arrange(Pairs({{0, 0}, {0, 1}}), true, scratch).used, 2);
    EXPECT_EQ(Arrange(Pairs({{0, 1}, {0, 1}}), true, scratch).used, 1);
  }
}

TEST(PartsOf, KeepsSlotsTogetherAndPiecesLarge) {
  Rng rng(2);
  for (int round = 0; round < 300; ++round) {
    const std::size_t most = 2 * kManyRows + rng.Below(40);
    std::vector<SlotPair> pairs(1 + rng.Below(400));
    for (SlotPair& pair : pairs) pair.slot = static_cast<std::uint32_t>(rng.Below(4) == 0 ? 0 : rng.Below(20));
    std::map<std::uint32_t, std::size_t> whole;
    for (const SlotPair& pair : pairs) ++whole[pair.slot];
    std::vector<int> seen(pairs.size());
    for (const auto& part : PartsOf(pairs, most)) {
      EXPECT_LE(part.size(), most);
      std::map<std::uint32_t, std::size_t> here;
      for (const std::size_t i : part) {
        ++seen[i];
        ++here[pairs[i].slot];
      }
      for (const auto& [slot, count] : here) {
        EXPECT_EQ(count >= kManyRows, whole[slot] >= kManyRows)
            << count << " of " << whole[slot] << " at most " << most;
      }
    }
    EXPECT_TRUE(std::ranges::all_of(seen, [](int count) { return count == 1; }));
  }
}

}  // namespace
}  // namespace linkcpp
