#include "matrix/contenders.h"

#include <gtest/gtest.h>

namespace linkcpp {
namespace {

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
