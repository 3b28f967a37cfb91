#include "coordinator/status_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "coordinator/metrics.h"

namespace linkcpp {
namespace {

using testing::HasSubstr;

StatusReply Small() {
  StatusReply status;
  status.version = "0.1.0";
  status.model_name = "m";
  status.architecture = "qwen3moe";
  status.n_slices = 64;
  status.slices_covered = 48;
  status.expert_bytes = 12'300'000;
  status.uptime_seconds = 125;
  for (std::uint16_t layer = 0; layer < 4; ++layer)
    status.layers.push_back({layer, 16, layer == 3 ? 0u : 16u, layer == 3 ? 0u : 1u});
  NodeStatus node;
  node.node_id = "0123456789abcdef";
  node.name = "laptop";
  node.state = "ready";
  node.device = "CPU";
  node.memory_bytes = 4'000'000'000;
  node.slices_ready = node.slices_wanted = 48;
  node.pairs_computed = 123;
  node.busy_us = 1'500'000;
  for (std::uint16_t layer = 0; layer < 3; ++layer) node.ready.push_back({layer, "0:16"});
  status.nodes.push_back(node);
  BackboneStatus backbone;
  backbone.backbone_id = "b";
  backbone.program = "llama-server";
  backbone.data_address = "127.0.0.1:4711";
  backbone.report.pairs = 200;
  backbone.report.pairs_local = 77;
  LinkReport link;
  link.node_id = node.node_id;
  link.pairs = 123;
  link.bytes_sent = 2'000'000;
  link.rtt_us_mean = 350;
  link.connected = true;
  backbone.report.links.push_back(link);
  status.backbones.push_back(backbone);
  return status;
}

TEST(StatusText, SaysWhatChecksFound) {
  StatusReply status = Small();
  status.nodes[0].checks.push_back({.node_id = status.nodes[0].node_id,
                                    .state = "admitted",
                                    .kernel_class = "ggml-0.27.0/CPU/x",
                                    .kernel_model = "cpu",
                                    .canaries = 8,
                                    .spot_checks = 3,
                                    .slices = 7,
                                    .cosine = 0.99985,
                                    .worst_cosine = 0.9996,
                                    .over_bound = 0.3});
  EXPECT_THAT(StatusText(status),
              HasSubstr("laptop: admitted; 8 canaries and 3 spot checks of 7 slices, cosine 0.9998500 "
                        "(worst 0.9996000), at most 0.3 of the derived bound; ggml-0.27.0/CPU/x (cpu)"));
  status.nodes[0].admitted = false;
  status.nodes[0].refusal = "layer 0 expert 3: NMSE 4";
  status.backbones[0].report.links[0].connected = false;
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("refused"));
  EXPECT_THAT(text, HasSubstr("laptop is kept off backbones: layer 0 expert 3: NMSE 4"));
  EXPECT_THAT(text, HasSubstr("gone"));
}

TEST(StatusText, SaysWhoHoldsWhatAndWhatTheBackboneDidItself) {
  const std::string text = StatusText(Small());
  EXPECT_THAT(text, HasSubstr("covered: 48 of 64 slices by 1 node\n"));
  EXPECT_THAT(text, HasSubstr("layers 0:3 experts 0:16"));
  EXPECT_THAT(text, HasSubstr("\n0:3     16 of 16  at least 1\n3       0 of 16   at least 0\n"));
  EXPECT_THAT(text, HasSubstr("77"));
  EXPECT_THAT(text, HasSubstr("0.35 ms"));
  EXPECT_THAT(text, HasSubstr("2.0 MB"));
  EXPECT_THAT(text, HasSubstr("2 min 5 s"));
}

TEST(StatusText, ColumnsLineUpWhateverTheNames) {
  StatusReply status = Small();
  status.nodes.push_back(status.nodes[0]);
  status.nodes.back().name = "é a much longer name";
  const std::string text = StatusText(status);
  const std::size_t first = text.find("\nlaptop"), second = text.find("\né a much");
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(second, std::string::npos);
  // one byte more for the é
  EXPECT_EQ(text.find("ready", first) - first + 1, text.find("ready", second) - second);
}

TEST(StatusText, WhatIsNotConnectedSaysSo) {
  StatusReply status = Small();
  EXPECT_FALSE(StatusText(status).contains("not connected"));
  status.nodes[0].connected = false;
  EXPECT_THAT(StatusText(status), HasSubstr("not connected"));
}

TEST(StatusText, OneOfAThingIsNotSeveral) {
  StatusReply status = Small();
  status.n_slices = 1;
  status.slices_covered = 1;
  status.nodes[0].checks.push_back(
      {.node_id = status.nodes[0].node_id, .state = "admitted", .canaries = 1, .spot_checks = 1, .slices = 1});
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("of experts in 1 slice;"));
  EXPECT_THAT(text, HasSubstr("covered: 1 of 1 slice by 1 node\n"));
  EXPECT_THAT(text, HasSubstr("1 canary and 1 spot check of 1 slice,"));
}

TEST(StatusText, OnATerminalNoLineIsWiderThanIt) {
  StatusReply status = Small();
  status.nodes[0].checks.push_back({.node_id = status.nodes[0].node_id,
                                    .state = "admitted",
                                    .kernel_class = "ggml-0.27.0/CPU/é",
                                    .canaries = 8,
                                    .slices = 7});
  status.nodes[0].error = "no space left on the device, and a long story of how it came to that, in many short words";
  std::istringstream lines(StatusText(status, {.width = 60}));
  for (std::string line; std::getline(lines, line);) {
    const auto width =
        std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
    EXPECT_LE(width, 60) << line;
  }
  EXPECT_FALSE(StatusText(status, {.width = 60}).contains('\x1b'));
  EXPECT_THAT(StatusText(status, {.color = true}), HasSubstr("\x1b[1mLAYERS"));
}

TEST(StatusText, NumbersStandUnderOneAnotherAndColumnsOfNothingAreLeftOut) {
  StatusReply status = Small();
  status.nodes.push_back(status.nodes[0]);
  status.nodes.back().pairs_computed = 123'456;
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("     123  "));
  EXPECT_THAT(text, HasSubstr("  123456  "));
  EXPECT_FALSE(text.contains("TO LOAD"));
  status.nodes[0].wanted_bytes = 5;
  EXPECT_THAT(StatusText(status), HasSubstr("TO LOAD"));
}

TEST(StatusText, AnErrorOfANodeIsShown) {
  StatusReply status = Small();
  status.nodes[0].error = "no space left";
  EXPECT_THAT(StatusText(status), HasSubstr("laptop says: no space left"));
}

TEST(StatusPage, WhatAPeerNamedItselfIsNotMarkup) {
  StatusReply status = Small();
  status.nodes[0].name = "<script>alert(1)</script>";
  const std::string page = StatusPage(status);
  EXPECT_FALSE(page.contains("<script>"));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;"));
}

TEST(BytesText, ReadsWell) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(999), "999 B");
  EXPECT_EQ(BytesText(1000), "1.0 kB");
  EXPECT_EQ(BytesText(999'960), "1.0 MB");
  EXPECT_EQ(BytesText(70'212'648'960), "70.2 GB");
}

// Every row belongs to the family above it, and each name is announced once: what a scraper insists on.
TEST(PrometheusText, IsWellFormed) {
  const std::string text = PrometheusText(Small());
  std::string family;
  std::set<std::string> families;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family;
    } else if (!line.starts_with("# HELP ")) {
      EXPECT_TRUE(line.starts_with(family + "{") || line.starts_with(family + " ")) << line;
      EXPECT_NE(line.rfind(' '), std::string::npos);
    }
  }
  EXPECT_THAT(text, HasSubstr("linkcpp_backbone_pairs_local_total{backbone=\"b\",program=\"llama-server\"} 77\n"));
  EXPECT_THAT(text, HasSubstr("linkcpp_link_rtt_seconds{backbone=\"b\",node=\"0123456789abcdef\"} 0.00035\n"));
}

TEST(PrometheusText, NamesAreQuoted) {
  StatusReply status = Small();
  status.nodes[0].name = "a\"b\\c\nd";
  EXPECT_THAT(PrometheusText(status), HasSubstr(R"(name="a\"b\\c\nd")"));
}

}  // namespace
}  // namespace linkcpp
