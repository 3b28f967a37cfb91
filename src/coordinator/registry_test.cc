#include "coordinator/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "coordinator/test_world.h"
#include "wire/ticket.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class RegistryTest : public testing::Test {
 protected:
  std::string Join(const JoinRequest& request) { return registry_.Join(request, caller_).value().node_id; }
  NodeOrders Orders(const std::string& node, std::uint64_t after = 0) {
    return registry_.Orders(node, after, caller_, {}).value();
  }
  // As a worker does it: everything it was told to hold is loaded.
  void Load(const std::string& node) {
    NodeReport report;
    report.ready = Orders(node).hold;
    report.state = "ready";
    ASSERT_TRUE(registry_.ReportNode(node, report, caller_));
  }
  AttachRequest WithProbes(AttachRequest request) {
    request.probes = registry_.Attach(request, caller_).value().wanted_probes;
    for (SlabProbe& probe : request.probes) {
      probe.hash = Austen().SlabHashOf(probe.layer, probe.expert, probe.tensor).value();
    }
    return request;
  }
  std::string Attach(const std::string& address = "127.0.0.1:4711") {
    return registry_.Attach(WithProbes(Backbone(address)), caller_).value().backbone_id;
  }

  TestClock clock_;
  NullLog log_;
  TicketKeys keys_ = MakeTicketKeys();
  Registry registry_{Austen(), keys_, QuickPolls(), clock_, log_};
  const Caller caller_{"token", "127.0.0.1", "coordinator.example"};
};

std::uint64_t NSlices(const std::vector<LayerHoldings>& holdings) {
  return Austen().FromHoldings(holdings).value().size();
}

TEST_F(RegistryTest, AWorkerWithRoomGetsTheWholeModel) {
  const std::string node = Join(Worker("one", kPlenty));
  EXPECT_EQ(NSlices(Orders(node).hold), Austen().manifest().n_slices());
  EXPECT_EQ(registry_.Status().slices_covered, 0u);  // told is not loaded
  Load(node);
  const StatusReply status = registry_.Status();
  EXPECT_EQ(status.slices_covered, Austen().manifest().n_slices());
  EXPECT_EQ(status.nodes[0].name, "one");
  EXPECT_EQ(status.nodes[0].slices_ready, status.nodes[0].slices_wanted);
  for (const LayerCoverage& layer : status.layers) EXPECT_EQ(layer.min_holders, 1u);
}

TEST_F(RegistryTest, AWorkerThatLeavesMakesRoomForNobodyButItsSlicesGoToTheOthers) {
  const std::uint64_t half = MemoryFor(Austen().manifest().n_slices() / 2);
  const std::string first = Join(Worker("first", half));
  const std::string second = Join(Worker("second", half));
  const std::string third = Join(Worker("third", kPlenty));
  for (const auto& node : {first, second, third}) Load(node);
  const NodeOrders before = Orders(second);
  ASSERT_TRUE(registry_.Leave(first, caller_));
  Load(third);
  EXPECT_EQ(registry_.Status().slices_covered, Austen().manifest().n_slices());
  EXPECT_EQ(Orders(second).version, before.version);
  EXPECT_EQ(registry_.Orders(first, 0, caller_, {}).error().code, FaultCode::kGone);
}

TEST_F(RegistryTest, AWorkerNotHeardOfIsDroppedAndItsSlicesAreHandedOut) {
  const std::uint64_t n_slices = Austen().manifest().n_slices();
  const std::string silent = Join(Worker("silent", kPlenty));
  Load(silent);
  const std::string small = Join(Worker("small", MemoryFor(4)));
  clock_.Advance(20s);
  Load(small);
  clock_.Advance(11s);  // 31 s after the last word of `silent`, 11 s after that of `small`
  registry_.Expire();
  const StatusReply status = registry_.Status();
  ASSERT_EQ(status.nodes.size(), 1u);
  EXPECT_EQ(status.nodes[0].name, "small");
  EXPECT_LT(status.slices_covered, n_slices);
  EXPECT_EQ(registry_.ReportNode(silent, {}, caller_).error().code, FaultCode::kGone);
  const std::string next = Join(Worker("next", kPlenty));
  EXPECT_EQ(NSlices(Orders(next).hold), n_slices);
}

TEST_F(RegistryTest, AsLongAsAWorkerPollsItStays) {
  const std::string node = Join(Worker("one", kPlenty));
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(20s);
    Orders(node);
    registry_.Expire();
  }
  EXPECT_EQ(registry_.Status().nodes.size(), 1u);
}

TEST_F(RegistryTest, OrdersWaitForNewsAndComeBackUnchangedWhenThereIsNone) {
  const std::string node = Join(Worker("one", kPlenty));
  const NodeOrders first = Orders(node);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Orders(node, first.version).version, first.version);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 300ms);
}

TEST_F(RegistryTest, ABackboneThatAttachesWakesTheWorkersThatWait) {
  RegistryOptions patient = QuickPolls();
  patient.poll = 60s;
  Registry registry(Austen(), keys_, patient, clock_, log_);
  const std::string node = registry.Join(Worker("one", kPlenty), caller_).value().node_id;
  const std::uint64_t version = registry.Orders(node, 0, caller_, {}).value().version;
  NodeOrders woken;
  const auto start = std::chrono::steady_clock::now();
  std::thread waiting([&] { woken = registry.Orders(node, version, caller_, {}).value(); });
  ASSERT_TRUE(registry.Attach(WithProbes(Backbone()), caller_));
  waiting.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  EXPECT_GT(woken.version, version);
  ASSERT_EQ(woken.backbones.size(), 1u);
  EXPECT_EQ(woken.backbones[0].address, "127.0.0.1:4711");
}

TEST_F(RegistryTest, TicketsAreFreshAndGoodButDoNotMakeNews) {
  const std::string node = Join(Worker("one", kPlenty));
  const std::string backbone = Attach();
  const NodeOrders orders = Orders(node);
  const NodeOrders again = Orders(node, orders.version);  // waited its time: no news
  EXPECT_EQ(again.version, orders.version);
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto ticket = OpenTicket(again.backbones.at(0).ticket, keys_.public_key, now);
  ASSERT_TRUE(ticket) << ticket.error().text;
  EXPECT_EQ(ticket->node_id, node);
  EXPECT_EQ(ticket->backbone_id, backbone);
  EXPECT_EQ(ticket->model_id, Austen().model_id());
  EXPECT_GT(ticket->expires_unix_s, now + 50);
  EXPECT_LE(ticket->expires_unix_s, now + 61);
}

TEST_F(RegistryTest, ABackboneNotHeardOfIsDroppedFromTheOrders) {
  const std::string node = Join(Worker("one", kPlenty));
  const std::string kept = Attach();
  Attach("127.0.0.1:4712");
  EXPECT_EQ(Orders(node).backbones.size(), 2u);
  clock_.Advance(6s);
  ASSERT_TRUE(registry_.ReportBackbone(kept, {}, caller_));
  clock_.Advance(5s);
  registry_.Expire();
  const NodeOrders orders = Orders(node);
  ASSERT_EQ(orders.backbones.size(), 1u);
  EXPECT_EQ(orders.backbones[0].backbone_id, kept);
  ASSERT_TRUE(registry_.Detach(kept, caller_));
  EXPECT_TRUE(Orders(node).backbones.empty());
  EXPECT_EQ(registry_.ReportBackbone(kept, {}, caller_).error().code, FaultCode::kGone);
}

TEST_F(RegistryTest, AWorkerThatABackboneFoundWrongLosesItsWorkAndIsToldWhy) {
  const std::uint64_t n_slices = Austen().manifest().n_slices();
  const std::string wrong = Join(Worker("wrong", kPlenty));
  Load(wrong);
  const std::string right = Join(Worker("right", MemoryFor(2)));
  const std::string backbone = Attach();
  const NodeOrders before = Orders(wrong);
  ASSERT_EQ(before.backbones.size(), 1u);

  BackboneReport report;
  report.checks.push_back({.node_id = right, .state = "admitted", .canaries = 8, .cosine = 0.9998});
  report.checks.push_back({.node_id = wrong, .state = "refused", .refusal = "layer 3 expert 1: NMSE 4\x1b[2J"});
  report.checks.push_back({.node_id = "nobody", .state = "refused"});
  ASSERT_TRUE(registry_.ReportBackbone(backbone, report, caller_));

  const NodeOrders orders = registry_.Orders(wrong, before.version, caller_, {}).value();  // news: does not wait
  EXPECT_GT(orders.version, before.version);
  EXPECT_FALSE(orders.admitted);
  EXPECT_THAT(orders.refusal, HasSubstr("layer 3 expert 1: NMSE 4"));
  EXPECT_THAT(orders.refusal, testing::Not(HasSubstr("\x1b")));
  EXPECT_TRUE(orders.backbones.empty());
  EXPECT_EQ(registry_.Status().slices_covered, 0u);  // what it has loaded counts no more
  const StatusReply status = registry_.Status();
  EXPECT_FALSE(status.nodes[0].admitted);
  EXPECT_THAT(status.nodes[0].refusal, HasSubstr("NMSE 4"));
  EXPECT_TRUE(status.nodes[1].admitted);
  ASSERT_EQ(status.nodes[1].checks.size(), 1u);
  EXPECT_EQ(status.nodes[1].checks[0].canaries, 8u);

  const std::string next = Join(Worker("next", kPlenty));
  EXPECT_EQ(NSlices(Orders(next).hold), n_slices);
  EXPECT_EQ(Orders(next).backbones.size(), 1u);
}

TEST_F(RegistryTest, AWorkerThatHangsUpIsGoneInSecondsNotHalfAMinute) {
  const std::string node = Join(Worker("killed", kPlenty));
  Load(node);
  EXPECT_EQ(registry_.Status().slices_covered, Austen().manifest().n_slices());
  const std::uint64_t version = Orders(node).version;
  EXPECT_EQ(registry_.Orders(node, version, caller_, [] { return true; }).error().code, FaultCode::kGone);
  const StatusReply at_once = registry_.Status();
  EXPECT_FALSE(at_once.nodes.at(0).connected);
  EXPECT_EQ(at_once.slices_covered, 0u);
  clock_.Advance(5s);
  registry_.Expire();
  EXPECT_EQ(registry_.Status().nodes.size(), 1u);
  clock_.Advance(2s);
  registry_.Expire();
  EXPECT_TRUE(registry_.Status().nodes.empty());
}

TEST_F(RegistryTest, AWorkerThatDialsAgainAfterItsPollBrokeOffStays) {
  const std::string node = Join(Worker("one", kPlenty));
  Load(node);
  const std::uint64_t version = Orders(node).version;
  EXPECT_FALSE(registry_.Orders(node, version, caller_, [] { return true; }));
  Load(node);  // a report, and fresh orders
  EXPECT_TRUE(registry_.Status().nodes.at(0).connected);
  // An old poll that is seen to break off only after a new one has come says nothing.
  const auto gone_after_a_new_poll = [&] {
    Orders(node);
    return true;
  };
  EXPECT_FALSE(registry_.Orders(node, version, caller_, gone_after_a_new_poll));
  EXPECT_TRUE(registry_.Status().nodes.at(0).connected);
  clock_.Advance(20s);
  registry_.Expire();
  EXPECT_EQ(registry_.Status().nodes.size(), 1u);
}

TEST_F(RegistryTest, WhatNoBackboneIsLinkedToAnyMoreDoesNotCount) {
  const std::string node = Join(Worker("one", kPlenty));
  Load(node);
  const std::string backbone = Attach(), other = Attach("127.0.0.1:4712");
  const auto says = [&](const std::string& who, bool connected) {
    BackboneReport report;
    report.links.push_back({.node_id = node, .connected = connected});
    ASSERT_TRUE(registry_.ReportBackbone(who, report, caller_));
  };
  EXPECT_TRUE(registry_.Status().nodes[0].connected);  // nobody has had a link yet
  says(backbone, true);
  says(other, false);
  EXPECT_TRUE(registry_.Status().nodes[0].connected);
  EXPECT_GT(registry_.Status().slices_covered, 0u);
  says(backbone, false);
  EXPECT_FALSE(registry_.Status().nodes[0].connected);
  EXPECT_EQ(registry_.Status().slices_covered, 0u);
  says(other, true);
  EXPECT_TRUE(registry_.Status().nodes[0].connected);
}

TEST_F(RegistryTest, WhoCameWithARevokedTokenIsDroppedAndCutOff) {
  const std::string stays = Join(Worker("stays", kPlenty));
  const Caller guest{"guest", "127.0.0.1", ""};
  const std::string goes = registry_.Join(Worker("goes", kPlenty), guest).value().node_id;
  const std::string backbone = Attach();
  EXPECT_EQ(registry_.TokensInUse(), (std::set<std::string>{"guest", "token"}));
  registry_.DropToken("guest");
  ASSERT_EQ(registry_.Status().nodes.size(), 1u);
  EXPECT_EQ(registry_.Status().nodes[0].node_id, stays);
  EXPECT_EQ(registry_.TokensInUse(), (std::set<std::string>{"token"}));
  BackboneReport report;
  report.links.push_back({.node_id = goes, .connected = true});
  report.links.push_back({.node_id = stays, .connected = true});
  report.links.push_back({.node_id = "of a coordinator before this one", .connected = true});
  const BackboneOrders orders = registry_.ReportBackbone(backbone, report, caller_).value();
  ASSERT_EQ(orders.expel.size(), 1u);
  EXPECT_EQ(orders.expel[0].node_id, goes);
  EXPECT_THAT(orders.expel[0].reason, HasSubstr("revoked"));
  report.links[0].connected = false;
  EXPECT_TRUE(registry_.ReportBackbone(backbone, report, caller_).value().expel.empty());
}

TEST_F(RegistryTest, AWorkerWithoutRoomForOneSliceIsToldSo) {
  const JoinReply small = registry_.Join(Worker("small", 1000), caller_).value();
  EXPECT_THAT(small.warning, HasSubstr("less than one slice"));
  EXPECT_THAT(small.warning, HasSubstr("--memory 1M"));
  EXPECT_THAT(registry_.Status().nodes[0].error, HasSubstr("less than one slice"));
  JoinRequest chosen = Worker("chosen", MemoryFor(2));
  chosen.layers = "0";
  EXPECT_THAT(registry_.Join(chosen, caller_).value().warning, HasSubstr("chose 16 slices by hand"));
  EXPECT_EQ(registry_.Join(Worker("enough", kPlenty), caller_).value().warning, "");
}

TEST_F(RegistryTest, AFileWithAnotherHeaderIsRefused) {
  AttachRequest request = Backbone();
  request.header_hash[0] = request.header_hash[0] == '0' ? '1' : '0';
  const auto outcome = registry_.Attach(request, caller_);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, FaultCode::kRefused);
  EXPECT_THAT(outcome.error().text, testing::HasSubstr("the backbone's file differs from the coordinator's"));
}

TEST_F(RegistryTest, AFileWithOneWrongSlabIsRefusedByName) {
  AttachRequest request = WithProbes(Backbone());
  ASSERT_FALSE(request.probes.empty());
  SlabProbe& wrong = request.probes.back();
  wrong.hash = Hash{}.Hex();
  const auto outcome = registry_.Attach(request, caller_);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, FaultCode::kRefused);
  EXPECT_EQ(outcome.error().text,
            std::format("the backbone's file differs from the coordinator's: layer {} expert {} tensor {}", wrong.layer,
                        wrong.expert, wrong.tensor));
  EXPECT_TRUE(registry_.Status().backbones.empty());
}

TEST_F(RegistryTest, EveryPartOfTheLayersIsProbed) {
  for (int round = 0; round < 20; ++round) {
    std::set<std::uint16_t> layers;
    for (const SlabProbe& probe : registry_.Attach(Backbone(), caller_).value().wanted_probes)
      layers.insert(probe.layer);
    EXPECT_THAT(layers, testing::ElementsAre(0, 1, 2, 3)) << "austen-moe has four layers, four slabs are asked for";
  }
}

TEST_F(RegistryTest, ADataPortOpenToAllMustSpeakTls) {
  EXPECT_EQ(registry_.Attach(Backbone("192.0.2.1:5000"), caller_).error().code, FaultCode::kRefused);
  EXPECT_EQ(registry_.Attach(Backbone("0.0.0.0:5000"), caller_).error().code, FaultCode::kRefused);
  EXPECT_EQ(registry_.Attach(Backbone("nowhere"), caller_).error().code, FaultCode::kMalformed);
  EXPECT_EQ(registry_.Attach(Backbone("127.0.0.1:0"), caller_).error().code, FaultCode::kMalformed);
}

TEST_F(RegistryTest, APortOnAllInterfacesIsDialledWhereItsMachineWasSeen) {
  const std::string node = Join(Worker("one", kPlenty));
  AttachRequest request = WithProbes(Backbone());
  request.data_address = "0.0.0.0:5000";
  request.tls_fingerprint = std::string(64, 'a');
  ASSERT_TRUE(registry_.Attach(request, {"token", "192.0.2.7", ""}));
  EXPECT_EQ(Orders(node).backbones.at(0).address, "192.0.2.7:5000");
}

TEST_F(RegistryTest, APortOnTheCoordinatorsOwnMachineIsDialledWhereTheWorkerReachedIt) {
  const std::string node = Join(Worker("one", kPlenty));
  AttachRequest request = WithProbes(Backbone());
  request.data_address = "0.0.0.0:5000";
  request.tls_fingerprint = std::string(64, 'a');
  ASSERT_TRUE(registry_.Attach(request, caller_));
  EXPECT_EQ(Orders(node).backbones.at(0).address, "coordinator.example:5000");
  EXPECT_EQ(registry_.Orders(node, 0, {"token", "::1", "2001:db8::1"}, {}).value().backbones.at(0).address,
            "[2001:db8::1]:5000");
}

TEST_F(RegistryTest, ChosenByHandIsWhatIsHeld) {
  JoinRequest request = Worker("hand", kPlenty);
  request.layers = "1:3";
  request.experts = "0:4,7";
  const std::string node = Join(request);
  const NodeOrders orders = Orders(node);
  ASSERT_EQ(orders.hold.size(), 2u);
  EXPECT_EQ(orders.hold[0].layer, 1);
  EXPECT_EQ(orders.hold[0].experts, "0:4,7");
  EXPECT_EQ(orders.hold[1].layer, 2);
}

TEST_F(RegistryTest, WrongJoinsAreRefusedWithTheReason) {
  JoinRequest request = Worker("wrong", kPlenty);
  request.layers = "99";
  EXPECT_THAT(registry_.Join(request, caller_).error().text, testing::HasSubstr("99"));
  request.layers = "0";
  request.experts = "0:9999";
  EXPECT_EQ(registry_.Join(request, caller_).error().code, FaultCode::kMalformed);
  request = Worker("wrong", kPlenty);
  request.model = "another";
  EXPECT_THAT(registry_.Join(request, caller_).error().text, testing::HasSubstr(Austen().name()));
  request = Worker("wrong", kPlenty);
  request.protocol = kProtocolVersion + 1;
  EXPECT_EQ(registry_.Join(request, caller_).error().code, FaultCode::kRefused);
  EXPECT_EQ(registry_.Join(Worker("none", 0), caller_).error().code, FaultCode::kMalformed);
  EXPECT_TRUE(registry_.Status().nodes.empty());
}

TEST_F(RegistryTest, AfterARestartAWorkerKeepsWhatItBrings) {
  const auto cost = [](std::size_t layer) { return SliceCost(Austen().geometry()[layer].slice_bytes); };
  JoinRequest request = Worker("back", cost(1) + 2 * cost(3));
  request.ready = {{3, "5,9"}, {1, "2"}};
  const NodeOrders orders = Orders(Join(request));
  ASSERT_EQ(orders.hold.size(), 2u);
  EXPECT_EQ(orders.hold[0].layer, 1);
  EXPECT_EQ(orders.hold[0].experts, "2");
  EXPECT_EQ(orders.hold[1].layer, 3);
  EXPECT_EQ(orders.hold[1].experts, "5,9");
}

TEST_F(RegistryTest, AnotherTokenDoesNotKnowTheNode) {
  const std::string node = Join(Worker("mine", kPlenty));
  const Caller other{"other", "127.0.0.1", ""};
  EXPECT_EQ(registry_.Leave(node, other).error().code, FaultCode::kGone);
  EXPECT_EQ(registry_.Status().nodes.size(), 1u);
}

TEST_F(RegistryTest, AReportOfSlicesTheModelHasNotIsRefused) {
  const std::string node = Join(Worker("one", kPlenty));
  NodeReport report;
  report.ready = {{0, "0:99999"}};
  EXPECT_EQ(registry_.ReportNode(node, report, caller_).error().code, FaultCode::kMalformed);
  report.ready = {{1000, "0"}};
  EXPECT_EQ(registry_.ReportNode(node, report, caller_).error().code, FaultCode::kMalformed);
  report.ready.assign(100'000, {0, "0"});
  EXPECT_EQ(registry_.ReportNode(node, report, caller_).error().code, FaultCode::kMalformed);
}

TEST_F(RegistryTest, NamesLoseWhatATerminalWouldObey) {
  Join(Worker("\x1b[2Jevil\n" + std::string(1000, 'x'), kPlenty));
  const std::string name = registry_.Status().nodes.at(0).name;
  EXPECT_TRUE(name.starts_with(" [2Jevil "));
  EXPECT_EQ(name.size(), kMaxNameBytes);
}

TEST_F(RegistryTest, AHungUpWorkerFreesItsThread) {
  RegistryOptions patient = QuickPolls();
  patient.poll = 60s;
  Registry registry(Austen(), keys_, patient, clock_, log_);
  const std::string node = registry.Join(Worker("one", kPlenty), caller_).value().node_id;
  const std::uint64_t version = registry.Orders(node, 0, caller_, {}).value().version;
  EXPECT_EQ(registry.Orders(node, version, caller_, [] { return true; }).error().code, FaultCode::kGone);
}

}  // namespace
}  // namespace linkcpp
