#include "worker/dispatcher.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>

#include "worker/test_stack.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kEmbd = 32;
constexpr LayerId kLayer{3};

class Port final : public ReplyPort {
 public:
  struct Answer {
    Message message;
    std::vector<std::byte> payload;
  };
  void Send(std::span<const std::byte> header, std::span<const std::byte> payload) override {
    const std::lock_guard lock(mutex_);
    answers_.push_back({DecodeMessage(header, payload.size()).value(), {payload.begin(), payload.end()}});
    news_.notify_all();
  }
  std::uint64_t max_payload_bytes() const override { return max_payload; }

  Answer Wait(std::size_t number) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(news_.wait_for(lock, 10s, [&] { return answers_.size() > number; })) << "no answer " << number;
    return answers_.at(number);
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return answers_.size();
  }
  std::uint64_t max_payload = 1 << 20;

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<Answer> answers_;
};

class DispatcherTest : public testing::Test {
 protected:
  DispatcherTest() : rack(FakeStack::Factory(behaviour)) {
    EXPECT_TRUE(rack.Prepare(kLayer, FakeShape(kEmbd), 4));
    EXPECT_TRUE(rack.Load({kLayer, ExpertId(7)}, FakeSlabs(2).slabs));   // expert 7 doubles
    EXPECT_TRUE(rack.Load({kLayer, ExpertId(9)}, FakeSlabs(10).slabs));  // expert 9 times ten
  }

  static DispatchMessage Ask(std::uint64_t id, std::vector<PairMessage> pairs, std::uint32_t n_rows = 2) {
    DispatchMessage ask;
    ask.id = id;
    ask.layer = kLayer;
    ask.recipe = Recipe::Swiglu();
    ask.n_rows = n_rows;
    ask.row_len = kEmbd;
    ask.pairs = std::move(pairs);
    return ask;
  }
  // Row r holds r + 1 everywhere.
  static std::vector<float> Rows(std::uint32_t n_rows = 2) {
    std::vector<float> rows;
    for (std::uint32_t r = 0; r < n_rows; ++r) rows.insert(rows.end(), kEmbd, static_cast<float>(r + 1));
    return rows;
  }
  static float First(const Port::Answer& answer, std::size_t row) {
    float value = 0;
    std::memcpy(&value, answer.payload.data() + row * kEmbd * sizeof value, sizeof value);
    return value;
  }

  FakeStack::Behaviour behaviour;
  Rack rack;
  NullLog log;
  std::shared_ptr<Port> port = std::make_shared<Port>();
};

TEST_F(DispatcherTest, AnswersPairsInTheOrderAsked) {
  Dispatcher dispatcher(rack, log);
  const auto rows = Rows();
  ASSERT_TRUE(dispatcher.Submit(Ask(5, {{1, 9}, {0, 7}, {1, 7}}), std::as_bytes(std::span(rows)), port));
  const auto answer = port->Wait(0);
  const auto& result = std::get<ResultMessage>(answer.message);
  EXPECT_EQ(result.id, 5u);
  EXPECT_EQ(result.n_pairs, 3u);
  EXPECT_EQ(result.row_len, kEmbd);
  EXPECT_EQ(First(answer, 0), 20);
  EXPECT_EQ(First(answer, 1), 2);
  EXPECT_EQ(First(answer, 2), 4);
  EXPECT_TRUE(dispatcher.WaitIdle(5s));
  EXPECT_EQ(dispatcher.counters().pairs, 3u);
  EXPECT_EQ(dispatcher.counters().dispatches, 1u);
}

TEST_F(DispatcherTest, NamesTheSliceItDoesNotHold) {
  Dispatcher dispatcher(rack, log);
  const auto rows = Rows();
  ASSERT_TRUE(dispatcher.Submit(Ask(1, {{0, 7}, {0, 8}}), std::as_bytes(std::span(rows)), port));
  auto ask = Ask(2, {{0, 7}});
  ask.layer = LayerId(4);
  ASSERT_TRUE(dispatcher.Submit(std::move(ask), std::as_bytes(std::span(rows)), port));
  const auto fault = std::get<FaultMessage>(port->Wait(0).message);
  EXPECT_EQ(fault.id, 1u);
  EXPECT_EQ(fault.code, FaultCode::kRefused);
  EXPECT_NE(fault.text.find("layer 3 expert 8"), std::string::npos) << fault.text;
  EXPECT_NE(std::get<FaultMessage>(port->Wait(1).message).text.find("layer 4"), std::string::npos);
  EXPECT_EQ(behaviour.runs, 0) << "never a part of a dispatch";
}

TEST_F(DispatcherTest, AWithdrawnSliceStillAnswersUntilItIsDropped) {
  Dispatcher dispatcher(rack, log);
  const auto rows = Rows();
  rack.Withdraw({kLayer, ExpertId(7)});
  ASSERT_EQ(rack.Ready().size(), 1u);
  EXPECT_EQ(rack.Ready()[0].experts, "9");
  ASSERT_TRUE(dispatcher.Submit(Ask(1, {{0, 7}}), std::as_bytes(std::span(rows)), port));
  EXPECT_TRUE(std::holds_alternative<ResultMessage>(port->Wait(0).message));
  rack.Drop({kLayer, ExpertId(7)});
  ASSERT_TRUE(dispatcher.Submit(Ask(2, {{0, 7}}), std::as_bytes(std::span(rows)), port));
  EXPECT_TRUE(std::holds_alternative<FaultMessage>(port->Wait(1).message));
}

TEST_F(DispatcherTest, ChecksARecipeOnceAndRefusesWhatTheStackRefuses) {
  Dispatcher dispatcher(rack, log);
  const auto rows = Rows();
  for (std::uint64_t id = 0; id < 5; ++id)
    ASSERT_TRUE(dispatcher.Submit(Ask(id, {{0, 7}}), std::as_bytes(std::span(rows)), port));
  port->Wait(4);
  EXPECT_EQ(behaviour.checks, 1);

  behaviour.refuse_recipes = true;
  auto other = Ask(9, {{0, 7}});
  other.recipe.steps.pop_back();
  ASSERT_TRUE(dispatcher.Submit(std::move(other), std::as_bytes(std::span(rows)), port));
  EXPECT_NE(std::get<FaultMessage>(port->Wait(5).message).text.find("needs a bias"), std::string::npos);
  EXPECT_EQ(behaviour.runs, 5);
}

TEST_F(DispatcherTest, RefusesRowsOfAnotherLength) {
  Dispatcher dispatcher(rack, log);
  const std::vector<float> rows(2 * 16);
  auto ask = Ask(1, {{0, 7}});
  ask.row_len = 16;
  ASSERT_TRUE(dispatcher.Submit(std::move(ask), std::as_bytes(std::span(rows)), port));
  EXPECT_EQ(std::get<FaultMessage>(port->Wait(0).message).code, FaultCode::kRefused);
  EXPECT_FALSE(dispatcher.Submit(Ask(2, {{0, 7}}), std::as_bytes(std::span(rows)), port))
      << "a payload that is too short";
}

TEST_F(DispatcherTest, RefusesAResultTheOtherSideWouldNotTake) {
  Dispatcher dispatcher(rack, log);
  const auto rows = Rows();
  port->max_payload = 3 * kEmbd * sizeof(float);
  ASSERT_TRUE(dispatcher.Submit(Ask(1, {{0, 7}, {0, 7}, {0, 7}, {0, 7}}), std::as_bytes(std::span(rows)), port));
  EXPECT_EQ(std::get<FaultMessage>(port->Wait(0).message).code, FaultCode::kRefused);
  ASSERT_TRUE(dispatcher.Submit(Ask(2, {{0, 7}, {0, 7}, {0, 7}}), std::as_bytes(std::span(rows)), port));
  EXPECT_TRUE(std::holds_alternative<ResultMessage>(port->Wait(1).message));
}

TEST_F(DispatcherTest, SpeaksEveryRowType) {
  Dispatcher dispatcher(rack, log);
  const auto rows = Rows();
  std::size_t n = 0;
  for (const RowType type : {RowType::kF32, RowType::kF16, RowType::kBf16, RowType::kQ8_0}) {
    std::vector<std::byte> payload(2 * RowBytes(type, kEmbd));
    PackRows(type, rows, kEmbd, payload);
    auto ask = Ask(n, {{1, 9}});
    ask.row_type = ask.reply_type = type;
    ASSERT_TRUE(dispatcher.Submit(std::move(ask), payload, port));
    const auto answer = port->Wait(n++);
    ASSERT_EQ(std::get<ResultMessage>(answer.message).row_type, type);
    std::vector<float> row(kEmbd);
    UnpackRows(type, answer.payload, kEmbd, row);
    EXPECT_NEAR(row[0], 20, 0.01) << static_cast<int>(type);
  }
}

TEST_F(DispatcherTest, SaysBusyBeyondItsQueueAndAnswersTheRest) {
  std::promise<void> go;
  auto gate = go.get_future().share();
  behaviour.on_run = [gate] { gate.wait(); };
  Dispatcher dispatcher(rack, log, {.max_jobs = 3});
  const auto rows = Rows();
  ASSERT_TRUE(dispatcher.Submit(Ask(0, {{0, 7}}), std::as_bytes(std::span(rows)), port));
  std::size_t accepted = 1, busy = 0;
  for (std::uint64_t id = 1; id < 20; ++id) {
    const auto queued = dispatcher.Submit(Ask(id, {{0, 7}}), std::as_bytes(std::span(rows)), port);
    if (queued) {
      ++accepted;
    } else {
      EXPECT_EQ(queued.error().code, FaultCode::kBusy);
      ++busy;
    }
  }
  EXPECT_EQ(busy, 20 - accepted);
  EXPECT_GE(accepted, 3u);
  EXPECT_LE(accepted, 4u);  // one running and three waiting
  EXPECT_FALSE(dispatcher.WaitIdle(20ms));
  go.set_value();
  EXPECT_TRUE(dispatcher.WaitIdle(5s));
  EXPECT_EQ(port->size(), accepted) << "each exactly once";
}

TEST_F(DispatcherTest, BoundsTheBytesItQueuesButTakesABigOneAlone) {
  std::promise<void> go;
  auto gate = go.get_future().share();
  std::promise<void> running;
  std::atomic<bool> first{true};
  behaviour.on_run = [&, gate] {
    if (first.exchange(false)) running.set_value();
    gate.wait();
  };
  Dispatcher dispatcher(rack, log, {.max_queued_bytes = 100 * kEmbd * sizeof(float)});
  const auto big = Rows(200);
  ASSERT_TRUE(dispatcher.Submit(Ask(0, {{0, 7}}, 200), std::as_bytes(std::span(big)), port));
  running.get_future().wait();
  ASSERT_TRUE(dispatcher.Submit(Ask(1, {{0, 7}}, 200), std::as_bytes(std::span(big)), port)) << "nothing else waits";
  const auto rows = Rows();
  EXPECT_FALSE(dispatcher.Submit(Ask(2, {{0, 7}}), std::as_bytes(std::span(rows)), port));
  go.set_value();
  EXPECT_TRUE(dispatcher.WaitIdle(5s));
  EXPECT_EQ(port->size(), 2u);
}

TEST_F(DispatcherTest, ANewStackTakesOverWithoutAGap) {
  Dispatcher dispatcher(rack, log);
  const auto rows = Rows();
  ASSERT_TRUE(rack.Prepare(kLayer, FakeShape(kEmbd), 8));
  ASSERT_TRUE(rack.Load({kLayer, ExpertId(7)}, FakeSlabs(2).slabs));
  ASSERT_TRUE(dispatcher.Submit(Ask(0, {{0, 9}}), std::as_bytes(std::span(rows)), port));
  EXPECT_EQ(First(port->Wait(0), 0), 10) << "the old stack answers until the new one is complete";
  rack.Commit(kLayer);
  EXPECT_EQ(rack.Slots(kLayer), 8u);
  EXPECT_EQ(behaviour.alive, 1) << "and is freed then";
  ASSERT_TRUE(dispatcher.Submit(Ask(1, {{0, 7}}), std::as_bytes(std::span(rows)), port));
  EXPECT_EQ(First(port->Wait(1), 0), 2);
}

}  // namespace
}  // namespace linkcpp
