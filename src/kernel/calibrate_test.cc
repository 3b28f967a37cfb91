// Only what must hold on any machine, however busy: figures are there and finite. How fast they are is bench/'s to say.
#include "kernel/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/log.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kF32 = 0, kQ4K = 12;

TEST(Calibrate, MeasuresWhatItIsGiven) {
  NullLog log;
  const auto device = Device::Open({.name = "cpu", .n_threads = 2, .backend_path = ""}, log);
  ASSERT_TRUE(device) << device.error().text;
  const MatrixKind kinds[] = {
      {.type = kQ4K,
       .n_in = 256,
       .n_out = 256,
       .n_experts = 8,
       .n_used = 2,
       .stored_bytes = 1 << 20,
       .token_bytes = 1 << 16},
      {.type = kF32, .n_in = 256, .n_out = 64, .stored_bytes = 1 << 20, .token_bytes = 1 << 16}};
  const LayerShape shape{.n_embd = 256,
                         .n_head = 4,
                         .n_head_kv = 2,
                         .head_length = 64,
                         .n_experts = 8,
                         .n_used = 2,
                         .n_ff = 256,
                         .qk_norms = true,
                         .delta_length = 64,
                         .delta_key_heads = 2,
                         .delta_value_heads = 4,
                         .delta_taps = 4};
  const auto all = Calibrate(kinds, shape, **device, 0.05, 4 << 20);
  ASSERT_TRUE(all) << all.error().text;
  for (const double figure : {all->dense_gbs, all->expert_gbs}) {
    EXPECT_TRUE(std::isfinite(figure) && figure > 0) << figure;
  }
  // Differences of two times each: nothing is left of them when something else takes the cores.
  for (const double figure :
       {all->attention_seconds, all->router_seconds, all->graph_seconds, all->delta_net_seconds}) {
    EXPECT_TRUE(std::isfinite(figure) && figure >= 0) << figure;
  }
  const auto batch = CalibrateBatch(kinds, shape, **device, 0.05, 32);
  ASSERT_TRUE(batch) << batch.error().text;
  for (const double figure : {batch->dense_gbs, batch->expert_gbs, batch->attention_seconds, batch->router_seconds,
                              batch->step_seconds, batch->delta_net_seconds}) {
    EXPECT_TRUE(std::isfinite(figure) && figure > 0) << figure;
  }
  const auto dense_only = Calibrate(std::span(kinds).subspan(1), shape, **device, 0.05, 4 << 20);
  ASSERT_TRUE(dense_only);
  EXPECT_EQ(dense_only->expert_gbs, 0);
  const auto experts = CalibrateExperts(kinds, **device, 0.02, 4 << 20);
  ASSERT_TRUE(experts);
  EXPECT_GT(*experts, 0);
}

TEST(Calibrate, AWorkersBatchWhateverTheProjections) {
  NullLog log;
  const auto device = Device::Open({.name = "cpu", .n_threads = 1, .backend_path = ""}, log);
  ASSERT_TRUE(device) << device.error().text;
  const ProjectionShape wide{.type = kQ4K, .n_in = 256, .n_out = 512}, up{.type = kQ4K, .n_in = 256, .n_out = 256};
  for (const ExpertShape& shape :
       {ExpertShape{{up, up, up, std::nullopt}}, ExpertShape{{std::nullopt, std::nullopt, up, wide}},
        ExpertShape{{std::nullopt, up, up, std::nullopt}}}) {
    const auto a_pair = CalibrateWorkerBatch(shape, 8, 2, 1 << 20, **device, 0.01, 32);
    ASSERT_TRUE(a_pair) << a_pair.error().text;
    EXPECT_TRUE(std::isfinite(*a_pair) && *a_pair > 0) << *a_pair;
  }
  const ExpertShape whole{{up, up, up, std::nullopt}};
  const auto token = CalibrateWorkerToken(whole, 8, 2, 1 << 20, **device, 0.01, 1e-4);
  ASSERT_TRUE(token) << token.error().text;
  EXPECT_TRUE(std::isfinite(*token) && *token > 0) << *token;
  EXPECT_FALSE(
      CalibrateWorkerToken(ExpertShape{{up, up, std::nullopt, std::nullopt}}, 8, 2, 1 << 20, **device, 0.01, 0));
  const auto none =
      CalibrateWorkerBatch(ExpertShape{{up, up, std::nullopt, std::nullopt}}, 8, 2, 1 << 20, **device, 0.01, 32);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, FaultCode::kRefused);
}

}  // namespace
}  // namespace linkcpp
