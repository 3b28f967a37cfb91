#include "wire/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <format>
#include <limits>

#include "base/rng.h"

namespace linkcpp {
namespace {

using testing::HasSubstr;

StatusReply SomeStatus() {
  StatusReply status;
  status.version = "0.1.0";
  status.model_name = "a \"quoted\" näme\n\x01";
  status.n_slices = 12'288;
  status.expert_bytes = 70'212'648'960;
  status.uptime_seconds = 1.5;
  status.layers = {{3, 256, 255, 0}};
  status.nodes.resize(1);
  status.nodes[0].node_id = "n1";
  status.nodes[0].busy_us = std::numeric_limits<std::uint64_t>::max();
  status.nodes[0].admitted = false;
  status.backbones.resize(1);
  status.backbones[0].report.links = {{"n1", 1, 2, 3, 4, 5, 6.25, 7.5}};
  status.backbones[0].report.heat = {{3, {1, 0, 9}}};
  return status;
}

TEST(Control, AWholeStatusComesBackAsItWas) {
  const std::string text = ToJson(SomeStatus());
  const auto back = FromJson<StatusReply>(text);
  ASSERT_TRUE(back.has_value()) << back.error().text;
  EXPECT_EQ(ToJson(*back), text);
  EXPECT_EQ(back->model_name, "a \"quoted\" näme\n\x01");
  EXPECT_EQ(back->expert_bytes, 70'212'648'960u);
  EXPECT_EQ(back->nodes.at(0).busy_us, std::numeric_limits<std::uint64_t>::max());
  EXPECT_FALSE(back->nodes.at(0).admitted);
  EXPECT_EQ(back->backbones.at(0).report.links.at(0).rtt_us_max, 7.5);
  EXPECT_EQ(back->backbones.at(0).report.heat.at(0).pairs_by_expert, (std::vector<std::uint64_t>{1, 0, 9}));
}

TEST(Control, MissingFieldsTakeTheirDefaultAndUnknownOnesAreIgnored) {
  const auto join =
      FromJson<JoinRequest>(R"({"name": "old laptop", "new_in_0_9": {"x": [1, {"y": null}]}, "memory_bytes": 5})");
  ASSERT_TRUE(join.has_value()) << join.error().text;
  EXPECT_EQ(join->name, "old laptop");
  EXPECT_EQ(join->memory_bytes, 5u);
  EXPECT_EQ(join->protocol, kProtocolVersion);
  EXPECT_EQ(FromJson<NodeOrders>("{}")->admitted, true);
  EXPECT_EQ(FromJson<JoinReply>("{}")->poll_seconds, 20u);
}

TEST(Control, TheFieldNamesAreThoseOfTheHeader) {
  EXPECT_EQ(ToJson(LayerHoldings{3, "0:16"}), R"({"layer":3,"experts":"0:16"})");
  EXPECT_EQ(ToJson(SlabProbe{1, 2, "down", "ff"}), R"({"layer":1,"expert":2,"tensor":"down","hash":"ff"})");
  EXPECT_EQ(ErrorJson(FaultCode::kBusy, "say \"later\""), R"({"error":{"code":"busy","message":"say \"later\""}})");
}

TEST(Control, ErrorsSayTheirMessage) {
  EXPECT_EQ(ErrorMessage(ErrorJson(FaultCode::kRefused, "no such token")), "no such token");
  EXPECT_EQ(ErrorMessage("<html>502</html>"), "");
}

TEST(Control, WhatIsNotThatFormIsAFaultWithItsPlace) {
  for (const char* text : {"", "nonsense", "[]", "{", "{\"layer\": \"three\"}", "{\"layer\": 70000}", "{\"layer\": -1}",
                           "{\"layer\": 1.5}", "{\"layer\": 1} trailing", "{\"experts\": \"open"}) {
    const auto result = FromJson<LayerHoldings>(text);
    ASSERT_FALSE(result.has_value()) << text;
    EXPECT_EQ(result.error().code, FaultCode::kMalformed) << text;
  }
  EXPECT_THAT(FromJson<LayerHoldings>("{\"layer\": 1,\n \"experts\": 7}").error().text, HasSubstr("2:"));
}

TEST(Control, FiguresThatAreNotNumbersDoNotSpoilAReport) {
  LinkReport report{.node_id = "n", .rtt_us_mean = std::numeric_limits<double>::quiet_NaN()};
  const auto back = FromJson<LinkReport>(ToJson(report));
  ASSERT_TRUE(back.has_value()) << back.error().text;
  EXPECT_EQ(back->node_id, "n");
}

TEST(Control, WhateverAPeerIsCalledItIsJson) {
  StatusReply status = SomeStatus();
  status.model_name = "\x1b[2J\x01\n\"\xff";
  const std::string json = ToJson(status);
  EXPECT_THAT(json, HasSubstr(R"("\u001B[2J\u0001\n\"?")"));
  EXPECT_EQ(FromJson<StatusReply>(json).value().model_name, "\x1b[2J\x01\n\"?");
}

TEST(Control, DeepNestingAndRandomTextEndInAFault) {
  EXPECT_FALSE(FromJson<StatusReply>(std::string(1'000'000, '[')).has_value());
  EXPECT_FALSE(FromJson<StatusReply>(R"({"unknown":)" + std::string(1'000'000, '[')).has_value());
  const std::string good = ToJson(SomeStatus());
  Rng rng(4);
  for (int trial = 0; trial < 5000; ++trial) {
    std::string bad = good.substr(0, 1 + rng.Below(good.size()));
    for (std::uint64_t n = rng.Below(4); n > 0; --n) bad[rng.Below(bad.size())] = static_cast<char>(rng.Next());
    const auto result = FromJson<StatusReply>(bad);
    if (!result) {
      EXPECT_EQ(result.error().code, FaultCode::kMalformed);
    }
  }
}

}  // namespace
}  // namespace linkcpp
