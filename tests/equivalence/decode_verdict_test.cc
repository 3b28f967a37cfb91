// The verdict of `linkcpp verify decode` on figures made up for it. With real runs: tests/e2e/verify_decode_test.py.
#include "cli/decode_verdict.h"

#include <gtest/gtest.h>

#include <set>

namespace linkcpp {
namespace {

class Verdict : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new ModelFile(*ModelFile::Open(LINKCPP_ASSETS "/austen-moe-q4km.gguf")); }
  static void TearDownTestSuite() { delete model_; }

  // Some logits differ; one worker of another kernel class than the host computed everything.
  static VerifyDecodeReport Differing() {
    VerifyDecodeReport report;
    report.pairs = report.pairs_by_workers = 8;
    report.nmse = 1e-4;
    report.kl_mean = 1e-4;
    report.workers = {{.node_id = "n", .name = "w", .device = "CPU", .kernel_class = "other", .pairs = 8}};
    return report;
  }
  static Result<LogitComparison> NeverAsked(double, std::uint64_t) {
    ADD_FAILURE() << "the bound is not wanted";
    return LogitComparison();
  }
  static std::string Of(VerifyDecodeReport report, const ShakenRun& shaken = NeverAsked) {
    EXPECT_TRUE(JudgeDecode(*model_, shaken, report).has_value());
    EXPECT_NE(report.why, "");
    return report.verdict;
  }
  // Runs whose logits are off by `offset` of their size, the more the higher the seed.
  static ShakenRun OffBy(float offset) {
    return [offset](double, std::uint64_t seed) -> Result<LogitComparison> {
      LogitComparison comparison;
      const std::vector<float> alone{1, -1};
      const std::vector<float> with{1 + offset * static_cast<float>(seed), -1};
      comparison.Add(alone, with);
      return comparison;
    };
  }

  static inline const ModelFile* model_ = nullptr;
};

TEST_F(Verdict, NothingComputedIsNothingVerified) {
  VerifyDecodeReport report = Differing();
  report.bit_identical = true;
  report.pairs_by_workers = 0;
  EXPECT_EQ(Of(report), "not-computed");
  report.pairs = 0;
  EXPECT_EQ(Of(report), "not-computed");
}

TEST_F(Verdict, WhatNeedsNoBound) {
  VerifyDecodeReport report = Differing();
  report.not_finite = 1;
  EXPECT_EQ(Of(report), "outside-bound");
  report = Differing();
  report.workers[0].same_class = true;
  EXPECT_EQ(Of(report), "outside-bound") << "its own class must have its bits";
  report.bit_identical = true;
  EXPECT_EQ(Of(report), "bit-identical");
}

TEST_F(Verdict, AWorkerOfAnotherClassThatComputedNothingExcusesNothing) {
  VerifyDecodeReport report = Differing();
  report.workers[0].same_class = true;
  report.workers.push_back({.node_id = "idle", .name = "idle", .device = "CPU", .kernel_class = "other"});
  EXPECT_EQ(Of(report), "outside-bound");
}

TEST_F(Verdict, AnotherClassIsHeldToTheWorstOfThreeShakenRuns) {
  EXPECT_EQ(Of(Differing(), OffBy(0.1f)), "inside-bound");
  EXPECT_EQ(Of(Differing(), OffBy(0.001f)), "outside-bound");
  VerifyDecodeReport report = Differing();
  std::set<std::uint64_t> seeds;
  double noise = 0;
  const auto shaken = [&](double power, std::uint64_t seed) {
    seeds.insert(seed);
    noise = power;
    return OffBy(0.1f)(power, seed);
  };
  ASSERT_TRUE(JudgeDecode(*model_, shaken, report).has_value());
  EXPECT_EQ(seeds.size(), 3u);
  EXPECT_NEAR(noise, 4 * 3.4e-4, 1e-9) << "Q8_K rows on both sides, errors opposite: (2 sqrt(a))^2";
  EXPECT_NEAR(report.bound->nmse, 0.3 * 0.3 / 2, 1e-6);
  report = Differing();
  report.kl_mean.reset();  // infinite
  EXPECT_EQ(Of(report, OffBy(0.1f)), "outside-bound");
}

TEST_F(Verdict, ARunThatFailsIsAFault) {
  VerifyDecodeReport report = Differing();
  const auto fails = [](double, std::uint64_t) -> Result<LogitComparison> {
    return Fail(FaultCode::kGone, "interrupted");
  };
  const auto judged = JudgeDecode(*model_, fails, report);
  ASSERT_FALSE(judged.has_value());
  EXPECT_EQ(judged.error().code, FaultCode::kGone);
}

}  // namespace
}  // namespace linkcpp
