#include "swarm/routing_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace linkcpp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SliceLists Lists(const std::vector<LayerHoldings>& ready) {
  return SpellOut(ready).value();
}

TEST(SpellOutTest, ReadsRangesAndMergesLayersNamedTwice) {
  const SliceLists lists = Lists({{3, "0:2,7"}, {4, ""}, {3, "1,5:7"}});
  EXPECT_THAT(lists, ElementsAre(std::pair<const std::uint16_t, std::vector<std::uint16_t>>(3, {0, 1, 5, 6, 7})));
}

TEST(SpellOutTest, RefusesWhatIsNotARangeOrTooMuch) {
  for (const char* text : {"x", "1:", ":2", "2:2", "3:1", "-1", "1,,2", "all", "1 ", "99999999999", "0:4097", "4096"}) {
    const LayerHoldings one[] = {{0, text}};
    const auto lists = SpellOut(one);
    ASSERT_FALSE(lists.has_value()) << text;
    EXPECT_EQ(lists.error().code, FaultCode::kMalformed) << text;
  }
  std::string often;
  for (int i = 0; i < 100; ++i) often += "0:4096,";
  const LayerHoldings again[] = {{0, often + "1"}};
  EXPECT_FALSE(SpellOut(again).has_value());
  std::vector<LayerHoldings> wide;
  for (std::uint16_t layer = 0; layer < 65; ++layer) wide.push_back({layer, "0:4096"});
  EXPECT_FALSE(SpellOut(wide).has_value());
}

TEST(RoutingTableTest, ANewStatementReplacesTheOldOne) {
  RoutingTable table;
  table.Replace(1, Lists({{0, "0:4"}}));
  table.Replace(2, Lists({{0, "2:6"}, {9, "0"}}));
  EXPECT_EQ(table.covered_slices(), 7u);
  EXPECT_THAT(table.Holders(LayerId(0), ExpertId(3)), ElementsAre(1, 2));
  table.Replace(2, Lists({{0, "5"}}));
  EXPECT_THAT(table.Holders(LayerId(0), ExpertId(3)), ElementsAre(1));
  EXPECT_THAT(table.Holders(LayerId(9), ExpertId(0)), IsEmpty());
  EXPECT_EQ(table.covered_slices(), 5u);
  table.Remove(1);
  EXPECT_THAT(table.Holders(LayerId(0), ExpertId(3)), IsEmpty());
  EXPECT_EQ(table.covered_slices(), 1u);
}

TEST(RoutingTableTest, OneSliceCanBeDropped) {
  RoutingTable table;
  table.Replace(1, Lists({{0, "0:4"}}));
  table.Drop(1, {LayerId(0), ExpertId(2)});
  table.Drop(1, {LayerId(0), ExpertId(2)});
  table.Drop(1, {LayerId(5), ExpertId(2)});
  table.Drop(7, {LayerId(0), ExpertId(1)});
  EXPECT_THAT(table.Holders(LayerId(0), ExpertId(2)), IsEmpty());
  EXPECT_EQ(table.covered_slices(), 3u);
  table.Replace(1, {});
  EXPECT_EQ(table.covered_slices(), 0u);
}

TEST(RoutingTableTest, AsksForWhatNobodyEverNamed) {
  const RoutingTable table;
  EXPECT_THAT(table.Holders(LayerId(65535), ExpertId(65535)), IsEmpty());
}

}  // namespace
}  // namespace linkcpp
