#include "market/coverage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace linkcpp {
namespace {

using Lists = std::vector<std::vector<SliceId>>;

constexpr std::uint64_t kSlice = 3200;
constexpr std::uint64_t kCost = SliceCost(kSlice);  // 3300

std::vector<LayerGeometry> Model(std::uint16_t n_layers, std::uint32_t n_experts) {
  std::vector<LayerGeometry> layers;
  for (std::uint16_t i = 0; i < n_layers; ++i) layers.push_back({LayerId(i), n_experts, kSlice});
  return layers;
}

NodeShare Gives(std::string id, std::uint64_t n_slices) {
  NodeShare node;
  node.id = std::move(id);
  node.memory_bytes = n_slices * kCost;
  return node;
}

SliceId Slice(int layer, int expert) {
  return {LayerId(static_cast<std::uint16_t>(layer)), ExpertId(static_cast<std::uint16_t>(expert))};
}

std::map<SliceId, int> Holders(const Lists& lists) {
  std::map<SliceId, int> holders;
  for (const auto& list : lists) {
    for (const SliceId slice : list) ++holders[slice];
  }
  return holders;
}

int InLayer(const std::vector<SliceId>& list, int layer) {
  return static_cast<int>(std::ranges::count_if(list, [&](SliceId s) { return s.layer.value == layer; }));
}

// The nodes did as they were told.
void Settle(std::vector<NodeShare>& nodes, const Lists& lists) {
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].assigned = nodes[i].ready = lists[i];
}

TEST(Coverage, ThreeNodesCoverTheModelOnceAndShareEveryLayer) {
  const auto layers = Model(4, 12);
  const std::vector<NodeShare> nodes{Gives("a", 16), Gives("b", 16), Gives("c", 16)};
  const Lists lists = AssignSlices(layers, nodes);
  const auto holders = Holders(lists);
  EXPECT_EQ(holders.size(), 48u);
  for (const auto& [slice, count] : holders) EXPECT_EQ(count, 1);
  for (const auto& list : lists) {
    for (int layer = 0; layer < 4; ++layer) EXPECT_EQ(InLayer(list, layer), 4);
  }
}

TEST(Coverage, ABigNodeTakesItsShareOfEachLayer) {
  const auto layers = Model(4, 12);
  const std::vector<NodeShare> nodes{Gives("big", 32), Gives("small", 16)};
  const Lists lists = AssignSlices(layers, nodes);
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(InLayer(lists[0], layer), 8);
    EXPECT_EQ(InLayer(lists[1], layer), 4);
  }
}

TEST(Coverage, ASmallFirstNodeGetsSomethingOfEveryLayer) {
  const Lists lists = AssignSlices(Model(4, 16), std::vector<NodeShare>{Gives("only", 8)});
  ASSERT_EQ(lists[0].size(), 8u);
  for (int layer = 0; layer < 4; ++layer) EXPECT_EQ(InLayer(lists[0], layer), 2);
}

TEST(Coverage, MemoryLeftOverHoldsSecondCopiesNeverTwiceOnOneNode) {
  const auto layers = Model(2, 8);
  const std::vector<NodeShare> nodes{Gives("a", 100), Gives("b", 10), Gives("c", 6)};
  const Lists lists = AssignSlices(layers, nodes);
  EXPECT_EQ(lists[0].size(), 16u);  // all there is, once
  EXPECT_EQ(lists[1].size(), 10u);
  EXPECT_EQ(lists[2].size(), 6u);
  for (const auto& list : lists) EXPECT_EQ(std::set<SliceId>(list.begin(), list.end()).size(), list.size());
  for (const auto& [slice, count] : Holders(lists)) EXPECT_EQ(count, 2);  // b and c share the second copies
}

TEST(Coverage, ANewNodeTakesWhatIsMissingAndNobodyElseMoves) {
  const auto layers = Model(3, 10);
  std::vector<NodeShare> nodes{Gives("a", 12)};
  Settle(nodes, AssignSlices(layers, nodes));
  nodes.push_back(Gives("b", 18));
  const Lists lists = AssignSlices(layers, nodes);
  EXPECT_EQ(lists[0], nodes[0].assigned);
  EXPECT_EQ(Holders(lists).size(), 30u);
}

TEST(Coverage, NothingChangesNothingMoves) {
  const auto layers = Model(5, 7);
  std::vector<NodeShare> nodes{Gives("a", 9), Gives("b", 20), Gives("c", 3), Gives("d", 11)};
  const Lists first = AssignSlices(layers, nodes);
  Settle(nodes, first);
  EXPECT_EQ(AssignSlices(layers, nodes), first);
}

TEST(Coverage, WhenANodeLeavesItsSlicesReplaceSpareCopies) {
  const auto layers = Model(2, 8);
  std::vector<NodeShare> nodes{Gives("a", 8), Gives("b", 8), Gives("c", 8)};  // 16 slices, 24 places
  Settle(nodes, AssignSlices(layers, nodes));
  nodes.erase(nodes.begin());
  const Lists lists = AssignSlices(layers, nodes);
  EXPECT_EQ(Holders(lists).size(), 16u);
  // Whatever was the only ready copy stayed where it was.
  const auto before = Holders({nodes[0].assigned, nodes[1].assigned});
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const SliceId slice : nodes[i].assigned) {
      EXPECT_TRUE(before.at(slice) > 1 || std::ranges::binary_search(lists[i], slice));
    }
  }
}

TEST(Coverage, TheOnlyLoadedCopyIsNotGivenUpForADownloadThatHasNotEnded) {
  const auto layers = Model(1, 3);
  NodeShare loaded = Gives("loaded", 1);
  loaded.assigned = loaded.ready = {Slice(0, 0)};
  NodeShare loading = Gives("loading", 1);
  loading.assigned = {Slice(0, 0)};
  const Lists lists = AssignSlices(layers, std::vector<NodeShare>{loaded, loading});
  EXPECT_THAT(lists[0], testing::ElementsAre(Slice(0, 0)));
  EXPECT_THAT(lists[1], testing::ElementsAre(Slice(0, 1)));
}

TEST(Coverage, ChosenByHandIsHeldExactlyAndTheOthersFillIn) {
  const auto layers = Model(2, 4);
  NodeShare hand = Gives("z-hand", 100);
  hand.by_hand = true;
  hand.chosen = {Slice(1, 0), Slice(1, 1), Slice(1, 2), Slice(1, 3), Slice(7, 0), Slice(0, 99)};
  const Lists lists = AssignSlices(layers, std::vector<NodeShare>{Gives("a", 4), hand});
  EXPECT_THAT(lists[1], testing::ElementsAre(Slice(1, 0), Slice(1, 1), Slice(1, 2), Slice(1, 3)));
  EXPECT_THAT(lists[0], testing::ElementsAre(Slice(0, 0), Slice(0, 1), Slice(0, 2), Slice(0, 3)));
}

TEST(Coverage, ChosenByHandKeepsToItsMemory) {
  NodeShare hand = Gives("hand", 3);
  hand.by_hand = true;
  for (int expert = 0; expert < 16; ++expert) hand.chosen.push_back(Slice(0, expert));
  EXPECT_EQ(AssignSlices(Model(1, 16), std::vector<NodeShare>{hand})[0].size(), 3u);
}

TEST(Coverage, ANodeThatGivesLessThanASliceGetsNone) {
  NodeShare tiny;
  tiny.id = "tiny";
  tiny.memory_bytes = kCost - 1;
  EXPECT_TRUE(AssignSlices(Model(1, 4), std::vector<NodeShare>{tiny})[0].empty());
}

TEST(Coverage, WhatANodeBringsAlongItKeepsIfItIsOfThisModel) {
  NodeShare node = Gives("back-again", 2);
  node.assigned = node.ready = {Slice(0, 3), Slice(0, 2), Slice(9, 0), Slice(0, 44)};
  EXPECT_THAT(AssignSlices(Model(1, 4), std::vector<NodeShare>{node})[0],
              testing::ElementsAre(Slice(0, 2), Slice(0, 3)));
}

TEST(Coverage, LayersOfDifferentSizesFitTheirMemory) {
  const std::vector<LayerGeometry> layers{{LayerId(0), 8, 3200}, {LayerId(1), 8, 6400}, {LayerId(5), 4, 320}};
  std::vector<NodeShare> nodes{Gives("a", 7), Gives("b", 13), Gives("c", 10)};
  const Lists lists = AssignSlices(layers, nodes);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::uint64_t used = 0;
    for (const SliceId slice : lists[i]) {
      used += SliceCost(slice.layer.value == 0 ? 3200 : slice.layer.value == 1 ? 6400 : 320);
    }
    EXPECT_LE(used, nodes[i].memory_bytes);
  }
  EXPECT_EQ(Holders(lists).size(), 20u);
}

// 48 layers of 256 experts over 100 nodes, three copies of each: a coordinator does this on every join.
TEST(Coverage, TheReferenceModelOverAHundredNodes) {
  const auto layers = Model(48, 256);
  std::vector<NodeShare> nodes;
  for (int i = 0; i < 100; ++i) nodes.push_back(Gives("node" + std::to_string(1000 + i), 369));
  const Lists lists = AssignSlices(layers, nodes);
  for (const auto& [slice, count] : Holders(lists)) EXPECT_GE(count, 3);
  for (const auto& list : lists) {
    for (int layer = 0; layer < 48; ++layer) EXPECT_NEAR(InLayer(list, layer), 369.0 / 48, 1.5);
  }
}

// Half of the nodes of a swarm with two copies of all slices go away at once; then the rest is too small for the model.
TEST(Coverage, TheReferenceModelLosesHalfOfItsNodes) {
  const auto layers = Model(48, 256);
  std::vector<NodeShare> nodes;
  for (int i = 0; i < 100; ++i) nodes.push_back(Gives("node" + std::to_string(1000 + i), 250));
  Settle(nodes, AssignSlices(layers, nodes));
  nodes.resize(50);
  const Lists half = AssignSlices(layers, nodes);
  EXPECT_EQ(Holders(half).size(), 12288u);
  Settle(nodes, half);
  nodes.resize(30);
  const Lists too_few = AssignSlices(layers, nodes);
  EXPECT_EQ(Holders(too_few).size(), 30u * 250u);
}

}  // namespace
}  // namespace linkcpp
