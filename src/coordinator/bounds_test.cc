#include "coordinator/bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace linkcpp {
namespace {

using testing::HasSubstr;

const std::vector<LayerGeometry> kLayers{{LayerId(0), 4, 1000}, {LayerId(2), 4, 1000}};

TEST(Bound, WhatIsWithinTheBoundsStaysAsItIs) {
  JoinRequest request;
  request.name = "laptop";
  request.kernel_class = "ggml-0.27.0/CPU/x";
  EXPECT_EQ(Bound(request), "");
  EXPECT_EQ(request.name, "laptop");
  BackboneReport report;
  report.links.push_back({.node_id = "a", .connected = true});
  report.checks.push_back({.node_id = "a", .state = "admitted", .refusal = ""});
  report.heat.push_back({2, {1, 2, 3, 4}});
  const std::string before = ToJson(report);
  EXPECT_EQ(Bound(report, kLayers), "");
  EXPECT_EQ(ToJson(report), before);
}

TEST(Bound, ALongNameIsCutAndSaid) {
  JoinRequest request;
  request.name = std::string(70'000, 'x');
  request.device = std::string(65, 'y');
  const std::string excess = Bound(request);
  EXPECT_EQ(request.name, std::string(64, 'x'));
  EXPECT_EQ(request.device, std::string(64, 'y'));
  EXPECT_THAT(excess, HasSubstr("a name of more than 64 bytes"));
  EXPECT_THAT(excess, HasSubstr("device"));
}

TEST(Bound, ANodeIsNamedOnceAndIdsHaveAnEnd) {
  BackboneReport report;
  report.links.push_back({.node_id = "a", .pairs = 1, .connected = false});
  report.links.push_back({.node_id = "a", .pairs = 2, .connected = true});
  report.links.push_back({.node_id = std::string(65, 'z'), .connected = true});
  report.checks.push_back({.node_id = "a", .state = "admitted", .kernel_class = std::string(1000, 'k')});
  report.checks.push_back({.node_id = "a", .state = "refused"});
  const std::string excess = Bound(report, kLayers);
  ASSERT_EQ(report.links.size(), 1u);
  EXPECT_EQ(report.links[0].pairs, 2u);  // the one that lives
  ASSERT_EQ(report.checks.size(), 1u);
  EXPECT_EQ(report.checks[0].state, "admitted");
  EXPECT_EQ(report.checks[0].kernel_class.size(), 200u);
  EXPECT_THAT(excess, HasSubstr("links of no node or of one that was named before"));
  EXPECT_THAT(excess, HasSubstr("checks of no node"));
}

TEST(Bound, ListsHaveAnEndAndConnectedNodesGoFirst) {
  BackboneReport report;
  for (std::size_t i = 0; i < kMaxLinksKept + 10; ++i) {
    report.links.push_back({.node_id = std::to_string(i), .connected = i >= kMaxLinksKept});
  }
  EXPECT_THAT(Bound(report, kLayers), HasSubstr("more than 4096 links"));
  EXPECT_EQ(report.links.size(), kMaxLinksKept);
  EXPECT_TRUE(report.links[9].connected);
}

TEST(Bound, HeatIsOfLayersAndExpertsThatExist) {
  BackboneReport report;
  report.heat.push_back({0, {1, 2, 3, 4}});
  report.heat.push_back({0, {5}});              // again
  report.heat.push_back({1, {1}});              // no such layer
  report.heat.push_back({2, {1, 2, 3, 4, 5}});  // no such expert
  EXPECT_THAT(Bound(report, kLayers), HasSubstr("heat"));
  ASSERT_EQ(report.heat.size(), 1u);
  EXPECT_EQ(report.heat[0].pairs_by_expert.size(), 4u);
}

TEST(CheckAttach, ManyProbesAndOddFingerprintsAreRefused) {
  AttachRequest request;
  EXPECT_TRUE(CheckAttach(request));
  request.tls_fingerprint = std::string(64, 'a');
  EXPECT_TRUE(CheckAttach(request));
  request.tls_fingerprint = "pin";
  EXPECT_EQ(CheckAttach(request).error().code, FaultCode::kMalformed);
  request.tls_fingerprint = "";
  request.probes.resize(kMaxProbes + 1);
  EXPECT_EQ(CheckAttach(request).error().code, FaultCode::kMalformed);
}

}  // namespace
}  // namespace linkcpp
