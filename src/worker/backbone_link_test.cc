#include "worker/backbone_link.h"

#include <gtest/gtest.h>

#include <deque>

#include "net/tcp.h"
#include "worker/test_stack.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kEmbd = 32;

// A backbone's data port that does what a test tells it, over real TCP.
class FakeBackbone {
 public:
  explicit FakeBackbone(TcpNet& net) {
    listener_ =
        net.Listen("127.0.0.1:0", nullptr, [this](std::unique_ptr<Link> link) { Take(std::move(link)); }).value();
  }
  std::string address() const { return listener_->address(); }

  // The next message of any link, in order of arrival.
  Message Next() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(news_.wait_for(lock, 10s, [this] { return !messages_.empty(); })) << "nothing came";
    if (messages_.empty()) return GoodbyeMessage{"timed out"};
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  template <class T>
  T Next() {
    const Message message = Next();
    EXPECT_TRUE(std::holds_alternative<T>(message)) << "message number " << message.index();
    return std::holds_alternative<T>(message) ? std::get<T>(message) : T{};
  }
  bool SilentFor(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return !news_.wait_for(lock, time, [this] { return !messages_.empty(); });
  }
  void Say(const Message& message, std::span<const float> rows = {}) {
    const std::span<const std::byte> payload = std::as_bytes(rows);
    const std::lock_guard lock(mutex_);
    (void)links_.back()->Send(EncodeMessage(message), std::span(&payload, rows.empty() ? 0 : 1));
  }
  void SayBytes(std::span<const std::byte> header) {
    const std::lock_guard lock(mutex_);
    (void)links_.back()->Send(header, {});
  }
  void HangUp() {
    const std::lock_guard lock(mutex_);
    links_.back()->Close("the test hangs up");
  }
  std::size_t n_links() {
    const std::lock_guard lock(mutex_);
    return links_.size();
  }

 private:
  void Take(std::unique_ptr<Link> link) {
    Link& started = *link;
    {
      const std::lock_guard lock(mutex_);
      links_.push_back(std::move(link));
    }
    started.Start({.on_frame = [this](const FrameView& frame) -> Result<void> {
                     auto message = DecodeMessage(frame.header, frame.payload.size());
                     if (!message) return std::unexpected(message.error());
                     const std::lock_guard lock(mutex_);
                     messages_.push_back(std::move(*message));
                     news_.notify_all();
                     return {};
                   },
                   .on_close = [](const Fault&) {}});
  }

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<std::unique_ptr<Link>> links_;
  std::deque<Message> messages_;
  std::unique_ptr<TcpNet::Listener> listener_;
};

class BackboneLinkTest : public testing::Test {
 protected:
  BackboneLinkTest() : rack(FakeStack::Factory(behaviour)), dispatcher(rack, log), backbone(*net) {
    EXPECT_TRUE(rack.Prepare(LayerId(3), FakeShape(kEmbd), 4));
    EXPECT_TRUE(rack.Load({LayerId(3), ExpertId(7)}, FakeSlabs(2).slabs));
  }
  BackboneRef Ref(std::string ticket = "ticket-1") {
    return {.backbone_id = "bb", .address = backbone.address(), .tls_fingerprint = "", .ticket = std::move(ticket)};
  }
  std::unique_ptr<BackboneLink> Connect(LinkTiming timing = {}) {
    return std::make_unique<BackboneLink>(
        Ref(), identity,
        [this](const auto& address, const auto& pin, auto timeout) { return net->Dial(address, pin, timeout); },
        [this] { return rack.Ready(); }, dispatcher, log, timing);
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }
  static DispatchMessage Ask(std::uint64_t id) {
    DispatchMessage ask;
    ask.id = id;
    ask.layer = LayerId(3);
    ask.recipe = Recipe::Swiglu();
    ask.n_rows = 1;
    ask.row_len = kEmbd;
    ask.pairs = {{0, 7}};
    return ask;
  }

  const WorkerIdentity identity{.node_id = "node", .model_id = std::string(64, 'a'), .kernel_class = "fake"};
  const LinkTiming quick{.welcome = 300ms, .backoff_first = 5ms, .backoff_most = 40ms};
  const std::vector<float> row = std::vector<float>(kEmbd, 3);
  FakeStack::Behaviour behaviour;
  NullLog log;
  std::unique_ptr<TcpNet> net = TcpNet::Create(log);
  Rack rack;
  Dispatcher dispatcher;
  FakeBackbone backbone;
};

TEST_F(BackboneLinkTest, GreetsSaysWhatItHoldsAndComputes) {
  const auto link = Connect();
  const auto hello = backbone.Next<HelloMessage>();
  EXPECT_EQ(hello.node_id, "node");
  EXPECT_EQ(hello.model_id, identity.model_id);
  EXPECT_EQ(hello.ticket, "ticket-1");
  EXPECT_FALSE(link->connected()) << "not before the welcome";
  backbone.Say(WelcomeMessage{"bb", 1 << 20});
  const auto holdings = backbone.Next<HoldingsMessage>();
  ASSERT_EQ(holdings.ready.size(), 1u);
  EXPECT_EQ(holdings.ready[0].layer, 3);
  EXPECT_EQ(holdings.ready[0].experts, "7");
  EXPECT_TRUE(link->connected());

  backbone.Say(Ask(17), row);
  EXPECT_EQ(backbone.Next<ResultMessage>().id, 17u);
  backbone.Say(PingMessage{.nonce = 99, .reply = false});
  const auto pong = backbone.Next<PingMessage>();
  EXPECT_EQ(pong.nonce, 99u);
  EXPECT_TRUE(pong.reply);

  ASSERT_TRUE(rack.Load({LayerId(3), ExpertId(8)}, FakeSlabs(3).slabs));
  link->SendHoldings();
  EXPECT_EQ(backbone.Next<HoldingsMessage>().ready.at(0).experts, "7,8");
}

TEST_F(BackboneLinkTest, ComesBackAfterEveryBreak) {
  const auto link = Connect(quick);
  for (int round = 0; round < 5; ++round) {
    backbone.Next<HelloMessage>();
    backbone.Say(WelcomeMessage{"bb", 0});
    backbone.Next<HoldingsMessage>();
    backbone.Say(Ask(1), row);
    EXPECT_EQ(backbone.Next<ResultMessage>().id, 1u) << "round " << round;
    backbone.HangUp();
  }
}

TEST_F(BackboneLinkTest, WaitsForAFreshTicketAfterARefusal) {
  const auto link = Connect(quick);
  backbone.Next<HelloMessage>();
  backbone.Say(FaultMessage{.id = 0, .code = FaultCode::kRefused, .text = "the ticket has expired"});
  EXPECT_TRUE(backbone.SilentFor(300ms)) << "the same ticket would be refused again";
  link->Update(Ref(), identity);
  EXPECT_TRUE(backbone.SilentFor(100ms)) << "the orders still carry the refused one";
  link->Update(Ref("ticket-2"), identity);
  EXPECT_EQ(backbone.Next<HelloMessage>().ticket, "ticket-2");
  backbone.Say(WelcomeMessage{"bb", 0});
  backbone.Next<HoldingsMessage>();
}

TEST_F(BackboneLinkTest, TriesAgainWhenTheBackboneIsBusyOrSilent) {
  const auto link = Connect(quick);
  backbone.Next<HelloMessage>();
  backbone.Say(FaultMessage{.id = 0, .code = FaultCode::kBusy, .text = "not attached yet"});
  EXPECT_EQ(backbone.Next<HelloMessage>().ticket, "ticket-1");  // and now it says nothing
  EXPECT_EQ(backbone.Next<HelloMessage>().ticket, "ticket-1");
  backbone.Say(WelcomeMessage{"bb", 0});
  backbone.Next<HoldingsMessage>();
}

TEST_F(BackboneLinkTest, KeepsTryingWhileNobodyListens) {
  std::atomic<int> dials{0};
  std::atomic<bool> up{false};
  BackboneLink link(
      Ref(), identity,
      [&](const auto& address, const auto& pin, auto timeout) -> Result<std::unique_ptr<Link>> {
        ++dials;
        if (!up) return Fail(FaultCode::kGone, "connection refused");
        return net->Dial(address, pin, timeout);
      },
      [this] { return rack.Ready(); }, dispatcher, log, quick);
  EXPECT_TRUE(Eventually([&] { return dials >= 4; }));
  up = true;
  backbone.Next<HelloMessage>();
  const int before = dials;
  EXPECT_LT(before, 60) << "it waits between its tries";
}

TEST_F(BackboneLinkTest, DropsABackboneThatSendsRubbishAndComesBack) {
  const auto link = Connect(quick);
  backbone.Next<HelloMessage>();
  backbone.Say(WelcomeMessage{"bb", 0});
  backbone.Next<HoldingsMessage>();
  const std::vector<std::byte> rubbish(100, std::byte{0x5a});
  backbone.SayBytes(rubbish);
  backbone.Next<HelloMessage>();
  backbone.Say(Ask(1), row);  // before the welcome
  backbone.Next<HelloMessage>();
  EXPECT_EQ(backbone.n_links(), 3u);
}

TEST_F(BackboneLinkTest, DropsABackboneThatHasFallenSilent) {
  auto timing = quick;
  timing.silence = 100ms;
  const auto link = Connect(timing);
  backbone.Next<HelloMessage>();
  backbone.Say(WelcomeMessage{"bb", 0});
  backbone.Next<HoldingsMessage>();
  backbone.Next<HelloMessage>();  // dialled anew
}

TEST_F(BackboneLinkTest, SaysGoodbyeAndFinishesWhatIsInFlight) {
  auto link = Connect(quick);
  backbone.Next<HelloMessage>();
  backbone.Say(WelcomeMessage{"bb", 0});
  backbone.Next<HoldingsMessage>();
  behaviour.on_run = [] { std::this_thread::sleep_for(100ms); };
  backbone.Say(Ask(1), row);
  EXPECT_TRUE(Eventually([&] { return behaviour.runs == 1 || !dispatcher.WaitIdle(1ms); }));
  link->SayGoodbye("stopping");
  backbone.Next<GoodbyeMessage>();
  backbone.Say(Ask(2), row);  // was on its way
  EXPECT_EQ(backbone.Next<ResultMessage>().id, 1u);
  EXPECT_EQ(backbone.Next<ResultMessage>().id, 2u);
  EXPECT_TRUE(dispatcher.WaitIdle(5s));
  link.reset();
  EXPECT_TRUE(backbone.SilentFor(100ms));
  EXPECT_EQ(backbone.n_links(), 1u);
}

TEST_F(BackboneLinkTest, TheSameOrdersDoNotDisturbALink) {
  const auto link = Connect(quick);
  backbone.Next<HelloMessage>();
  backbone.Say(WelcomeMessage{"bb", 0});
  backbone.Next<HoldingsMessage>();
  for (int i = 0; i < 10; ++i) link->Update(Ref(std::format("ticket-{}", i)), identity);
  EXPECT_TRUE(backbone.SilentFor(100ms));
  EXPECT_TRUE(link->connected());
}

}  // namespace
}  // namespace linkcpp
