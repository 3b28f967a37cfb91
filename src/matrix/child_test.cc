#include "matrix/child.h"

#include <gtest/gtest.h>

#include <chrono>

#include "matrix/contenders.h"

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

TEST(Contender, MustReportWhatItIsCalled) {
  Contender neon;
  neon.needs = {"NEON"};
  neon.forbids = {"DOTPROD"};
  EXPECT_EQ(WrongFeatures(neon, "NEON=1 ARM_FMA=1 DOTPROD=0"), "");
  EXPECT_NE(WrongFeatures(neon, "NEON=1 DOTPROD=1"), "");
  EXPECT_NE(WrongFeatures(neon, "AVX2=1"), "");
  EXPECT_NE(WrongFeatures(neon, ""), "");
}

}  // namespace
}  // namespace linkcpp
