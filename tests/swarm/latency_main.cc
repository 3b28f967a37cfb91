// How long a layer takes beyond the computing itself: a worker in a process of its own on loopback that computes for a
// given time, and how spinning before blocking changes that.
//   swarm_latency [COMPUTE_US...]      default: 0 200 1000
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "net/tcp.h"
#include "swarm/swarm.h"
#include "wire/messages.h"

namespace linkcpp {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kRow = 3072;  // the 122B's
constexpr int kPairs = 8;

// Two computing threads, as a worker on this machine would have, busy for the time given.
void Burn(microseconds time) {
  const auto end = steady_clock::now() + time;
  while (steady_clock::now() < end) {
  }
}

[[noreturn]] void RunWorker(const std::string& address, microseconds compute, int threads) {
  NullLog log;
  const auto net = TcpNet::Create(log);
  auto link = net->Dial(address, "", std::chrono::seconds(5)).value();
  std::vector<float> y(kPairs * kRow);
  link->Start({.on_frame = [&](const FrameView& frame) -> Result<void> {
                 const auto message = DecodeMessage(frame.header, frame.payload.size());
                 const auto* dispatch = std::get_if<DispatchMessage>(&*message);
                 if (dispatch == nullptr) return {};
                 std::vector<std::thread> helpers;
                 for (int i = 1; i < threads; ++i) helpers.emplace_back(Burn, compute);
                 Burn(compute);
                 for (auto& helper : helpers) helper.join();
                 const std::span<const std::byte> rows = std::as_bytes(std::span(y));
                 return link->Send(EncodeMessage(ResultMessage{dispatch->id, RowType::kF32, kPairs, kRow,
                                                               static_cast<std::uint32_t>(compute.count())}),
                                   std::span(&rows, 1));
               },
               .on_close = [](const Fault&) { _exit(0); }});
  const HoldingsMessage holdings{{{0, "0:8"}}};
  (void)link->Send(EncodeMessage(holdings), {});
  for (;;) pause();
}

void Measure(microseconds compute, int threads) {
  const std::vector<int> spins = {0, 20, 50, 200};
  std::vector<std::vector<double>> over(spins.size());
  NullLog log;
  SteadyClock clock;
  for (int round = 0; round < 8; ++round) {  // interleaved: the machine may be busy with other things
    for (std::size_t s = 0; s < spins.size(); ++s) {
      const auto net = TcpNet::Create(log);
      SwarmOptions options;
      options.allow_local = false;
      options.spin = microseconds(spins[s]);
      const auto swarm = Swarm::Create(options, nullptr, clock, log);
      const auto listener = net->Listen(
          "127.0.0.1:0", nullptr, [&](std::unique_ptr<Link> link) { swarm->AddWorker("w", "burn", std::move(link)); });
      const std::string address = (*listener)->address();
      const pid_t child = fork();
      if (child == 0) {
        execl("/proc/self/exe", "swarm_latency", "--worker", address.c_str(), std::to_string(compute.count()).c_str(),
              std::to_string(threads).c_str(), nullptr);
        _exit(1);
      }
      while (swarm->CoveredSlices() < 8) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::vector<float> x(kRow, 0.5f), y(kPairs * kRow);
      std::vector<Pair> pairs;
      for (std::uint16_t i = 0; i < kPairs; ++i) pairs.push_back({0, ExpertId(i)});
      for (int i = 0; i < 150; ++i) {
        const auto begin = steady_clock::now();
        if (!swarm->Compute(LayerId(0), Recipe::Swiglu(), x, kRow, pairs, y, kRow).has_value()) std::exit(1);
        const double us = std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count();
        if (i >= 20) over[s].push_back(us - static_cast<double>(compute.count()));
      }
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  for (std::size_t s = 0; s < spins.size(); ++s) {
    std::ranges::sort(over[s]);
    const auto at = [&](double share) {
      return over[s][static_cast<std::size_t>(share * static_cast<double>(over[s].size() - 1))];
    };
    std::printf("compute %5lld us x %d threads, spin %3d us: over it, quartiles %7.0f %7.0f %7.0f us, p95 %7.0f\n",
                static_cast<long long>(compute.count()), threads, spins[s], at(0.25), at(0.5), at(0.75), at(0.95));
  }
}

}  // namespace
}  // namespace linkcpp

int main(int argc, char** argv) {
  using namespace linkcpp;
  if (argc == 5 && std::string_view(argv[1]) == "--worker") {
    RunWorker(argv[2], std::chrono::microseconds(std::atoi(argv[3])), std::atoi(argv[4]));
  }
  std::vector<int> times = {0, 200, 1000};
  if (argc > 1) times.clear();
  for (int i = 1; i < argc; ++i) times.push_back(std::atoi(argv[i]));
  for (const int us : times) {
    for (const int threads : {1, 2}) Measure(std::chrono::microseconds(us), threads);
  }
}
