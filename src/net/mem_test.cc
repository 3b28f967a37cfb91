#include "net/mem.h"

#include <gtest/gtest.h>

#include "net/test_inbox.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;

struct MemTest : testing::Test {
  FakeClock clock;
  std::unique_ptr<MemNet> net = MemNet::Create(clock);
  Inbox a_inbox, b_inbox;
  std::unique_ptr<Link> a, b;

  void Connect(MemNet::Script script) {
    std::tie(a, b) = net->MakePair(script);
    a->Start(a_inbox.Handlers());
    b->Start(b_inbox.Handlers());
  }
};

TEST_F(MemTest, NothingMovesUntilPumped) {
  Connect({});
  ASSERT_TRUE(SendText(*a, "h", "payload").has_value());
  EXPECT_TRUE(b_inbox.frames().empty());
  EXPECT_EQ(net->Pump(), 1);
  ASSERT_EQ(b_inbox.frames().size(), 1u);
  EXPECT_EQ(b_inbox.frames()[0].payload, "payload");
  EXPECT_EQ(b_inbox.n_misaligned(), 0);
  EXPECT_EQ(net->Pump(), 0);
}

TEST_F(MemTest, FramesComeAfterTheDelayInOrder) {
  Connect({.delay = 5ms});
  ASSERT_TRUE(SendText(*a, "1").has_value());
  clock.Advance(3ms);
  ASSERT_TRUE(SendText(*a, "2").has_value());
  clock.Advance(2ms);
  EXPECT_EQ(net->Pump(), 1);
  clock.Advance(3ms);
  EXPECT_EQ(net->Pump(), 1);
  EXPECT_EQ(b_inbox.frames()[1].header, "2");
}

TEST_F(MemTest, TheCutComesAfterSoManyFrames) {
  Connect({.cut_after = 2});
  for (const char* text : {"1", "2", "3"}) ASSERT_TRUE(SendText(*a, text).has_value());
  EXPECT_EQ(net->Pump(), 2);
  EXPECT_EQ(b_inbox.frames().size(), 2u);
  EXPECT_EQ(a_inbox.closes().size(), 1u);
  EXPECT_EQ(b_inbox.closes().size(), 1u);
  EXPECT_EQ(SendText(*a, "4").error().code, FaultCode::kGone);
}

TEST_F(MemTest, EveryNthFrameIsLost) {
  Connect({.drop_every = 3});
  for (int i = 1; i <= 7; ++i) ASSERT_TRUE(SendText(*a, std::to_string(i)).has_value());
  EXPECT_EQ(net->Pump(), 5);
  std::string seen;
  for (const auto& frame : b_inbox.frames()) seen += frame.header;
  EXPECT_EQ(seen, "12457");
}

TEST_F(MemTest, ClosingDeliversWhatWasSentAndTellsBothOnce) {
  Connect({.delay = 1ms});
  ASSERT_TRUE(SendText(*a, "last").has_value());
  a->Close("done");
  net->Pump();
  EXPECT_TRUE(b_inbox.closes().empty());
  clock.Advance(1ms);
  net->Pump();
  net->Pump();
  EXPECT_EQ(b_inbox.frames().size(), 1u);
  ASSERT_EQ(a_inbox.closes().size(), 1u);
  ASSERT_EQ(b_inbox.closes().size(), 1u);
  EXPECT_EQ(a_inbox.closes()[0].text, "done");
}

TEST_F(MemTest, ADestroyedLinkIsNotToldButItsPeerIs) {
  Connect({});
  a.reset();
  net->Pump();
  EXPECT_TRUE(a_inbox.closes().empty());
  EXPECT_EQ(b_inbox.closes().size(), 1u);
}

TEST_F(MemTest, ALinkMayBeDestroyedInItsHandlerAndAnswerFromIt) {
  std::tie(a, b) = net->MakePair({});
  a->Start(a_inbox.Handlers());
  b->Start({.on_frame = [&](const FrameView&) -> Result<void> {
              EXPECT_TRUE(SendText(*b, "answer").has_value());
              b.reset();
              return {};
            },
            .on_close = {}});
  ASSERT_TRUE(SendText(*a, "question").has_value());
  EXPECT_EQ(net->Pump(), 2);
  EXPECT_EQ(a_inbox.frames().at(0).header, "answer");
  EXPECT_EQ(a_inbox.closes().size(), 1u);
}

TEST_F(MemTest, LimitsAndFaultsCloseTheLink) {
  Connect({});
  b->set_limits({.max_header_bytes = 4, .max_payload_bytes = 4});
  ASSERT_TRUE(SendText(*a, "four", "12345").has_value());
  net->Pump();
  ASSERT_EQ(b_inbox.closes().size(), 1u);
  EXPECT_EQ(b_inbox.closes()[0].code, FaultCode::kMalformed);
  EXPECT_EQ(a_inbox.closes().size(), 1u);
}

}  // namespace
}  // namespace linkcpp
