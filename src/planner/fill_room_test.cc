#include "planner/fill_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace linkcpp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kKib = 1 << 10;

std::uint64_t Sum(std::span<const std::uint64_t> pieces, std::span<const std::size_t> chosen) {
  std::uint64_t sum = 0;
  for (const std::size_t i : chosen) sum += pieces[i];
  return sum;
}

// The largest sum there is, by trying all.
std::uint64_t Best(std::span<const std::uint64_t> pieces, std::uint64_t room) {
  if (pieces.empty()) return 0;
  const std::uint64_t without = Best(pieces.subspan(1), room);
  return pieces[0] > room ? without : std::max(without, pieces[0] + Best(pieces.subspan(1), room - pieces[0]));
}

std::vector<std::uint64_t> SomePieces(std::mt19937& random, std::uint64_t unit, std::uint64_t most) {
  std::vector<std::uint64_t> pieces(1 + random() % 12);
  for (std::uint64_t& bytes : pieces) bytes = (1 + random() % most) * unit;
  return pieces;
}

TEST(FillRoom, FindsTheSumThatTryingEverythingFinds) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto pieces = SomePieces(random, 16 * kKib, 40);
    const std::uint64_t room = random() % (4096 * kKib);
    const auto chosen = FillRoom(pieces, room);
    ASSERT_TRUE(std::ranges::is_sorted(chosen));
    ASSERT_EQ(std::ranges::adjacent_find(chosen), chosen.end());
    ASSERT_EQ(Sum(pieces, chosen), Best(pieces, room)) << "round " << round;
  }
}

TEST(FillRoom, SizesThatAreNoMultiplesNeverTakeMoreThanThereIs) {
  std::mt19937 random(8);
  for (int round = 0; round < 300; ++round) {
    const auto pieces = SomePieces(random, 1, 640 * kKib);
    const std::uint64_t room = random() % (4096 * kKib);
    const std::uint64_t sum = Sum(pieces, FillRoom(pieces, room));
    EXPECT_LE(sum, room);
    const std::uint64_t rounding = (pieces.size() + 1) * 16 * kKib;  // too much in the sum, and too little taken
    EXPECT_GE(sum + rounding, room > rounding ? Best(pieces, room - rounding) : 0);
  }
}

TEST(FillRoom, TheFirstPiecesGoFirst) {
  const std::vector<std::uint64_t> pieces{32 * kKib, 64 * kKib, 32 * kKib, 64 * kKib, 128 * kKib};
  EXPECT_THAT(FillRoom(pieces, 128 * kKib), ElementsAre(0, 1, 2));
  EXPECT_THAT(FillRoom(pieces, 100 * kKib), ElementsAre(0, 1));
  EXPECT_THAT(FillRoom(pieces, 10'000 * kKib), ElementsAre(0, 1, 2, 3, 4));
}

TEST(FillRoom, NothingFitsOrNothingIsThere) {
  EXPECT_THAT(FillRoom({}, 100 * kKib), IsEmpty());
  const std::vector<std::uint64_t> large{101 * kKib, 200 * kKib};
  EXPECT_THAT(FillRoom(large, 100 * kKib), IsEmpty());
  EXPECT_THAT(FillRoom(large, 0), IsEmpty());
}

}  // namespace
}  // namespace linkcpp
