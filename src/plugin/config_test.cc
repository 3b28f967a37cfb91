#include "plugin/config.h"

#include <gtest/gtest.h>

#include <map>

namespace linkcpp {
namespace {

Result<PluginConfig> Read(std::map<std::string, std::string> environment) {
  return ReadConfig([&](const char* name) -> std::optional<std::string> {
    const auto at = environment.find(name);
    return at == environment.end() ? std::nullopt : std::optional(at->second);
  });
}

TEST(PluginConfig, NothingSetMeansLocalOnlyOnLoopback) {
  const auto config = Read({});
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(config->coordinator, "");
  EXPECT_EQ(config->data_listen, "127.0.0.1:0");
  EXPECT_TRUE(config->allow_local);
  EXPECT_TRUE(config->canaries);
}

TEST(PluginConfig, ReadsSizesAndTimes) {
  const auto config =
      Read({{"LINKCPP_LOCAL_MEMORY", "1.5GiB"}, {"LINKCPP_DEADLINE_MS", "250"}, {"LINKCPP_LOCAL", "deny"}});
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(config->local_memory_bytes, 1610612736u);
  EXPECT_EQ(config->deadline.count(), 250);
  EXPECT_FALSE(config->allow_local);
}

TEST(PluginConfig, AWrongValueNamesItsVariable) {
  for (const auto& [name, value] : std::map<std::string, std::string>{{"LINKCPP_LOCAL", "maybe"},
                                                                      {"LINKCPP_LOCAL_MEMORY", "64 parsecs"},
                                                                      {"LINKCPP_WAIT_S", "-1"},
                                                                      {"LINKCPP_THREADS", "0"},
                                                                      {"LINKCPP_CANARIES", "some"},
                                                                      {"LINKCPP_SPOT_CHECKS", "2"},
                                                                      {"LINKCPP_CHECK_CPU", "-0.1"},
                                                                      {"LINKCPP_DEADLINE_MS", "soon"}}) {
    const auto config = Read({{name, value}});
    ASSERT_FALSE(config.has_value()) << name;
    EXPECT_NE(config.error().text.find(name + "=" + value), std::string::npos) << config.error().text;
  }
}

}  // namespace
}  // namespace linkcpp
