// llama-server's call and its process, with the shell in its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "coordinator/host_command.h"
#include "coordinator/host_process.h"
#include "coordinator/reach.h"
#include "coordinator/test_world.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

HostOptions Usual() {
  HostOptions options;
  options.binary = "/usr/bin/llama-server";
  options.model = "/m.gguf";
  options.api_host = "127.0.0.1";
  options.api_port = 8080;
  options.plugin = "/lib/libggml-linkcpp.so";
  options.coordinator = "http://127.0.0.1:8090";
  options.token = "lk_secret";
  options.data_listen = "127.0.0.1:0";
  options.local = "allow";
  return options;
}

TEST(HostCommand, TheTokenIsInTheEnvironmentAndNowhereElse) {
  const HostCommand command = MakeHostCommand(Usual(), {});
  EXPECT_EQ(command.environment.at("LINKCPP_TOKEN"), "lk_secret");
  EXPECT_EQ(command.environment.at("GGML_BACKEND_PATH"), "/lib/libggml-linkcpp.so");
  for (const std::string& argument : command.arguments) EXPECT_THAT(argument, Not(HasSubstr("lk_secret")));
  EXPECT_THAT(command.arguments, testing::ElementsAre("/usr/bin/llama-server", "-m", "/m.gguf", "--host", "127.0.0.1",
                                                      "--port", "8080", "--no-warmup"));
}

TEST(HostCommand, TheUsersArgumentsComeLastAndWin) {
  HostOptions options = Usual();
  options.user_arguments = {"-c", "4096"};
  EXPECT_EQ(MakeHostCommand(options, {}).arguments.back(), "4096");
}

bool SendsExpertsToUs(HostOptions options, std::vector<std::string> arguments,
                      std::vector<std::string> environment = {}) {
  options.user_arguments = std::move(arguments);
  return std::ranges::contains(MakeHostCommand(options, environment).arguments, "exps=LinkCPP");
}

TEST(HostCommand, OnAGpuTheExpertsAreSentToUs) {
  HostOptions options = Usual();
  EXPECT_TRUE(SendsExpertsToUs(options, {"-ngl", "99"}));
  EXPECT_TRUE(SendsExpertsToUs(options, {"--gpu-layers", "all"}));
  EXPECT_TRUE(SendsExpertsToUs(options, {}, {"LLAMA_ARG_N_GPU_LAYERS=12"}));
  EXPECT_FALSE(SendsExpertsToUs(options, {"-ngl", "99", "-ngl", "0"}));
  EXPECT_FALSE(SendsExpertsToUs(options, {}));
  EXPECT_FALSE(SendsExpertsToUs(options, {"-ngl", "99", "-ot", "exps=CPU"}));
  options.experts_are_planned = true;
  EXPECT_FALSE(SendsExpertsToUs(options, {"-ngl", "99"}));
  options.experts_are_planned = false;
  options.has_gpu = true;  // it would be used without being asked for
  EXPECT_TRUE(SendsExpertsToUs(options, {}));
  EXPECT_TRUE(SendsExpertsToUs(options, {"-ngl", "auto"}));
  EXPECT_FALSE(SendsExpertsToUs(options, {"-ngl", "0"}));
  EXPECT_FALSE(SendsExpertsToUs(options, {"--device", "none"}));
  EXPECT_FALSE(SendsExpertsToUs(options, {}, {"LLAMA_ARG_OVERRIDE_TENSOR=ffn_.*_exps=CPU"}));
}

TEST(HostCommand, AGpuIsFoundInTheListOfDevices) {
  EXPECT_FALSE(ListsGpu(std::vector<std::string>{"load_backend: loaded CPU", "Available devices:", "  (none)"}));
  EXPECT_TRUE(
      ListsGpu(std::vector<std::string>{"Available devices:", "  Vulkan0: llvmpipe (24105 MiB, 19848 MiB free)"}));
  EXPECT_FALSE(ListsGpu(std::vector<std::string>{"  error: no such option"}));
  EXPECT_FALSE(ListsGpu({}));
}

TEST(HostCommand, ThreadsSpinShortlyUnlessTheUserTunesThem) {
  EXPECT_EQ(MakeHostCommand(Usual(), {}).environment.at("GOMP_SPINCOUNT"), "1000");
  for (const char* mine : {"OMP_NUM_THREADS=4", "GOMP_SPINCOUNT=7", "OMP_WAIT_POLICY=active"}) {
    EXPECT_FALSE(MakeHostCommand(Usual(), std::vector<std::string>{mine}).environment.contains("GOMP_SPINCOUNT"));
  }
}

TEST(HostCommand, AnotherPreloadIsKept) {
  HostOptions options = Usual();
  EXPECT_FALSE(MakeHostCommand(options, {}).environment.contains("LD_PRELOAD"));
  options.preload = "/lib/ours.so";
  EXPECT_EQ(MakeHostCommand(options, {}).environment.at("LD_PRELOAD"), "/lib/ours.so");
  EXPECT_EQ(MakeHostCommand(options, std::vector<std::string>{"LD_PRELOAD=theirs.so"}).environment.at("LD_PRELOAD"),
            "/lib/ours.so:theirs.so");
}

TEST(HostCommand, CoverageIsWaitedForOnlyWhenAsked) {
  HostOptions options = Usual();
  EXPECT_FALSE(MakeHostCommand(options, {}).environment.contains("LINKCPP_WAIT_S"));
  options.wait_s = 60;
  EXPECT_EQ(MakeHostCommand(options, {}).environment.at("LINKCPP_WAIT_S"), "60");
}

class HostProcessTest : public testing::Test {
 protected:
  Result<std::unique_ptr<HostProcess>> Shell(const std::string& script) {
    return HostProcess::Start({{"/bin/sh", "-c", script}, {{"LINKCPP_TEST", "from us"}}}, log_);
  }
  static std::string WaitForEnd(HostProcess& process) {
    for (int i = 0; i < 1000; ++i) {
      if (const auto how = process.Ended()) return *how;
      std::this_thread::sleep_for(20ms);
    }
    return "never";
  }
  TempFolder folder_;
  std::string log_ = folder_.path() + "/host.log";
};

TEST_F(HostProcessTest, ItsStatusAndLastWordsAreKept) {
  const auto process = Shell("for i in $(seq 100); do echo line $i; done; echo \"$LINKCPP_TEST\" >&2; exit 3").value();
  EXPECT_EQ(WaitForEnd(*process), "with status 3");
  ASSERT_EQ(process->LastLines().size(), 20u);
  EXPECT_EQ(process->LastLines().back(), "from us");
  EXPECT_EQ(process->LastLines().front(), "line 82");
  std::ifstream log(log_);
  std::string first;
  std::getline(log, first);
  EXPECT_EQ(first, "line 1");  // the file has all of them
}

TEST_F(HostProcessTest, ItStopsWhenAskedAndHasItsSignalsBack) {
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto process = Shell("sleep 100 & wait").value();
  process->Terminate();
  EXPECT_THAT(WaitForEnd(*process), HasSubstr("by signal 15"));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Whoever adopts an orphan may not have waited for it yet: dead is enough.
bool IsAlive(pid_t pid) {
  std::ifstream stat(std::format("/proc/{}/stat", pid));
  std::string line;
  return std::getline(stat, line) && line[line.rfind(')') + 2] != 'Z';
}

bool Dies(pid_t pid) {
  for (int i = 0; i < 200 && IsAlive(pid); ++i) std::this_thread::sleep_for(10ms);
  return !IsAlive(pid);
}

TEST_F(HostProcessTest, WhatIgnoresUsIsKilledWithTheObjectAndItsChildrenToo) {
  auto process = Shell("trap '' TERM; echo $$; sleep 100 & echo $!; wait; sleep 100").value();
  for (int i = 0; i < 500 && process->LastLines().size() < 2; ++i) std::this_thread::sleep_for(10ms);
  ASSERT_EQ(process->LastLines().size(), 2u);
  const pid_t grandchild = std::stoi(process->LastLines()[1]);
  process->Terminate();
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(process->Ended());
  process.reset();
  EXPECT_TRUE(Dies(grandchild));
}

TEST_F(HostProcessTest, WhatItLeavesBehindGoesWithIt) {
  const auto process = Shell("sleep 100 & echo $!").value();
  EXPECT_EQ(WaitForEnd(*process), "with status 0");
  ASSERT_EQ(process->LastLines().size(), 1u);
  EXPECT_TRUE(Dies(std::stoi(process->LastLines()[0])));
}

TEST_F(HostProcessTest, WhatIsNoProgramIsAFault) {
  const auto missing = HostProcess::Start({{"/nowhere/llama-server"}, {}}, log_);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().text, HasSubstr("/nowhere/llama-server"));
  EXPECT_FALSE(FindProgram("no-such-program-here"));
  EXPECT_TRUE(FindProgram("sh"));
}

TEST(Reach, AnAddressForOthersAndOneForUs) {
  EXPECT_EQ(OwnHost("0.0.0.0"), "127.0.0.1");
  EXPECT_EQ(OwnHost("192.0.2.1"), "192.0.2.1");
  EXPECT_EQ(ReachableHost("192.0.2.1"), "192.0.2.1");
  EXPECT_NE(ReachableHost("0.0.0.0"), "0.0.0.0");
  EXPECT_EQ(ControlUrl("::1", 80, ""), "http://[::1]:80");
  EXPECT_EQ(ControlUrl("h", 80, "ab"), "https://h:80#sha256=ab");
}

TEST(Reach, ATakenPortIsSeen) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(socket, 1), 0);
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  const HostPort taken{"127.0.0.1", ntohs(address.sin_port)};
  const auto outcome = CheckPortIsFree(taken);
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().text, HasSubstr(std::to_string(taken.port)));
  ::close(socket);
  EXPECT_TRUE(CheckPortIsFree(taken));
}

}  // namespace
}  // namespace linkcpp
