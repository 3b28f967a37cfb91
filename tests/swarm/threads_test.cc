// A swarm over real TCP on loopback, with threads: workers answer from their own threads, die and come back while
// layers are computed and reports are read. Small enough to be run under ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <thread>

#include "net/tcp.h"
#include "swarm/data_port.h"
#include "swarm/swarm.h"
#include "swarm/test_worker.h"
#include "wire/ticket.h"

namespace linkcpp {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kIn = 64;
constexpr std::uint32_t kOut = 48;

// Dials the data port, holds some experts, answers from the transport's thread.
class TcpWorker {
 public:
  TcpWorker(TcpNet& net, const std::string& address, const std::string& node_id, const std::string& ticket,
            std::string experts) {
    auto link = net.Dial(address, "", milliseconds(2000));
    if (!link.has_value()) return;
    link_ = std::move(*link);
    const auto say = [raw = link_.get()](const Message& message, std::span<const std::byte> payload = {}) {
      (void)raw->Send(EncodeMessage(message), std::span(&payload, 1));
    };
    link_->Start({.on_frame = [this, say, experts = std::move(experts)](const FrameView& frame) -> Result<void> {
                    ASSIGN_OR_RETURN(const Message message, DecodeMessage(frame.header, frame.payload.size()));
                    if (std::holds_alternative<WelcomeMessage>(message)) {
                      say(HoldingsMessage{{{0, experts}}});
                    } else if (const auto* ping = std::get_if<PingMessage>(&message); ping != nullptr && !ping->reply) {
                      say(PingMessage{ping->nonce, true});
                    } else if (const auto* dispatch = std::get_if<DispatchMessage>(&message)) {
                      std::vector<float> x(std::size_t{dispatch->n_rows} * dispatch->row_len);
                      UnpackRows(dispatch->row_type, frame.payload, dispatch->row_len, x);
                      std::vector<float> y(dispatch->pairs.size() * kOut);
                      for (std::size_t i = 0; i < dispatch->pairs.size(); ++i) {
                        const PairMessage& pair = dispatch->pairs[i];
                        FakeExpert(dispatch->layer, ExpertId(pair.expert), std::span(x).subspan(pair.row * kIn, kIn),
                                   std::span(y).subspan(i * kOut, kOut));
                      }
                      say(ResultMessage{dispatch->id, RowType::kF32, static_cast<std::uint32_t>(dispatch->pairs.size()),
                                        kOut, 5},
                          std::as_bytes(std::span(y)));
                    }
                    return {};
                  },
                  .on_close = [](const Fault&) {}});
    say(HelloMessage{kProtocolVersion, node_id, "m0de1", "test", ticket});
  }

 private:
  std::unique_ptr<Link> link_;
};

TEST(ThreadsTest, WorkersComeAndGoWhileLayersAreComputed) {
  NullLog log;
  FakeLocal local;
  SteadyClock clock;
  const auto swarm = Swarm::Create({}, &local, clock, log);
  const std::shared_ptr<TcpNet> net = TcpNet::Create(log);
  const TicketKeys keys = MakeTicketKeys();
  auto port = DataPort::Open(
      net, "127.0.0.1:0",
      [&](std::string node, std::string kernel, std::unique_ptr<Link> link) {
        swarm->AddWorker(std::move(node), std::move(kernel), std::move(link));
      },
      clock, log);
  ASSERT_TRUE(port.has_value()) << port.error().text;
  (*port)->Admit({"b0", "m0de1", keys.public_key});
  const auto ticket = [&](const std::string& node) {
    return SignTicket(
        {node, "b0", "m0de1", std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()) + 60},
        keys.secret_key);
  };

  std::atomic<bool> stop = false;
  std::thread churn([&] {  // four workers, one of them is killed and replaced again and again
    const auto far = TcpNet::Create(log);
    std::vector<std::unique_ptr<TcpWorker>> workers(4);
    Rng rng(7);
    for (std::size_t i = 0; !stop; i = rng.Below(workers.size())) {
      const std::string node = "n" + std::to_string(i);
      if (rng.Below(2) == 0) workers[i].reset();  // else: a second link of the same node
      workers[i] =
          std::make_unique<TcpWorker>(*far, (*port)->address(), node, ticket(node), i % 2 == 0 ? "0:8" : "4:12");
      std::this_thread::sleep_for(milliseconds(2));
    }
  });
  std::thread watcher([&] {
    while (!stop) {
      swarm->Tick();
      (*port)->Tick();
      (void)swarm->Report();
      (void)swarm->CoveredSlices();
      std::this_thread::sleep_for(milliseconds(3));
    }
  });

  Rng rng(1);
  std::vector<float> expected(kOut);
  int wrong = 0, calls = 0;
  const auto end = std::chrono::steady_clock::now() + milliseconds(1500);
  for (; std::chrono::steady_clock::now() < end; ++calls) {
    const auto n_rows = static_cast<std::uint32_t>(calls % 16 == 0 ? 40 : 1);
    std::vector<float> x(n_rows * kIn);
    for (float& value : x) value = static_cast<float>(rng.Uniform());
    std::vector<Pair> pairs;
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      for (std::uint16_t expert = 0; expert < 14; expert += 2) pairs.push_back({row, ExpertId(expert)});
    }
    std::vector<float> y(pairs.size() * kOut, std::numeric_limits<float>::quiet_NaN());
    const auto done = swarm->Compute(LayerId(0), Recipe::Swiglu(), x, kIn, pairs, y, kOut);
    ASSERT_TRUE(done.has_value()) << done.error().text;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      FakeExpert(LayerId(0), pairs[i].expert, std::span(x).subspan(pairs[i].row * kIn, kIn), expected);
      wrong += !std::ranges::equal(std::span(y).subspan(i * kOut, kOut), expected);
    }
  }
  stop = true;
  churn.join();
  watcher.join();
  EXPECT_EQ(wrong, 0);
  const BackboneReport report = swarm->Report();
  std::printf("%d layers, %llu round trips, %llu pairs, %llu here, %llu moved\n", calls,
              static_cast<unsigned long long>(report.round_trips), static_cast<unsigned long long>(report.pairs),
              static_cast<unsigned long long>(report.pairs_local),
              static_cast<unsigned long long>(report.pairs_retried));
  EXPECT_GT(report.pairs, report.pairs_local);  // workers did take part
}

}  // namespace
}  // namespace linkcpp
