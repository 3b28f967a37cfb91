#include "net/tcp.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/rng.h"
#include "net/test_inbox.h"
#include "wire/messages.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr std::string_view kAnyPort = "127.0.0.1:0";

// A listener whose links are handed to the test one by one.
class Door {
 public:
  Door(TcpNet& net, const Certificate* certificate) {
    auto listener = net.Listen(std::string(kAnyPort), certificate, [this](std::unique_ptr<Link> link) {
      const std::lock_guard lock(mutex_);
      links_.push_back(std::move(link));
      changed_.notify_all();
    });
    EXPECT_TRUE(listener.has_value()) << listener.error().text;
    listener_ = std::move(*listener);
  }
  std::string address() const { return listener_->address(); }
  std::unique_ptr<Link> Next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 10s, [&] { return !links_.empty(); })) return nullptr;
    auto link = std::move(links_.front());
    links_.erase(links_.begin());
    return link;
  }
  std::size_t n_waiting() {
    const std::lock_guard lock(mutex_);
    return links_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Link>> links_;
  std::unique_ptr<TcpNet::Listener> listener_;
};

// Plain and TLS links must behave alike: every test of links runs as both.
class TcpTest : public testing::TestWithParam<bool> {
 protected:
  TcpTest() {
    if (GetParam()) certificate_ = *MakeCertificate("test");
    door_ = std::make_unique<Door>(*net_, GetParam() ? &certificate_ : nullptr);
  }

  struct Ends {
    std::unique_ptr<Link> near, far;
  };
  Ends Connect() {
    Ends ends;
    auto dialled = net_->Dial(door_->address(), certificate_.fingerprint, 10s);
    EXPECT_TRUE(dialled.has_value()) << dialled.error().text;
    if (dialled) ends.near = std::move(*dialled);
    ends.far = door_->Next();
    EXPECT_NE(ends.far, nullptr);
    return ends;
  }

  NullLog log_;
  std::unique_ptr<TcpNet> net_ = TcpNet::Create(log_);
  Certificate certificate_;
  std::unique_ptr<Door> door_;
};
INSTANTIATE_TEST_SUITE_P(Plain, TcpTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Tls, TcpTest, testing::Values(true));

TEST_P(TcpTest, FramesArriveWholeAndInOrder) {
  Inbox near, far;
  Ends ends = Connect();
  ends.near->Start(near.Handlers());
  ends.far->Start(far.Handlers());
  ASSERT_TRUE(SendText(*ends.near, "header", "payload").has_value());
  ASSERT_TRUE(SendText(*ends.near, "", "").has_value());
  ASSERT_TRUE(SendText(*ends.near, "only a header").has_value());
  ASSERT_TRUE(SendText(*ends.near, "", "only a payload").has_value());
  ASSERT_TRUE(SendText(*ends.far, "back").has_value());
  ASSERT_TRUE(far.WaitFrames(4));
  ASSERT_TRUE(near.WaitFrames(1));
  const auto frames = far.frames();
  EXPECT_EQ(frames[0].header + "|" + frames[0].payload, "header|payload");
  EXPECT_EQ(frames[1].header + "|" + frames[1].payload, "|");
  EXPECT_EQ(frames[2].header + "|" + frames[2].payload, "only a header|");
  EXPECT_EQ(frames[3].header + "|" + frames[3].payload, "|only a payload");
  EXPECT_EQ(near.frames()[0].header, "back");
  EXPECT_EQ(ends.near->stats().frames_sent, 4u);
  EXPECT_EQ(ends.far->stats().frames_received, 4u);
  EXPECT_THAT(ends.near->peer(), HasSubstr(door_->address()));
}

TEST_P(TcpTest, ManyFramesOfManySizesFromSeveralThreads) {
  constexpr int kThreads = 4;
  constexpr int kFrames = 1000;
  Inbox far;
  Ends ends = Connect();
  ends.near->Start({});
  ends.far->Start(far.Handlers());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(static_cast<std::uint64_t>(t) + 1);
      for (int i = 0; i < kFrames; ++i) {
        const std::string payload(rng.Below(i % 100 == 0 ? 200'000 : 3000), static_cast<char>('a' + t));
        ASSERT_TRUE(SendText(*ends.near, std::format("{} {} {}", t, i, payload.size()), payload).has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(far.WaitFrames(kThreads * kFrames));
  std::array<int, kThreads> next{};
  for (const Inbox::Frame& frame : far.frames()) {
    const auto t = static_cast<std::size_t>(frame.header[0] - '0');
    ASSERT_EQ(frame.header, std::format("{} {} {}", t, next[t], frame.payload.size()));
    ASSERT_EQ(frame.payload.find_first_not_of(static_cast<char>('a' + t)), std::string::npos);
    ++next[t];
  }
  EXPECT_EQ(far.n_misaligned(), 0);
}

TEST_P(TcpTest, APayloadInPiecesArrivesAsOne) {
  Inbox far;
  Ends ends = Connect();
  ends.far->Start(far.Handlers());
  std::string expected;
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i)
    texts.push_back(std::string(static_cast<std::size_t>(i) % 7, static_cast<char>('a' + i % 26)));
  std::vector<std::span<const std::byte>> pieces;
  for (const std::string& text : texts) {
    pieces.push_back(BytesOf(text));
    expected += text;
  }
  ASSERT_TRUE(ends.near->Send(BytesOf("h"), pieces).has_value());
  ASSERT_TRUE(far.WaitFrames(1));
  EXPECT_EQ(far.frames()[0].payload, expected);
}

TEST_P(TcpTest, A64MbFrameGoesThrough) {
  Inbox far;
  Ends ends = Connect();
  ends.near->Start({});
  ends.far->Start(far.Handlers());
  std::string payload(64u << 20, '\0');
  Rng rng(3);
  for (std::size_t i = 0; i < payload.size(); i += 8) {
    const std::uint64_t word = rng.Next();
    std::memcpy(payload.data() + i, &word, 8);
  }
  ASSERT_TRUE(SendText(*ends.near, "big", payload).has_value());
  ASSERT_TRUE(SendText(*ends.near, "small", "after it").has_value());
  ASSERT_TRUE(far.WaitFrames(2));
  EXPECT_TRUE(far.frames()[0].payload == payload);
  EXPECT_EQ(far.frames()[1].payload, "after it");
  EXPECT_EQ(far.n_misaligned(), 0);
}

TEST_P(TcpTest, APeerThatDoesNotReadMakesUsBusy) {
  Ends ends = Connect();
  ends.near->Start({});  // ends.far is never started, so nothing is read
  const std::string payload(8u << 20, 'x');
  Result<void> sent;
  int n = 0;
  for (; n < 32 && sent; ++n) sent = SendText(*ends.near, "h", payload);
  ASSERT_FALSE(sent.has_value()) << "256 MB were taken";
  EXPECT_EQ(sent.error().code, FaultCode::kBusy);
  EXPECT_GE(n, 8);  // 64 MB are held for it

  Inbox far;  // and when it reads again, all of that arrives and sending works again
  ends.far->Start(far.Handlers());
  ASSERT_TRUE(far.WaitFrames(static_cast<std::size_t>(n) - 1));
  EXPECT_TRUE(SendText(*ends.near, "again").has_value());
  ASSERT_TRUE(far.WaitFrames(static_cast<std::size_t>(n)));
}

TEST_P(TcpTest, WhatWasQueuedBeforeCloseIsDelivered) {
  Inbox near, far;
  Ends ends = Connect();
  ends.near->Start(near.Handlers());
  const std::string payload(8u << 20, 'x');  // more than socket buffers take
  ASSERT_TRUE(SendText(*ends.near, "rows", payload).has_value());
  ASSERT_TRUE(SendText(*ends.near, "last words").has_value());
  ends.near->Close("done");
  ends.near->Close("again");  // changes nothing
  EXPECT_EQ(SendText(*ends.near, "too late").error().code, FaultCode::kGone);
  ASSERT_TRUE(SendText(*ends.far, "unread").has_value());  // must not turn the close into a reset
  ends.far->Start(far.Handlers());
  ASSERT_TRUE(far.WaitFrames(2));
  EXPECT_EQ(far.frames()[1].header, "last words");
  ASSERT_TRUE(near.WaitClosed());
  ASSERT_TRUE(far.WaitClosed());
  std::this_thread::sleep_for(50ms);
  ASSERT_EQ(near.closes().size(), 1u);
  ASSERT_EQ(far.closes().size(), 1u);
  EXPECT_EQ(near.closes()[0].text, "done");
  EXPECT_EQ(far.closes()[0].code, FaultCode::kGone);
}

TEST_P(TcpTest, DestroyingALinkSendsWhatIsQueued) {
  Inbox far;
  Ends ends = Connect();
  ASSERT_TRUE(SendText(*ends.near, "rows", std::string(8u << 20, 'x')).has_value());
  ends.near.reset();
  ends.far->Start(far.Handlers());
  ASSERT_TRUE(far.WaitFrames(1));
  ASSERT_TRUE(far.WaitClosed());
}

TEST_P(TcpTest, ClosedBeforeStartIsToldAfterStart) {
  Inbox near, far;
  Ends ends = Connect();
  ends.near->Close("at once");
  std::this_thread::sleep_for(50ms);
  ends.near->Start(near.Handlers());
  ends.far->Start(far.Handlers());
  EXPECT_TRUE(near.WaitClosed());
  EXPECT_TRUE(far.WaitClosed());
}

TEST_P(TcpTest, AFaultFromTheHandlerClosesTheLinkWithThatReason) {
  std::promise<Fault> why;
  Inbox near;
  Ends ends = Connect();
  ends.near->Start(near.Handlers());
  ends.far->Start(
      {.on_frame = [](const FrameView&) -> Result<void> { return Fail(FaultCode::kMalformed, "not what I expect"); },
       .on_close = [&](const Fault& fault) { why.set_value(fault); }});
  ASSERT_TRUE(SendText(*ends.near, "hm").has_value());
  const Fault fault = why.get_future().get();
  EXPECT_EQ(fault.code, FaultCode::kMalformed);
  EXPECT_EQ(fault.text, "not what I expect");
  EXPECT_TRUE(near.WaitClosed());
}

TEST_P(TcpTest, AHandlerThatThrowsClosesTheLinkOnly) {
  std::promise<Fault> why;
  Ends ends = Connect();
  ends.near->Start({});
  ends.far->Start({.on_frame = [](const FrameView&) -> Result<void> { throw std::runtime_error("oops"); },
                   .on_close = [&](const Fault& fault) { why.set_value(fault); }});
  ASSERT_TRUE(SendText(*ends.near, "hm").has_value());
  EXPECT_THAT(why.get_future().get().text, HasSubstr("oops"));
  Ends others = Connect();  // the transport lives on
  Inbox inbox;
  others.far->Start(inbox.Handlers());
  ASSERT_TRUE(SendText(*others.near, "still here").has_value());
  EXPECT_TRUE(inbox.WaitFrames(1));
}

TEST_P(TcpTest, ALinkMayBeDestroyedInsideItsOwnHandlers) {
  Ends ends = Connect();
  auto witness = std::make_shared<int>(1);
  std::promise<void> gone;
  ends.near->Start({});
  ends.far->Start({.on_frame = [&, witness](const FrameView&) -> Result<void> {
                     ends.far.reset();
                     gone.set_value();
                     return {};
                   },
                   .on_close = [](const Fault&) { ADD_FAILURE() << "told after it was destroyed"; }});
  ASSERT_TRUE(SendText(*ends.near, "one").has_value());
  (void)SendText(*ends.near, "two: must not be delivered");
  gone.get_future().wait();
  for (int i = 0; i < 1000 && witness.use_count() > 1; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(witness.use_count(), 1) << "what the handlers captured was not let go";

  Ends others = Connect();
  std::promise<void> closed;
  others.near->Start({.on_frame = {}, .on_close = [&](const Fault&) {
                        others.near.reset();
                        closed.set_value();
                      }});
  others.far.reset();
  closed.get_future().wait();
}

TEST_P(TcpTest, TheDestructorWaitsForARunningHandler) {
  Ends ends = Connect();
  std::promise<void> inside;
  std::atomic<bool> finished = false;
  ends.near->Start({});
  ends.far->Start({.on_frame = [&](const FrameView&) -> Result<void> {
                     inside.set_value();
                     std::this_thread::sleep_for(100ms);
                     finished = true;
                     return {};
                   },
                   .on_close = {}});
  ASSERT_TRUE(SendText(*ends.near, "one").has_value());
  inside.get_future().wait();
  ends.far.reset();
  EXPECT_TRUE(finished);
}

TEST_P(TcpTest, LinksComeAndGoUnderLoadFromAllSides) {
  Rng rng(7);
  for (int round = 0; round < 30; ++round) {
    Inbox near, far;
    Ends ends = Connect();
    ends.near->Start(near.Handlers());
    ends.far->Start(far.Handlers());
    std::thread sender([&] {
      for (int i = 0; i < 200; ++i) {
        if (!SendText(*ends.near, "h", std::string(10'000, 'x'))) break;
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(rng.Below(2000)));
    if (rng.Below(2) == 0) {
      ends.far.reset();
    } else {
      ends.near->Close("enough");
    }
    sender.join();
    ends.near.reset();
  }
}

TEST_P(TcpTest, TighterLimitsHoldBeforeTheHandshake) {
  Inbox near, far;
  Ends ends = Connect();
  ends.near->Start(near.Handlers());
  ends.far->set_limits({.max_header_bytes = 100, .max_payload_bytes = 0});
  ends.far->Start(far.Handlers());
  ASSERT_TRUE(SendText(*ends.near, std::string(100, 'h')).has_value());
  ASSERT_TRUE(SendText(*ends.near, "h", "p").has_value());
  ASSERT_TRUE(far.WaitClosed());
  EXPECT_EQ(far.frames().size(), 1u);
  EXPECT_EQ(far.closes()[0].code, FaultCode::kMalformed);
  EXPECT_THAT(far.closes()[0].text, HasSubstr("announced a frame of 1 header and 1 payload bytes; at most 100 and 0"));
}

// ---------------------------------------------------------------- peers that are no linkcpp, plain TCP

class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    const HostPort at = *ParseHostPort(address);
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(at.port);
    inet_pton(AF_INET, at.host.c_str(), &to.sin_addr);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  ~Stranger() { Hang(); }
  void Say(std::span<const std::byte> bytes) { (void)!send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void Hang() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }
  // As a killed process with unread data: a reset instead of an orderly end.
  void Reset() {
    const linger now{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    Hang();
  }

 private:
  int socket_ = -1;
};

struct PlainTcp : testing::Test {
  NullLog log;
  std::unique_ptr<TcpNet> net = TcpNet::Create(log);
  Door door{*net, nullptr};
};

TEST_F(PlainTcp, AFourGigabyteLengthIsDroppedBeforeMemoryIsTaken) {
  for (const FrameLengths lengths : {FrameLengths{16, 0xffffffff}, FrameLengths{0xffffffff, 0}}) {
    Stranger stranger(door.address());
    Inbox inbox;
    const auto link = door.Next();
    link->Start(inbox.Handlers());
    std::array<std::byte, kFrameLengthBytes> bytes;
    PutFrameLengths(lengths, bytes);
    stranger.Say(bytes);
    ASSERT_TRUE(inbox.WaitClosed());
    EXPECT_EQ(inbox.closes()[0].code, FaultCode::kMalformed);
    EXPECT_THAT(inbox.closes()[0].text, HasSubstr("4294967295"));
    EXPECT_TRUE(inbox.frames().empty());
  }
}

TEST_F(PlainTcp, RandomBytesCloseTheLinkOrWaitForMore) {
  Rng rng(11);
  for (int trial = 0; trial < 50; ++trial) {
    Stranger stranger(door.address());
    Inbox inbox;
    const auto link = door.Next();
    link->Start(inbox.Handlers());
    std::vector<std::byte> bytes(1 + rng.Below(5000));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Next());
    stranger.Say(bytes);
    stranger.Hang();
    ASSERT_TRUE(inbox.WaitClosed());
    EXPECT_EQ(inbox.closes().size(), 1u);
  }
}

TEST_F(PlainTcp, AFrameMayArriveByteByByte) {
  Stranger stranger(door.address());
  Inbox inbox;
  const auto link = door.Next();
  link->Start(inbox.Handlers());
  std::string bytes(kFrameLengthBytes, '\0');
  PutFrameLengths({3, 40}, std::as_writable_bytes(std::span(bytes)).first<kFrameLengthBytes>());
  bytes += "abc" + std::string(40, 'p');
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const char& c : bytes) {
      stranger.Say(BytesOf({&c, 1}));
      std::this_thread::sleep_for(100us);
    }
  }
  ASSERT_TRUE(inbox.WaitFrames(2));
  EXPECT_EQ(inbox.frames()[1].header, "abc");
  EXPECT_EQ(inbox.frames()[1].payload, std::string(40, 'p'));
}

TEST_F(PlainTcp, APeerThatIsKilledIsNoticed) {
  Stranger stranger(door.address());
  Inbox inbox;
  const auto link = door.Next();
  link->Start(inbox.Handlers());
  ASSERT_TRUE(SendText(*link, "unread").has_value());
  stranger.Reset();
  ASSERT_TRUE(inbox.WaitClosed());
  EXPECT_EQ(inbox.closes()[0].code, FaultCode::kGone);
  EXPECT_EQ(SendText(*link, "h").error().code, FaultCode::kGone);
}

TEST_F(PlainTcp, ADestroyedListenerTakesNoLinksAndLeavesTheOthers) {
  std::atomic<int> n = 0;
  std::promise<std::unique_ptr<Link>> first;
  auto listener = *net->Listen(std::string(kAnyPort), nullptr, [&](std::unique_ptr<Link> link) {
    if (n++ == 0) first.set_value(std::move(link));
  });
  const std::string address = listener->address();
  auto near = net->Dial(address, "", 5s);
  ASSERT_TRUE(near.has_value());
  const auto far = first.get_future().get();
  listener.reset();
  const auto late = net->Dial(address, "", 1s);
  EXPECT_FALSE(late.has_value());
  EXPECT_EQ(n, 1);
  Inbox inbox;
  far->Start(inbox.Handlers());
  ASSERT_TRUE(SendText(**near, "still linked").has_value());
  EXPECT_TRUE(inbox.WaitFrames(1));
}

TEST_F(PlainTcp, TheTransportMayEndInAHandlerOfItsOwn) {
  std::shared_ptr<TcpNet> last = TcpNet::Create(log);
  std::promise<void> ended;
  auto link = *last->Dial(door.address(), "", 5s);
  const auto far = door.Next();
  link->Start({.on_frame = [&](const FrameView&) -> Result<void> {
                 link.reset();
                 last.reset();
                 ended.set_value();
                 return {};
               },
               .on_close = {}});
  ASSERT_TRUE(SendText(*far, "the end").has_value());
  ended.get_future().wait();
}

TEST_F(PlainTcp, APortInUseIsNamedWithWhatToDo) {
  const auto second = net->Listen(door.address(), nullptr, [](std::unique_ptr<Link>) {});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, FaultCode::kLocal);
  EXPECT_THAT(second.error().text, HasSubstr(door.address() + " is in use"));
  EXPECT_THAT(second.error().text, HasSubstr("choose another port"));
}

TEST_F(PlainTcp, AddressesThatAreNotOursOrAreNoneAreNamed) {
  const auto nowhere = [](std::unique_ptr<Link>) {};
  EXPECT_THAT(net->Listen("192.0.2.1:0", nullptr, nowhere).error().text, HasSubstr("no interface of this machine"));
  EXPECT_THAT(net->Listen("127.0.0.1", nullptr, nowhere).error().text, HasSubstr("not host:port"));
  const Certificate bad{"no", "certificate", ""};
  EXPECT_EQ(net->Listen(std::string(kAnyPort), &bad, nowhere).error().code, FaultCode::kLocal);
}

TEST_F(PlainTcp, DiallingFailsWithAReason) {
  std::string free_port;
  {
    const auto listener = *net->Listen(std::string(kAnyPort), nullptr, [](std::unique_ptr<Link>) {});
    free_port = listener->address();
  }
  const auto refused = net->Dial(free_port, "", 2s);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, FaultCode::kGone);
  EXPECT_THAT(refused.error().text, HasSubstr("nothing listens there"));
  EXPECT_FALSE(net->Dial("no-such-host.invalid:1", "", 5s).has_value());
}

TEST_F(PlainTcp, DialGivesUpInTime) {
  // A listener that never accepts: its queue takes the connection, and TLS is never answered.
  const int deaf = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(deaf, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(listen(deaf, 1), 0);
  socklen_t size = sizeof at;
  getsockname(deaf, reinterpret_cast<sockaddr*>(&at), &size);
  const auto start = std::chrono::steady_clock::now();
  const auto link = net->Dial(std::format("127.0.0.1:{}", ntohs(at.sin_port)), std::string(64, '0'), 300ms);
  EXPECT_FALSE(link.has_value());
  EXPECT_THAT(link.error().text, HasSubstr("in time"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
  close(deaf);
}

// ---------------------------------------------------------------- TLS

TEST(Tls, TheWrongFingerprintIsRefusedAndTheLinkNeverAppears) {
  NullLog log;
  const auto net = TcpNet::Create(log);
  const Certificate real = *MakeCertificate("real");
  const Certificate other = *MakeCertificate("other");
  Door door(*net, &real);
  const auto link = net->Dial(door.address(), other.fingerprint, 5s);
  ASSERT_FALSE(link.has_value());
  EXPECT_EQ(link.error().code, FaultCode::kGone);
  EXPECT_THAT(link.error().text, HasSubstr(real.fingerprint));
  EXPECT_THAT(link.error().text, HasSubstr("not " + other.fingerprint));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(door.n_waiting(), 0u);
}

TEST(Tls, PlainAndTlsDoNotMix) {
  NullLog log;
  const auto net = TcpNet::Create(log);
  const Certificate certificate = *MakeCertificate("x");
  Door secure(*net, &certificate);
  const auto plain_link = net->Dial(secure.address(), "", 5s);
  ASSERT_TRUE(plain_link.has_value());  // TCP connects; what is said next is no TLS
  Inbox inbox;
  (*plain_link)->Start(inbox.Handlers());
  ASSERT_TRUE(SendText(**plain_link, "hello?").has_value());
  EXPECT_TRUE(inbox.WaitClosed());
  EXPECT_EQ(secure.n_waiting(), 0u);

  Door plain(*net, nullptr);
  const auto secure_link = std::async([&] { return net->Dial(plain.address(), certificate.fingerprint, 500ms); });
  const auto far = plain.Next();
  Inbox far_inbox;
  far->Start(far_inbox.Handlers());
  EXPECT_TRUE(far_inbox.WaitClosed());
  EXPECT_EQ(far_inbox.closes()[0].code, FaultCode::kMalformed);
}

TEST(Tls, DamagedRecordsEndTheLink) {
  NullLog log;
  const auto net = TcpNet::Create(log);
  const Certificate certificate = *MakeCertificate("x");
  Door door(*net, &certificate);
  Rng rng(5);
  for (int trial = 0; trial < 20; ++trial) {
    Stranger stranger(door.address());
    std::vector<std::byte> bytes(1 + rng.Below(3000));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Next());
    if (trial % 2 == 0) bytes[0] = std::byte{22};  // a handshake record
    stranger.Say(bytes);
  }
  EXPECT_EQ(door.n_waiting(), 0u);
  EXPECT_TRUE(net->Dial(door.address(), certificate.fingerprint, 5s).has_value());
}

}  // namespace
}  // namespace linkcpp
