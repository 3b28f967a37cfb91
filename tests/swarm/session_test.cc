// A backbone's session against a scripted coordinator, and its data port against whoever dials it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "net/tcp.h"
#include "swarm/backbone_session.h"
#include "swarm/fit_report.h"
#include "swarm/test_worker.h"
#include "wire/messages.h"
#include "wire/ticket.h"

namespace linkcpp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Waits up to ten seconds for something another thread brings about.
bool Soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 2000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

class FakeCoordinator {
 public:
  FakeCoordinator() { Serve(0); }
  ~FakeCoordinator() { Stop(); }

  void Stop() {
    if (server_ == nullptr) return;
    server_->stop();
    thread_.join();
    server_.reset();
  }
  // As a restarted one: knows nobody, signs with another key.
  void Restart() {
    Stop();
    {
      std::lock_guard lock(mutex);
      known.clear();
      keys = MakeTicketKeys();
    }
    Serve(port_);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::string Ticket(const std::string& node, const std::string& backbone, std::int64_t seconds_left = 60) {
    std::lock_guard lock(mutex);
    const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    return SignTicket({node, backbone, "m0de1", now + seconds_left}, keys.secret_key);
  }

  std::mutex mutex;
  TicketKeys keys = MakeTicketKeys();
  std::set<std::string> known;
  std::vector<AttachRequest> attached;
  int reports = 0;
  BackboneOrders orders;  // the answer to reports
  std::vector<std::string> detached;
  std::string only_answer;  // to an attach, with status `only_status`, when set
  int only_status = 0;
  std::string good_hash = "h-down";

 private:
  void Serve(int port) {
    server_ = std::make_unique<httplib::Server>();
    server_->Post("/api/backbones", [this](const httplib::Request& request, httplib::Response& response) {
      std::lock_guard lock(mutex);
      if (only_status != 0) {
        response.status = only_status;
        response.set_content(only_answer, "application/json");
        return;
      }
      if (request.get_header_value("Authorization") != "Bearer secret") {
        response.status = 401;
        return;
      }
      const AttachRequest attach = FromJson<AttachRequest>(request.body).value();
      AttachReply reply;
      if (attach.probes.empty()) {
        reply.wanted_probes = {{3, 4, "down", ""}};
      } else if (attach.probes[0].hash != good_hash) {
        response.status = 409;
        response.set_content(ErrorJson(FaultCode::kRefused, "the file differs: layer 3 expert 4 tensor down"),
                             "application/json");
        return;
      } else {
        attached.push_back(attach);
        reply.backbone_id = "b" + std::to_string(attached.size());
        reply.model_id = "m0de1";
        reply.ticket_key = keys.public_key;
        known.insert(reply.backbone_id);
      }
      response.set_content(ToJson(reply), "application/json");
    });
    server_->Post("/api/backbones/:id/report", [this](const httplib::Request& request, httplib::Response& response) {
      std::lock_guard lock(mutex);
      if (!known.contains(request.path_params.at("id"))) {
        response.status = 404;
        return;
      }
      ++reports;
      response.set_content(ToJson(orders), "application/json");
    });
    server_->Delete("/api/backbones/:id", [this](const httplib::Request& request, httplib::Response&) {
      std::lock_guard lock(mutex);
      detached.push_back(request.path_params.at("id"));
    });
    if (port == 0) {
      port_ = server_->bind_to_any_port("127.0.0.1");
    } else {
      server_->bind_to_port("127.0.0.1", port);
    }
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    server_->wait_until_ready();
  }

  std::unique_ptr<httplib::Server> server_;
  std::thread thread_;
  int port_ = 0;
};

// Someone who dials the data port: remembers what it was told.
class Caller {
 public:
  Caller(TcpNet& net, const std::string& address, const std::string& fingerprint = "") {
    auto link = net.Dial(address, fingerprint, milliseconds(2000));
    if (!link.has_value()) {
      closed_ = true;
      return;
    }
    link_ = std::move(*link);
    link_->Start({.on_frame = [this](const FrameView& frame) -> Result<void> {
                    ASSIGN_OR_RETURN(Message message, DecodeMessage(frame.header, frame.payload.size()));
                    std::lock_guard lock(mutex_);
                    told_.push_back(std::move(message));
                    return {};
                  },
                  .on_close =
                      [this](const Fault&) {
                        std::lock_guard lock(mutex_);
                        closed_ = true;
                      }});
  }
  void Say(const Message& message) { (void)link_->Send(EncodeMessage(message), {}); }
  bool closed() {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  template <class Kind>
  std::optional<Kind> Told() {
    std::lock_guard lock(mutex_);
    for (const Message& message : told_) {
      if (const auto* kind = std::get_if<Kind>(&message)) return *kind;
    }
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::deque<Message> told_;
  bool closed_ = false;
  std::unique_ptr<Link> link_;
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() : swarm(Swarm::Create({}, nullptr, clock, log)), net(TcpNet::Create(log)) {
    options.coordinator = {coordinator.url(), "secret", ""};
    options.program = "test";
    options.header_hash = "head";
  }
  Result<void> Attach() {
    auto attached = BackboneSession::Attach(
        options, [this](const SlabProbe& probe) -> Result<std::string> { return my_hash + probe.tensor; }, *swarm, log);
    if (!attached.has_value()) return std::unexpected(attached.error());
    session = std::move(*attached);
    std::lock_guard lock(coordinator.mutex);
    address = coordinator.attached.back().data_address;
    fingerprint = coordinator.attached.back().tls_fingerprint;
    return {};
  }
  HelloMessage Hello(const std::string& node) {
    return {kProtocolVersion, node, "m0de1", "test", coordinator.Ticket(node, session->backbone_id())};
  }

  NullLog log;
  SteadyClock clock;
  FakeCoordinator coordinator;
  std::unique_ptr<Swarm> swarm;
  std::shared_ptr<TcpNet> net;  // the callers'
  BackboneOptions options;
  std::string my_hash = "h-";
  std::string address, fingerprint;
  std::unique_ptr<BackboneSession> session;
};

TEST_F(SessionTest, AttachesReportsAndDetaches) {
  ASSERT_TRUE(Attach().has_value());
  EXPECT_EQ(session->backbone_id(), "b1");
  EXPECT_THAT(address, HasSubstr("127.0.0.1:"));
  EXPECT_EQ(fingerprint, "");
  EXPECT_TRUE(Soon([&] {
    std::lock_guard lock(coordinator.mutex);
    return coordinator.reports > 0;
  }));
  session.reset();
  std::lock_guard lock(coordinator.mutex);
  EXPECT_THAT(coordinator.detached, ::testing::ElementsAre("b1"));
}

TEST_F(SessionTest, SaysWhyItCanNotAttach) {
  options.coordinator.token = "wrong";
  EXPECT_EQ(Attach().error().code, FaultCode::kRefused);
  options.coordinator.token = "secret";
  my_hash = "x-";
  const auto differs = Attach();
  EXPECT_EQ(differs.error().code, FaultCode::kRefused);
  EXPECT_THAT(differs.error().text, HasSubstr("layer 3 expert 4 tensor down"));
  for (const auto& [status, answer, code] :
       {std::tuple(404, "", FaultCode::kRefused), std::tuple(200, "<html>", FaultCode::kRefused),
        std::tuple(200, "{}", FaultCode::kRefused), std::tuple(503, "", FaultCode::kBusy),
        std::tuple(500, "", FaultCode::kGone)}) {
    {
      std::lock_guard lock(coordinator.mutex);
      coordinator.only_status = status;
      coordinator.only_answer = answer;
    }
    EXPECT_EQ(Attach().error().code, code) << status << " " << answer;
  }
  coordinator.Stop();
  EXPECT_EQ(Attach().error().code, FaultCode::kGone);
}

TEST_F(SessionTest, APortInUseIsNamed) {
  ASSERT_TRUE(Attach().has_value());
  const auto first = std::move(session);
  options.data_listen = address;
  const auto second = Attach();
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, FaultCode::kLocal);
  EXPECT_THAT(second.error().text, HasSubstr(address));
}

TEST_F(SessionTest, AWorkerWithATicketIsLetIn) {
  ASSERT_TRUE(Attach().has_value());
  Caller worker(*net, address);
  worker.Say(Hello("n1"));
  worker.Say(HoldingsMessage{{{0, "0:4"}}});  // at once: it must not be lost between port and swarm
  EXPECT_TRUE(Soon([&] { return swarm->CoveredSlices() == 4; }));
  ASSERT_TRUE(worker.Told<WelcomeMessage>().has_value());
  EXPECT_EQ(worker.Told<WelcomeMessage>()->backbone_id, "b1");

  Caller again(*net, address);
  again.Say(Hello("n1"));
  again.Say(HoldingsMessage{{{0, "0:2"}}});
  EXPECT_TRUE(Soon([&] { return worker.closed() && swarm->CoveredSlices() == 2; }));
}

TEST_F(SessionTest, WhomTheCoordinatorExpelsIsCutOffAndNotTakenAgain) {
  ASSERT_TRUE(Attach().has_value());
  Caller revoked(*net, address), other(*net, address);
  revoked.Say(Hello("n1"));
  revoked.Say(HoldingsMessage{{{0, "0:4"}}});
  other.Say(Hello("n2"));
  other.Say(HoldingsMessage{{{0, "4"}}});
  ASSERT_TRUE(Soon([&] { return swarm->CoveredSlices() == 5; }));
  {
    std::lock_guard lock(coordinator.mutex);
    coordinator.orders.expel = {{"n1", "its token was revoked"}, {"n7", "never seen here"}};
  }
  EXPECT_TRUE(Soon([&] { return revoked.closed(); }));
  ASSERT_TRUE(revoked.Told<FaultMessage>().has_value());
  EXPECT_THAT(revoked.Told<FaultMessage>()->text, HasSubstr("its token was revoked"));
  EXPECT_EQ(swarm->CoveredSlices(), 1u);
  EXPECT_FALSE(other.closed());
  Caller again(*net, address);  // its ticket is still good
  again.Say(Hello("n1"));
  EXPECT_TRUE(Soon([&] { return again.closed(); }));
}

TEST(FitReport, WhatIsLeastMissedGoesFirst) {
  BackboneReport report;
  report.pairs = 77;
  for (int i = 0; i < 100; ++i) {
    report.links.push_back({.node_id = std::to_string(i), .connected = i < 50});
    report.checks.push_back({.node_id = std::to_string(i), .state = "admitted", .refusal = std::string(1000, 'r')});
  }
  for (std::uint16_t layer = 0; layer < 64; ++layer) report.heat.push_back({layer, std::vector<std::uint64_t>(256, 9)});
  const auto fit = [&](std::size_t bytes) {
    FittedReport fitted = FitReport(report, bytes);
    EXPECT_LE(fitted.json.size(), bytes);
    return std::pair(FromJson<BackboneReport>(fitted.json).value(), fitted.dropped);
  };
  EXPECT_EQ(FitReport(report).dropped, "");
  EXPECT_EQ(FitReport(report).json, ToJson(report));
  const auto [shorter, texts] = fit(150'000);
  EXPECT_EQ(texts, "long texts");
  EXPECT_EQ(shorter.checks.at(0).refusal.size(), 200u);
  EXPECT_EQ(shorter.heat.size(), 64u);
  const auto [cold, heat] = fit(80'000);
  EXPECT_EQ(heat, "long texts, heat");
  EXPECT_EQ(cold.links.size(), 100u);
  const auto [bare, all] = fit(1000);
  EXPECT_EQ(all, "long texts, heat, nodes that left, checks, links");
  EXPECT_EQ(bare.pairs, 77u);
}

TEST_F(SessionTest, WhoeverHasNoProperHelloIsToldWhy) {
  ASSERT_TRUE(Attach().has_value());
  HelloMessage good = Hello("n1");
  HelloMessage protocol = good, model = good, node = good, forged = good, none = good, expired = good, other = good;
  protocol.protocol = 99;
  model.model_id = "another";
  node.node_id = "n2";
  forged.ticket = SignTicket({"n1", "b1", "m0de1", 1ll << 40}, MakeTicketKeys().secret_key);
  none.ticket = "";
  expired.ticket = coordinator.Ticket("n1", "b1", -3600);
  other.ticket = coordinator.Ticket("n1", "b77");
  for (const Message& message :
       {Message(protocol), Message(model), Message(node), Message(forged), Message(none), Message(expired),
        Message(other), Message(PingMessage{1, false}), Message(HoldingsMessage{})}) {
    Caller caller(*net, address);
    caller.Say(message);
    ASSERT_TRUE(Soon([&] { return caller.closed(); }));
    ASSERT_TRUE(caller.Told<FaultMessage>().has_value());
    EXPECT_NE(caller.Told<FaultMessage>()->text, "");
  }
  EXPECT_TRUE(swarm->Report().links.empty());
}

TEST_F(SessionTest, RubbishClosesThatConnectionOnly) {
  ASSERT_TRUE(Attach().has_value());
  Caller worker(*net, address);
  worker.Say(Hello("n1"));
  worker.Say(HoldingsMessage{{{0, "0"}}});
  const HostPort where = ParseHostPort(address).value();
  Rng rng(5);
  for (int i = 0; i < 40; ++i) {
    const int raw = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(where.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(raw, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    std::vector<std::uint8_t> bytes(i % 4 == 0 ? 8 : 8 + rng.Below(5000));
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(rng.Next());
    if (i % 4 == 0) std::memset(bytes.data(), 0xff, 8);                  // 4 GB of header, 4 GB of payload
    if (i % 4 == 1) std::memcpy(bytes.data(), "\x40\0\0\0\0\0\0\0", 8);  // a header of noise
    (void)!send(raw, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    timeval patience{.tv_sec = 10, .tv_usec = 0};
    setsockopt(raw, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char answer[4096];
    ssize_t n = 0;
    while ((n = recv(raw, answer, sizeof answer, 0)) > 0) {
    }
    EXPECT_TRUE(n == 0 || errno == ECONNRESET) << "connection " << i << " was not closed";
    close(raw);
  }
  EXPECT_TRUE(Soon([&] { return swarm->CoveredSlices() == 1; }));
  EXPECT_FALSE(worker.closed());
}

TEST_F(SessionTest, SilentCallersDoNotKeepWorkersOut) {
  ASSERT_TRUE(Attach().has_value());
  std::vector<std::unique_ptr<Caller>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<Caller>(*net, address));
  Caller worker(*net, address);
  worker.Say(Hello("n1"));
  EXPECT_TRUE(Soon([&] { return worker.Told<WelcomeMessage>().has_value(); }));
  EXPECT_TRUE(Soon([&] { return std::ranges::all_of(silent, [](auto& caller) { return caller->closed(); }); }));
  EXPECT_FALSE(worker.closed());
}

TEST_F(SessionTest, ACoordinatorThatComesBackIsAttachedToAgain) {
  ASSERT_TRUE(Attach().has_value());
  Caller worker(*net, address);
  worker.Say(Hello("n1"));
  worker.Say(HoldingsMessage{{{0, "0:4"}}});
  ASSERT_TRUE(Soon([&] { return swarm->CoveredSlices() == 4; }));
  const std::string old_ticket = Hello("n2").ticket;
  coordinator.Restart();
  ASSERT_TRUE(Soon([&] { return session->backbone_id() == "b2"; }));
  EXPECT_FALSE(worker.closed());
  EXPECT_EQ(swarm->CoveredSlices(), 4u);
  Caller late(*net, address);  // signed with the old key
  late.Say(HelloMessage{kProtocolVersion, "n2", "m0de1", "test", old_ticket});
  EXPECT_TRUE(Soon([&] { return late.closed(); }));
  Caller anew(*net, address);
  EXPECT_TRUE(Soon([&] {
    std::lock_guard lock(coordinator.mutex);
    return coordinator.known.contains("b2");
  }));
  anew.Say(Hello("n2"));
  EXPECT_TRUE(Soon([&] { return anew.Told<WelcomeMessage>().has_value(); }));
}

TEST_F(SessionTest, OffLoopbackThePortSpeaksTls) {
  options.data_listen = "0.0.0.0:0";
  ASSERT_TRUE(Attach().has_value());
  ASSERT_EQ(fingerprint.size(), 64u);
  const std::string here = "127.0.0.1" + address.substr(address.rfind(':'));
  Caller worker(*net, here, fingerprint);
  worker.Say(Hello("n1"));
  EXPECT_TRUE(Soon([&] { return worker.Told<WelcomeMessage>().has_value(); }));
}

TEST_F(SessionTest, LinksOutliveTheSession) {
  ASSERT_TRUE(Attach().has_value());
  Caller worker(*net, address);
  worker.Say(Hello("n1"));
  worker.Say(HoldingsMessage{{{0, "0:4"}}});
  ASSERT_TRUE(Soon([&] { return swarm->CoveredSlices() == 4; }));
  session.reset();
  EXPECT_EQ(swarm->CoveredSlices(), 4u);
  swarm.reset();
  EXPECT_TRUE(Soon([&] { return worker.closed(); }));
}

}  // namespace
}  // namespace linkcpp
