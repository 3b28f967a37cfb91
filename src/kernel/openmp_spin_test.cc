#include "kernel/openmp_spin.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace linkcpp {
namespace {

TEST(OpenMpSpin, TheEnvironmentsOwnChoiceStands) {
  const char* before = std::getenv("OMP_WAIT_POLICY");
  setenv("OMP_WAIT_POLICY", "passive", 1);
  EXPECT_EQ(LimitOpenMpSpin(5), SpinLimit::kAsIs);
  if (before == nullptr) unsetenv("OMP_WAIT_POLICY");
  EXPECT_EQ(LimitOpenMpSpin(-1), SpinLimit::kAsIs);
}

// The second half of the next test: means something only in the program that one starts.
TEST(OpenMpSpin, SecondStart) {
  const char* count = std::getenv("GOMP_SPINCOUNT");
  if (count == nullptr || std::string(count) != "4321") return;
  std::string name = "kernel_test";
  char* argv[] = {name.data(), nullptr};
  RestartWithOpenMpSpin(argv, 4321);  // comes back: no endless restarting
  EXPECT_EQ(LimitOpenMpSpin(1), SpinLimit::kAsIs);
}

TEST(OpenMpSpin, RestartsOnceWithTheLimit) {
  const auto restart = [] {
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    std::string name = "kernel_test";
    std::string filter = "--gtest_filter=OpenMpSpin.SecondStart";
    char* argv[] = {name.data(), filter.data(), nullptr};
    RestartWithOpenMpSpin(argv, 4321);
    std::_Exit(77);  // it came back
  };
  EXPECT_EXIT(restart(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace linkcpp
