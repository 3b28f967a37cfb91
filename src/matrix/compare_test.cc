// Answers of workers that hold some of the experts only. What whole answers look like:
// tests/equivalence/matrix_test.py.
#include "matrix/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "matrix/judge_group.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kLength = 4;

// y = weights x, one expert that doubles a row and one that triples it; two rows through both.
class PartialAnswers : public testing::Test {
 protected:
  PartialAnswers() {
    MatrixTask task;
    task.recipe = {.steps = {Step{.op = StepOp::kProject, .projection = Projection::kUp}}};
    task.shape.projections[static_cast<std::size_t>(Projection::kUp)] = {.type = 0, .n_in = kLength, .n_out = kLength};
    task.n_in = task.n_out = kLength;
    task.slots.resize(2);
    task.rows = {1, 2, 3, 4, 5, 6, 7, 8};
    task.pairs = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
    task.passages = {Passage{{0, 1, 2, 3}, {2, 2}}, Passage{{2, 0, 3, 1}, {1, 3}}, Passage{{0, 1, 2, 3}, {4}}};
    JudgedTask judged;
    for (const float factor : {2.0f, 3.0f}) {
      OracleMatrix diagonal{.layout = *LayoutOf(0), .n_in = kLength, .n_out = kLength};
      diagonal.weights.resize(kLength * kLength);
      for (std::size_t i = 0; i < kLength; ++i) diagonal.weights[i * kLength + i] = factor;
      judged.experts.emplace_back().projections[static_cast<std::size_t>(Projection::kUp)] = diagonal;
    }
    judged.sums = {{0, 0, 0.25}, {0, 1, 0.75}, {1, 2, 0.5}, {1, 3, 0.5}};
    job_.tasks = {task};
    groups_ = {MatrixGroup{.name = "g", .types = {}, .rows = {}, .tasks = {judged}}};
  }

  // Right but for what is absent, where there is garbage.
  MatrixAnswer Answer(std::vector<bool> absent) const {
    const MatrixTask& task = job_.tasks[0];
    TaskAnswer own{.fault = {}, .values = {}, .seconds = 0, .absent = std::move(absent)};
    for (auto& values : own.values) {
      for (std::uint32_t p = 0; p < task.pairs.size(); ++p) {
        for (std::uint32_t i = 0; i < kLength; ++i) {
          const float factor = own.Has(p) ? (task.pairs[p].slot == 0 ? 2.0f : 3.0f) : 1e9f;
          values.push_back(factor * task.rows[task.pairs[p].row * kLength + i]);
        }
      }
    }
    return {.kernel_class = "ggml/CPU/test", .device = {}, .features = {}, .tasks = {own}};
  }

  Result<GroupReport> Report(const MatrixAnswer& a, const MatrixAnswer& b) {
    Judge judge(job_, groups_, 1, [] { return true; });
    return JudgeGroup(judge, job_, groups_, 0,
                      std::vector<AnsweredRow>{{"a", KernelKind::kCpu, &a}, {"b", KernelKind::kCpu, &b}});
  }

  MatrixJob job_;
  std::vector<MatrixGroup> groups_;
};

TEST_F(PartialAnswers, OnlyWhatIsThereIsJudged) {
  const auto report = Report(Answer({}), Answer({false, true, false, true}));
  ASSERT_TRUE(report.has_value()) << report.error().text;
  for (const OracleFigures* passage :
       {&report->oracle[1].by_row, &report->oracle[1].shuffled, &report->oracle[1].one_batch}) {
    EXPECT_EQ(passage->pairs, 2u);
    EXPECT_TRUE(passage->inside);
    EXPECT_EQ(passage->max_abs, 0);
  }
  EXPECT_EQ(report->oracle[1].itself->pairs, 2u);
  EXPECT_EQ(report->between[0].figures.pairs, 2u);
  EXPECT_TRUE(report->between[0].figures.bit_identical);
  EXPECT_TRUE(report->Inside());
}

TEST_F(PartialAnswers, HalvesMeetInTheRoutersSumsOnly) {
  const auto report = Report(Answer({false, true, false, true}), Answer({true, false, true, false}));
  ASSERT_TRUE(report.has_value()) << report.error().text;
  const PairFigures& between = report->between[0].figures;
  EXPECT_EQ(between.pairs, 0u);
  EXPECT_FALSE(between.bit_identical) << "nothing was compared";
  EXPECT_FALSE(report->between[0].contradiction);
  EXPECT_DOUBLE_EQ(between.combined_cosine, 1);
}

TEST_F(PartialAnswers, ARowThatTheyDoNotHaveBetweenThemIsNoSum) {
  const auto report = Report(Answer({false, true, false, true}), Answer({false, true, false, true}));
  ASSERT_TRUE(report.has_value()) << report.error().text;
  EXPECT_LT(report->between[0].figures.combined_cosine, 0);
}

TEST_F(PartialAnswers, NoneAtAllIsAFaultNotAFigure) {
  const auto report = Report(Answer({}), Answer({true, true, true, true}));
  ASSERT_TRUE(report.has_value()) << report.error().text;
  EXPECT_NE(report->oracle[1].fault, "");
  EXPECT_TRUE(report->between.empty());
}

TEST_F(PartialAnswers, OneCpuClassAndOtherBitsIsAContradiction) {
  MatrixAnswer other = Answer({});
  other.tasks[0].values[kByRow][0] = std::nextafter(other.tasks[0].values[kByRow][0], 9.0f);
  EXPECT_FALSE(Report(Answer({}), other)->Inside());
  other.kernel_class = "ggml/CPU/another";
  EXPECT_TRUE(Report(Answer({}), other)->Inside()) << "one rounding is well inside the bound";
}

TEST_F(PartialAnswers, StopsWhenItIsToldTo) {
  Judge judge(job_, groups_, 2, [] { return false; });
  const auto figures = judge.AgainstOracle(0, KernelKind::kCpu, Answer({}), kByRow);
  ASSERT_FALSE(figures.has_value());
  EXPECT_EQ(figures.error().code, FaultCode::kGone);
}

}  // namespace
}  // namespace linkcpp
