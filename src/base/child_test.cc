#include "base/child.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <string_view>

namespace linkcpp {
namespace {

const auto kAlways = [] { return true; };

ChildCommand Shell(std::string script) {
  return {.argv = {"/bin/sh", "-c", std::move(script)}, .environment = {}};
}

TEST(Child, KeepsWhatItSaidAndHowItEnded) {
  const auto done = RunChild(Shell("echo out; echo one >&2; echo two >&2; exit 3"), kAlways);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, 3);
  EXPECT_EQ(done->out, "out\n");
  EXPECT_EQ(done->LastWords(), "two");
}

TEST(Child, MoreThanAPipeHoldsIsReadWhileItRuns) {
  const auto done = RunChild(Shell("i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789; "
                                   "i=$((i+1)); done; echo end >&2"),
                             kAlways);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, 0);
  EXPECT_GT(done->out.size(), 60000u);
}

TEST(Child, ASignalIsNamed) {
  const auto done = RunChild(Shell("kill -SEGV $$"), kAlways);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, 128 + 11);
  EXPECT_NE(done->LastWords().find("signal 11"), std::string::npos);
}

TEST(Child, OneThatHangsIsEnded) {
  ChildCommand command = Shell("exec sleep 600");
  command.timeout_s = 1;
  const auto done = RunChild(command, kAlways);
  ASSERT_TRUE(done.has_value());
  EXPECT_TRUE(done->timed_out);
  EXPECT_NE(done->LastWords().find("not done after"), std::string::npos);
}

TEST(Child, IsEndedWhenTheCallerStops) {
  const auto done = RunChild(Shell("exec sleep 600"), [] { return false; });
  ASSERT_TRUE(done.has_value());
  EXPECT_TRUE(done->stopped);
}

TEST(Child, VariablesAreSetAndRemoved) {
  ::setenv("LINKCPP_CHILD_TEST", "parent", 1);
  ChildCommand command = Shell("echo \"$LINKCPP_CHILD_TEST $LINKCPP_CHILD_NEW\"");
  command.environment = {{"LINKCPP_CHILD_TEST", ""}, {"LINKCPP_CHILD_NEW", "new"}};
  const auto done = RunChild(command, kAlways);
  ::unsetenv("LINKCPP_CHILD_TEST");
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->out, " new\n");
}

TEST(Child, AProgramThatIsNotThereIsNamed) {
  const auto done = RunChild({.argv = {"/no/such/program"}, .environment = {}}, kAlways);
  ASSERT_FALSE(done.has_value());
  EXPECT_NE(done.error().text.find("/no/such/program"), std::string::npos);
}

// Answers each line with the same in capitals; "die": ends with words; "sleep": never answers.
ChildCommand Echo() {
  return Shell(
      "while read line; do case $line in die) echo gone >&2; kill -ABRT $$;; sleep) exec sleep 600;; esac; "
      "echo \"$line\" | tr a-z A-Z; done");
}

TEST(AnsweringChild, AnswersLineByLine) {
  const auto child = AnsweringChild::Start(Echo());
  ASSERT_TRUE(child) << child.error().text;
  for (const char* question : {"one", "two", ""}) {
    const auto answer = (*child)->Ask(question, kAlways);
    ASSERT_TRUE(answer) << answer.error().text;
    EXPECT_EQ(answer->size(), std::string_view(question).size());
  }
  const std::string large(1 << 20, 'a');  // more than the socket holds at once
  const auto answer = (*child)->Ask(large, kAlways);
  ASSERT_TRUE(answer) << answer.error().text;
  EXPECT_TRUE(*answer == std::string(large.size(), 'A')) << answer->size();
}

TEST(AnsweringChild, OneThatEndsSaysHowAndIsAskedInVain) {
  const auto child = AnsweringChild::Start(Echo());
  ASSERT_TRUE(child && (*child)->Ask("one", kAlways));
  const auto dead = (*child)->Ask("die", kAlways);
  ASSERT_FALSE(dead);
  EXPECT_TRUE(dead.error().text.contains("signal 6") && dead.error().text.contains("gone")) << dead.error().text;
  EXPECT_EQ((*child)->signal(), SIGABRT);
  EXPECT_FALSE((*child)->Ask("one", kAlways));
}

TEST(AnsweringChild, OneThatFloodsItsErrorsOrClosesItsOutputIsEnded) {
  ChildCommand flood = Shell("exec yes flood >&2");
  flood.timeout_s = 1;
  const auto flooded = AnsweringChild::Start(flood).value()->Ask("one", kAlways);
  ASSERT_FALSE(flooded);
  EXPECT_TRUE(flooded.error().text.contains("not done after 1 s")) << flooded.error().text;
  const auto closed = AnsweringChild::Start(Shell("exec >&- <&-; exec sleep 600")).value();
  const auto silent = closed->Ask("one", kAlways);
  ASSERT_FALSE(silent);
  EXPECT_TRUE(silent.error().text.contains("closed its output")) << silent.error().text;
  EXPECT_EQ(closed->signal(), 0);
}

TEST(AnsweringChild, OneThatHangsIsEnded) {
  ChildCommand command = Echo();
  command.timeout_s = 1;
  const auto child = AnsweringChild::Start(command);
  ASSERT_TRUE(child);
  const auto hung = (*child)->Ask("sleep", kAlways);
  ASSERT_FALSE(hung);
  EXPECT_TRUE(hung.error().text.contains("not done after 1 s")) << hung.error().text;
  EXPECT_FALSE(AnsweringChild::Start(Echo()).value()->Ask("sleep", [] { return false; }));
  EXPECT_FALSE(AnsweringChild::Start({.argv = {"/no/such/program"}, .environment = {}}));
}

}  // namespace
}  // namespace linkcpp
