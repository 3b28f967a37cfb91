#include "base/kept_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <format>

namespace linkcpp {
namespace {

TEST(KeptFile, AnAnswerIsFoundByItsQuestionOnly) {
  const std::string folder =
      std::format("{}/linkcpp-kept-{}", std::filesystem::temp_directory_path().string(), ::getpid());
  EXPECT_FALSE(FindKept(folder, "how fast?"));
  Keep(folder, "how fast?", "{\"gbs\": 12}");
  EXPECT_EQ(FindKept(folder, "how fast?"), "{\"gbs\": 12}");
  EXPECT_FALSE(FindKept(folder, "how slow?"));
  Keep(folder, "how fast?", "{}");
  EXPECT_EQ(FindKept(folder, "how fast?"), "{}");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST(KeptFile, WhereNothingCanBeKeptNothingIs) {
  for (const char* folder : {"", "/proc/linkcpp", "/dev/null/linkcpp"}) {
    Keep(folder, "a", "b");
    EXPECT_FALSE(FindKept(folder, "a")) << folder;
  }
}

}  // namespace
}  // namespace linkcpp
