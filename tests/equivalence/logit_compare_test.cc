// Two models' logits: the measures of `linkcpp verify decode`, on numbers one can do by hand.
#include "cli/logit_compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace linkcpp {
namespace {

std::vector<float> Logs(std::initializer_list<double> probabilities, double shift = 0) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + shift));
  return logits;
}

TEST(LogitCompare, KlDivergenceOfTwoCoins) {
  // 1/2 log((1/2) / (1/4)) + 1/2 log((1/2) / (3/4)); logits are float32, so to about their rounding.
  const double expected = 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3.0);
  EXPECT_NEAR(KlDivergence(Logs({0.5, 0.5}), Logs({0.25, 0.75})), expected, 1e-6);
  EXPECT_NEAR(KlDivergence(Logs({0.5, 0.5}, 80), Logs({0.25, 0.75}, -300)), expected, 1e-4) << "a shift is nothing";
}

TEST(LogitCompare, TheSameBitsAreNoDifference) {
  LogitComparison all;
  all.Add(Logs({0.1, 0.9}), Logs({0.1, 0.9}));
  EXPECT_TRUE(all.BitIdentical());
  EXPECT_EQ(all.first_differing(), std::nullopt);
  EXPECT_EQ(all.Nmse(), 0);
  EXPECT_EQ(all.KlMean(), 0);
  EXPECT_EQ(all.top1_agree(), 1u);
}

TEST(LogitCompare, OneBitIsADifferenceAndItsPlaceIsKnown) {
  LogitComparison all;
  const std::vector<float> row{1, 2, 3};
  std::vector<float> other = row;
  other[0] = std::nextafter(1.0f, 2.0f);
  all.Add(row, row);
  all.Add(row, other);
  all.Add(row, other);
  EXPECT_FALSE(all.BitIdentical());
  EXPECT_EQ(all.first_differing(), 1u);
  EXPECT_EQ(all.n_differing(), 2u);
  EXPECT_EQ(all.top1_agree(), 3u);
  EXPECT_GT(all.Nmse(), 0);
}

TEST(LogitCompare, AnotherFavouriteAndTheWorstPosition) {
  LogitComparison all;
  all.Add(Logs({0.6, 0.4}), Logs({0.4, 0.6}));
  all.Add(Logs({0.5, 0.5}), Logs({0.01, 0.99}));
  all.Add(Logs({0.6, 0.4}), Logs({0.7, 0.3}));
  EXPECT_EQ(all.top1_agree(), 1u) << "equal logits: the first one counts";
  EXPECT_EQ(all.kl_max_at(), 1u);
  EXPECT_GT(all.KlMax(), all.KlMean());
}

TEST(LogitCompare, NanIsInfinitelyFarAndAgreesWithNothing) {
  LogitComparison all;
  all.Add(std::vector<float>{1, 2}, std::vector<float>{std::numeric_limits<float>::quiet_NaN(), 2});
  EXPECT_FALSE(all.BitIdentical());
  EXPECT_EQ(all.n_not_finite(), 1u);
  EXPECT_EQ(all.top1_agree(), 0u);
  EXPECT_TRUE(std::isinf(all.KlMean()));
}

}  // namespace
}  // namespace linkcpp
