// Workers, a real coordinator and a real backbone's swarm in one process, over loopback.
#include "worker/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <thread>

#include "base/rng.h"
#include "coordinator/registry.h"
#include "coordinator/served_model.h"
#include "coordinator/server.h"
#include "coordinator/token_store.h"
#include "gguf/shard.h"
#include "kernel/expert_stack.h"
#include "swarm/backbone_session.h"
#include "swarm/swarm.h"
#include "worker/catalog.h"
#include "worker/test_stack.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

bool Soon(const std::function<bool()>& holds, std::chrono::seconds within = 30s) {
  const auto end = std::chrono::steady_clock::now() + within;
  while (std::chrono::steady_clock::now() < end) {
    if (holds()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return holds();
}

// A coordinator that can be stopped and started again: on the same port, with the same tokens, knowing nobody.
class TestCoordinator {
 public:
  TestCoordinator() {
    const std::string path = dir.path() + "/austen.gguf";
    std::filesystem::create_symlink(LINKCPP_ASSETS "/austen-moe-q4km.gguf", path);
    model = ServedModel::Load(path, dir.path(), {}).value();
    tokens = TokenStore::Open(dir.path() + "/tokens.db").value();
    token = tokens->New("test").value();
    Start();
  }
  ~TestCoordinator() { Stop(); }

  void Start() {
    RegistryOptions options;
    options.poll = 1s;
    registry = std::make_unique<Registry>(*model, keys, options, clock, log);
    ServerOptions server_options;
    server_options.listen = std::format("127.0.0.1:{}", port);
    server = CoordinatorServer::Start(server_options, *model, *registry, *tokens, log).value();
    port = server->port();
  }
  void Stop() {
    server.reset();
    registry.reset();
  }
  HttpEndpoint endpoint() const { return {std::format("http://127.0.0.1:{}", port), token.token, ""}; }

  TempDir dir;
  NullLog log;
  SteadyClock clock;
  std::unique_ptr<ServedModel> model;
  std::unique_ptr<TokenStore> tokens;
  TokenStore::NewToken token;
  TicketKeys keys = MakeTicketKeys();
  std::unique_ptr<Registry> registry;
  std::unique_ptr<CoordinatorServer> server;
  std::uint16_t port = 0;
};

// Silent, unless LINKCPP_LOG asks for more.
std::unique_ptr<LogSink> TestLog() {
  if (std::getenv("LINKCPP_LOG") != nullptr) return MakeStderrLog("test");
  return std::make_unique<NullLog>();
}

// A worker on its own thread.
class RunningWorker {
 public:
  RunningWorker(const TestCoordinator& coordinator, const std::string& cache, std::uint64_t memory_bytes,
                const std::function<void(WorkerOptions&)>& change = {}) {
    WorkerOptions options;
    options.coordinator = coordinator.endpoint();
    options.name = "w";
    options.memory_bytes = memory_bytes;
    options.cache_dir = cache;
    options.device = {.name = "cpu", .n_threads = 1, .backend_path = "", .spin_count = -1};
    if (change) change(options);
    auto made = Worker::Create(options, *log_, [this](const WorkerProgress& progress) {
      const std::lock_guard lock(mutex_);
      progress_ = progress;
    });
    EXPECT_TRUE(made) << made.error().text;
    worker_ = std::move(*made);
    outcome_ = std::async(std::launch::async, [this] { return worker_->Run(); });
  }
  ~RunningWorker() {
    if (outcome_.valid()) (void)Stop();
  }
  Result<void> Stop() {
    worker_->Stop();
    return outcome_.get();
  }
  // Of a worker that ends by itself.
  Result<void> End() {
    EXPECT_EQ(outcome_.wait_for(20s), std::future_status::ready);
    return Stop();
  }
  WorkerProgress progress() {
    const std::lock_guard lock(mutex_);
    return progress_;
  }
  bool Ready(std::uint64_t n_slices) {
    return Soon([&] { return progress().state == "ready" && progress().slices_ready == n_slices; });
  }

 private:
  const std::unique_ptr<LogSink> log_ = TestLog();
  std::mutex mutex_;
  WorkerProgress progress_;
  std::unique_ptr<Worker> worker_;
  std::future<Result<void>> outcome_;
};

// A backbone without local experts: what workers do not answer fails.
class TestBackbone {
 public:
  explicit TestBackbone(const TestCoordinator& coordinator) {
    BackboneOptions options;
    options.coordinator = coordinator.endpoint();
    options.program = "test";
    options.header_hash = coordinator.model->header_hash();
    const ServedModel& model = *coordinator.model;
    session =
        BackboneSession::Attach(
            options,
            [&model](const SlabProbe& probe) { return model.SlabHashOf(probe.layer, probe.expert, probe.tensor); },
            *swarm, log)
            .value();
  }
  NullLog log;
  SteadyClock clock;
  std::unique_ptr<Swarm> swarm = [this] {
    SwarmOptions options;
    options.allow_local = false;
    return Swarm::Create(options, nullptr, clock, log);
  }();
  std::unique_ptr<BackboneSession> session;
};

class WorkerTest : public testing::Test {
 protected:
  std::uint64_t n_slices() const {
    return coordinator.model->summary().n_moe_layers * coordinator.model->summary().n_experts;
  }

  // All pairs of `n_rows` rows and 4 experts each of every layer, bit for bit those of one stack with the whole layer.
  void ExpectRightAnswers(TestBackbone& backbone, std::uint32_t n_rows, std::uint64_t seed) {
    Rng rng(seed);
    std::vector<float> x(std::size_t{n_rows} * 256);
    for (float& value : x) value = static_cast<float>(rng.Uniform() - 0.5);
    std::vector<Pair> pairs;
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      const auto first = static_cast<std::uint16_t>(rng.Below(16));
      for (std::uint16_t i = 0; i < 4; ++i)
        pairs.push_back({row, ExpertId(static_cast<std::uint16_t>((first + 5 * i) % 16))});
    }
    for (const MoeLayer& layer : coordinator.model->model().moe_layers()) {
      std::vector<float> y(pairs.size() * 256), wanted(pairs.size() * 256);
      const auto done = backbone.swarm->Compute(layer.layer, Recipe::Swiglu(), x, 256, pairs, y, 256);
      ASSERT_TRUE(done) << done.error().text;
      std::vector<SlotPair> slots;
      for (const Pair& pair : pairs) slots.push_back({pair.row, pair.expert.value});
      ASSERT_TRUE(Whole(layer).Run(Recipe::Swiglu(), x, n_rows, slots, wanted));
      EXPECT_EQ(std::memcmp(y.data(), wanted.data(), y.size() * sizeof(float)), 0) << "layer " << layer.layer.value;
    }
  }

  // One stack with all experts of a layer, straight from the model file.
  ExpertStack& Whole(const MoeLayer& layer) {
    auto& stack = whole_[layer.layer];
    if (stack) return *stack;
    ExpertShape shape;
    for (const ExpertTensor& tensor : layer.tensors) {
      shape.projections[static_cast<std::size_t>(tensor.projection)] =
          ProjectionShape{.type = tensor.tensor->type,
                          .n_in = static_cast<std::uint32_t>(tensor.tensor->ne[0]),
                          .n_out = static_cast<std::uint32_t>(tensor.tensor->ne[1])};
    }
    stack = ExpertStack::Create(shape, layer.n_experts, *device_).value();
    for (std::uint16_t expert = 0; expert < layer.n_experts; ++expert) {
      ExpertSlabs slabs;
      std::vector<std::vector<std::byte>> bytes;
      for (const SlabRef& ref : coordinator.model->model().Slabs({layer.layer, ExpertId(expert)}).value()) {
        auto& slab = bytes.emplace_back(ref.size_bytes);
        EXPECT_TRUE(coordinator.model->model().ReadAt(ref.file, ref.offset, slab));
        slabs.projections[static_cast<std::size_t>(ref.projection)].weight = slab;
      }
      EXPECT_TRUE(stack->Load(expert, slabs));
    }
    return *stack;
  }

  NullLog log;
  // Before there are threads.
  const std::unique_ptr<Device> device_ =
      Device::Open({.name = "cpu", .n_threads = 1, .backend_path = "", .spin_count = -1}, log).value();
  TestCoordinator coordinator;
  TempDir cache;
  std::map<LayerId, std::unique_ptr<ExpertStack>> whole_;
};

TEST_F(WorkerTest, TwoWorkersHoldTheModelAndAnswerEveryPairToTheBit) {
  const std::uint64_t half = coordinator.model->summary().expert_bytes / 2 + (1 << 20);
  RunningWorker first(coordinator, cache.path() + "/1", half), second(coordinator, cache.path() + "/2", half);
  TestBackbone backbone(coordinator);
  ASSERT_TRUE(Soon([&] { return backbone.swarm->CoveredSlices() == n_slices(); }));
  EXPECT_LT(first.progress().slices_ready, n_slices());
  EXPECT_LE(first.progress().memory_used_bytes, half);
  ExpectRightAnswers(backbone, 1, 1);
  ExpectRightAnswers(backbone, 30, 2);
  EXPECT_TRUE(Soon([&] { return first.progress().pairs_computed + second.progress().pairs_computed == 4 * 31 * 4; }));
  EXPECT_GT(first.progress().pairs_computed, 0u);
  EXPECT_GT(second.progress().pairs_computed, 0u);
  const auto status = coordinator.registry->Status();
  EXPECT_EQ(status.slices_covered, n_slices());
}

TEST_F(WorkerTest, SlicesCanBeChosenByHand) {
  RunningWorker worker(coordinator, cache.path(), 1 << 30, [](WorkerOptions& options) {
    options.layers = "1:3";
    options.experts = "0:4,9";
  });
  ASSERT_TRUE(worker.Ready(10));
  ASSERT_TRUE(Soon([&] { return coordinator.registry->Status().nodes.at(0).slices_ready == 10; }));
  const auto ready = coordinator.registry->Status().nodes.at(0).ready;
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_EQ(ready[0].layer, 1);
  EXPECT_EQ(ready[0].experts, "0:4,9");
}

TEST_F(WorkerTest, ARestartDownloadsNothingAndAsksForTheSameSlices) {
  const std::uint64_t third = coordinator.model->summary().expert_bytes / 3;
  std::string before;
  {
    RunningWorker worker(coordinator, cache.path(), third);
    ASSERT_TRUE(Soon([&] { return worker.progress().state == "ready" && worker.progress().slices_ready > 0; }));
    EXPECT_GT(worker.progress().downloaded_bytes, 0u);
    ASSERT_TRUE(Soon(
        [&] { return coordinator.registry->Status().nodes.at(0).slices_ready == worker.progress().slices_ready; }));
    for (const LayerHoldings& row : coordinator.registry->Status().nodes.at(0).ready)
      before += std::format("{}:{} ", row.layer, row.experts);
    EXPECT_TRUE(worker.Stop());
  }
  EXPECT_TRUE(coordinator.registry->Status().nodes.empty()) << "it has said goodbye";
  RunningWorker again(coordinator, cache.path(), third);
  ASSERT_TRUE(Soon([&] { return again.progress().state == "ready" && again.progress().slices_ready > 0; }));
  EXPECT_EQ(again.progress().downloaded_bytes, 0u);
  std::string after;
  ASSERT_TRUE(
      Soon([&] { return coordinator.registry->Status().nodes.at(0).slices_ready == again.progress().slices_ready; }));
  for (const LayerHoldings& row : coordinator.registry->Status().nodes.at(0).ready)
    after += std::format("{}:{} ", row.layer, row.experts);
  EXPECT_EQ(after, before);
}

TEST_F(WorkerTest, KeepsServingWhileTheCoordinatorIsAwayAndJoinsAgain) {
  RunningWorker worker(coordinator, cache.path(), 1 << 30);
  TestBackbone backbone(coordinator);
  ASSERT_TRUE(Soon([&] { return backbone.swarm->CoveredSlices() == n_slices(); }));
  ASSERT_TRUE(worker.Ready(n_slices()));  // its figures lag behind what the backbone knows
  const std::uint64_t downloaded = worker.progress().downloaded_bytes;
  coordinator.Stop();
  ASSERT_TRUE(Soon([&] { return worker.progress().state == "reconnecting"; }));
  ExpectRightAnswers(backbone, 2, 3);
  coordinator.Start();
  ASSERT_TRUE(Soon([&] { return coordinator.registry->Status().slices_covered == n_slices(); }));
  ASSERT_TRUE(worker.Ready(n_slices()));
  EXPECT_EQ(worker.progress().downloaded_bytes, downloaded);
  EXPECT_EQ(worker.progress().error, "");
  // No moment without a holder: the link from before stays until the backbone is known again.
  for (int i = 0; i < 20; ++i) {
    ExpectRightAnswers(backbone, 1, 100 + static_cast<std::uint64_t>(i));
    std::this_thread::sleep_for(50ms);
  }
}

TEST_F(WorkerTest, WaitsForACoordinatorThatIsNotThereYet) {
  coordinator.Stop();
  RunningWorker worker(coordinator, cache.path(), 1 << 30);
  ASSERT_TRUE(Soon([&] { return worker.progress().state == "reconnecting"; }));
  EXPECT_NE(worker.progress().error, "");
  coordinator.Start();
  EXPECT_TRUE(worker.Ready(n_slices()));
}

TEST_F(WorkerTest, AWrongTokenEndsIt) {
  RunningWorker worker(coordinator, cache.path(), 1 << 30,
                       [](WorkerOptions& options) { options.coordinator.token = "wrong"; });
  const auto outcome = worker.End();
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().text, HasSubstr("the coordinator refused the token"));
  EXPECT_THAT(outcome.error().text, testing::Not(HasSubstr("wrong")));
}

TEST_F(WorkerTest, ARevokedTokenEndsIt) {
  RunningWorker worker(coordinator, cache.path(), 1 << 30);
  ASSERT_TRUE(worker.Ready(n_slices()));
  ASSERT_TRUE(coordinator.tokens->Revoke(coordinator.token.info.id));
  const auto outcome = worker.End();
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().text, HasSubstr("the coordinator refused the token"));
}

TEST_F(WorkerTest, AModelThatIsNotThereEndsIt) {
  RunningWorker worker(coordinator, cache.path(), 1 << 30, [](WorkerOptions& options) { options.model = "mixtral"; });
  const auto outcome = worker.End();
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().text, HasSubstr("mixtral"));
}

TEST_F(WorkerTest, ChoosingAnExpertThatIsNotThereEndsIt) {
  RunningWorker worker(coordinator, cache.path(), 1 << 30, [](WorkerOptions& options) { options.experts = "0:99"; });
  const auto outcome = worker.End();
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().text, HasSubstr("expert"));
}

TEST_F(WorkerTest, StopsWithinSecondsWhateverItIsDoing) {
  const auto seconds_to_stop = [](RunningWorker& worker) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(worker.Stop());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  {
    RunningWorker worker(coordinator, cache.path(), 1 << 30);  // at once
    EXPECT_LT(seconds_to_stop(worker), 4);
  }
  {
    RunningWorker worker(coordinator, cache.path(), 1 << 30);
    TestBackbone backbone(coordinator);
    ASSERT_TRUE(Soon([&] { return backbone.swarm->CoveredSlices() == n_slices(); }));
    EXPECT_LT(seconds_to_stop(worker), 4);  // with a backbone
  }
  EXPECT_TRUE(coordinator.registry->Status().nodes.empty());
  {
    coordinator.Stop();
    RunningWorker worker(coordinator, cache.path(), 1 << 30);
    ASSERT_TRUE(Soon([&] { return worker.progress().state == "reconnecting"; }));
    EXPECT_LT(seconds_to_stop(worker), 4);  // without a coordinator
  }
}

TEST_F(WorkerTest, WorkersShareACacheFolder) {
  RunningWorker first(coordinator, cache.path(), 1 << 30), second(coordinator, cache.path(), 1 << 30);
  EXPECT_TRUE(first.Ready(n_slices()));
  EXPECT_TRUE(second.Ready(n_slices()));
}

TEST(WorkerCreate, SaysWhatIsWrongHere) {
  NullLog log;
  TempDir dir;
  WorkerOptions options;
  options.coordinator = {"http://127.0.0.1:1", "t", ""};
  options.cache_dir = dir.path();
  options.device.name = "abacus0";
  auto worker = Worker::Create(options, log, {});
  ASSERT_FALSE(worker);
  EXPECT_THAT(worker.error().text, HasSubstr("abacus0"));
  options.device.name = "cpu";
  options.memory_bytes = 1ull << 49;
  worker = Worker::Create(options, log, {});
  ASSERT_FALSE(worker);
  EXPECT_THAT(worker.error().text, HasSubstr("this machine"));
  options.memory_bytes = 1 << 20;
  options.cache_dir = "/proc/cache";
  worker = Worker::Create(options, log, {});
  ASSERT_FALSE(worker);
  EXPECT_THAT(worker.error().text, HasSubstr("/proc/cache"));
}

}  // namespace
}  // namespace linkcpp
