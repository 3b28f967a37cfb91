#include "wire/ticket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/rng.h"

namespace linkcpp {
namespace {

constexpr std::int64_t kNow = 1'800'000'000;

Ticket SomeTicket() {
  return {"node-7", "backbone-3", std::string(64, 'a'), kNow + 300};
}

FaultCode CodeOf(const Result<Ticket>& result) {
  return result.has_value() ? FaultCode{} : result.error().code;
}

TEST(Ticket, OpensWithTheKeyThatSignedIt) {
  const TicketKeys keys = MakeTicketKeys();
  const auto ticket = OpenTicket(SignTicket(SomeTicket(), keys.secret_key), keys.public_key, kNow);
  ASSERT_TRUE(ticket.has_value()) << ticket.error().text;
  EXPECT_EQ(ticket->node_id, "node-7");
  EXPECT_EQ(ticket->backbone_id, "backbone-3");
  EXPECT_EQ(ticket->model_id, std::string(64, 'a'));
  EXPECT_EQ(ticket->expires_unix_s, kNow + 300);
}

TEST(Ticket, IsRefusedUnderAnotherKey) {
  const TicketKeys keys = MakeTicketKeys(), others = MakeTicketKeys();
  EXPECT_EQ(CodeOf(OpenTicket(SignTicket(SomeTicket(), keys.secret_key), others.public_key, kNow)),
            FaultCode::kRefused);
}

TEST(Ticket, ExpiresAfterAMinuteOfClockSkew) {
  const TicketKeys keys = MakeTicketKeys();
  const std::string text = SignTicket(SomeTicket(), keys.secret_key);
  EXPECT_TRUE(OpenTicket(text, keys.public_key, kNow + 300 + 60).has_value());
  const auto late = OpenTicket(text, keys.public_key, kNow + 300 + 61);
  EXPECT_EQ(CodeOf(late), FaultCode::kRefused);
  EXPECT_THAT(late.error().text, testing::HasSubstr("expired 61 s ago"));
}

TEST(Ticket, ExtremeTimesDoNotOverflow) {
  const TicketKeys keys = MakeTicketKeys();
  Ticket ticket = SomeTicket();
  ticket.expires_unix_s = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(CodeOf(OpenTicket(SignTicket(ticket, keys.secret_key), keys.public_key, kNow)), FaultCode::kRefused);
  ticket.expires_unix_s = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(OpenTicket(SignTicket(ticket, keys.secret_key), keys.public_key, kNow).has_value());
}

TEST(Ticket, AnyChangedCharacterIsRefusedOrMalformed) {
  const TicketKeys keys = MakeTicketKeys();
  const std::string good = SignTicket(SomeTicket(), keys.secret_key);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = bad[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(OpenTicket(bad, keys.public_key, kNow).has_value()) << "character " << i;
    EXPECT_FALSE(OpenTicket(good.substr(0, i), keys.public_key, kNow).has_value()) << "cut at " << i;
  }
}

TEST(Ticket, RandomTextIsMalformed) {
  const TicketKeys keys = MakeTicketKeys();
  Rng rng(1);
  for (int trial = 0; trial < 500; ++trial) {
    std::string text(rng.Below(300), '\0');
    for (char& c : text) c = static_cast<char>(rng.Next());
    EXPECT_EQ(CodeOf(OpenTicket(text, keys.public_key, kNow)), FaultCode::kMalformed);
  }
  EXPECT_EQ(CodeOf(OpenTicket(std::string(1 << 20, 'A'), keys.public_key, kNow)), FaultCode::kMalformed);
}

TEST(Ticket, WrongKeysAreNamed) {
  const TicketKeys keys = MakeTicketKeys();
  EXPECT_EQ(SignTicket(SomeTicket(), "not a key"), "");
  EXPECT_EQ(SignTicket(SomeTicket(), keys.public_key), "");
  EXPECT_EQ(CodeOf(OpenTicket(SignTicket(SomeTicket(), keys.secret_key), "????", kNow)), FaultCode::kLocal);
  Ticket ticket = SomeTicket();
  ticket.node_id = std::string(256, 'x');
  EXPECT_EQ(SignTicket(ticket, keys.secret_key), "");
}

// Signed by an earlier build with a key that exists only here.
TEST(Ticket, AnEarlierReleasesTicketStillOpens) {
  constexpr std::string_view kPublic = "6rqREZiTEs/MAS7c2erj08G5p3SaqZUZloFuqro42vg=";
  constexpr std::string_view kText =
      "yyamlSBKZ5NqEBuFe0elwlv03nYnil0PtpM5UyRLe7PBiCYky1UqGYMFbmvBDV554cVvvZRAZH65us33sD9fCkxLVDEGAG5vZGUt"
      "NwoAYmFja2JvbmUtM0AAYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFh"
      "YWFhYSzTSWsAAAAA";
  const auto ticket = OpenTicket(kText, kPublic, kNow);
  ASSERT_TRUE(ticket.has_value()) << ticket.error().text;
  EXPECT_EQ(ticket->node_id, "node-7");
  EXPECT_EQ(ticket->expires_unix_s, kNow + 300);
}

}  // namespace
}  // namespace linkcpp
