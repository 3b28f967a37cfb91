#include "matrix/job.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace linkcpp {
namespace {

std::string TempPath(const char* name) {
  return (std::filesystem::temp_directory_path() / std::format("linkcpp-job-test-{}-{}", ::getpid(), name)).string();
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void Spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Two experts of 4 -> 4, F32, up alone; three rows, four pairs.
MatrixJob SmallJob() {
  MatrixTask task;
  task.recipe = {.steps = {Step{.op = StepOp::kProject, .projection = Projection::kUp}}};
  task.shape.projections[static_cast<std::size_t>(Projection::kUp)] = {.type = 0, .n_in = 4, .n_out = 4};
  task.n_in = task.n_out = 4;
  task.slots.resize(2);
  for (SlabBytes& slot : task.slots) slot[static_cast<std::size_t>(Projection::kUp)][0].resize(64, std::byte{7});
  task.rows.assign(12, 0.5f);
  task.pairs = {{0, 1}, {1, 0}, {1, 1}, {2, 0}};
  task.passages = {Passage{{0, 1, 2, 3}, {1, 2, 1}}, Passage{{2, 0, 3, 1}, {2, 2}}, Passage{{0, 1, 2, 3}, {4}}};
  return {.tasks = {task}};
}

class JobFile : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(WriteJob(SmallJob(), path_).has_value()); }
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string path_ = TempPath("job");
};

TEST_F(JobFile, ComesBackAsItWas) {
  const auto read = ReadJob(path_);
  ASSERT_TRUE(read.has_value()) << read.error().text;
  const MatrixTask task = SmallJob().tasks[0];
  const MatrixTask& again = read->tasks.at(0);
  EXPECT_EQ(again.recipe, task.recipe);
  EXPECT_EQ(again.shape, task.shape);
  EXPECT_EQ(again.slots, task.slots);
  EXPECT_EQ(again.rows, task.rows);
  for (std::size_t p = 0; p < kPassages; ++p) {
    EXPECT_EQ(again.passages[p].order, task.passages[p].order);
    EXPECT_EQ(again.passages[p].sizes, task.passages[p].sizes);
  }
}

TEST_F(JobFile, EveryBeginningOfItIsRefused) {
  const std::string whole = Slurp(path_);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    Spill(path_, whole.substr(0, n));
    const auto read = ReadJob(path_);
    ASSERT_FALSE(read.has_value()) << n;
    EXPECT_EQ(read.error().code, FaultCode::kMalformed);
  }
  Spill(path_, whole + "x");
  EXPECT_FALSE(ReadJob(path_).has_value());
}

TEST_F(JobFile, NoByteThatIsWrongAsksForMoreMemoryThanTheFileHas) {
  const std::string whole = Slurp(path_);
  for (std::size_t at = 8; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(0xff);
    Spill(path_, bytes);
    (void)ReadJob(path_);  // some of these are jobs too; none may crash or take gigabytes
  }
}

TEST_F(JobFile, PassagesMustHaveEveryPairOnce) {
  for (const Passage& wrong : {Passage{{0, 1, 2, 2}, {4}}, Passage{{0, 1, 2}, {3}}, Passage{{0, 1, 2, 4}, {4}},
                               Passage{{0, 1, 2, 3}, {3}}, Passage{{0, 1, 2, 3}, {4, 0}}}) {
    MatrixJob job = SmallJob();
    job.tasks[0].passages[kShuffled] = wrong;
    ASSERT_TRUE(WriteJob(job, path_).has_value());
    EXPECT_FALSE(ReadJob(path_).has_value());
  }
}

TEST(AnswerFile, MustHaveTheNumbersThatTheJobAsksFor) {
  const MatrixJob job = SmallJob();
  const std::string path = TempPath("answer");
  MatrixAnswer answer{.kernel_class = "k", .device = "d", .features = "F=1", .tasks = {TaskAnswer{}}};
  for (auto& values : answer.tasks[0].values) values.assign(16, 1.5f);
  ASSERT_TRUE(WriteAnswer(answer, path).has_value());
  const auto read = ReadAnswer(job, path);
  ASSERT_TRUE(read.has_value()) << read.error().text;
  EXPECT_EQ(read->features, "F=1");
  EXPECT_EQ(read->tasks[0].values, answer.tasks[0].values);

  answer.tasks[0].values[kOneBatch].pop_back();
  ASSERT_TRUE(WriteAnswer(answer, path).has_value());
  EXPECT_FALSE(ReadAnswer(job, path).has_value());
  answer.tasks[0].fault = "device x can not";
  ASSERT_TRUE(WriteAnswer(answer, path).has_value());
  EXPECT_TRUE(ReadAnswer(job, path).has_value()) << "a task with a fault needs no numbers";
  answer.tasks.emplace_back();
  ASSERT_TRUE(WriteAnswer(answer, path).has_value());
  EXPECT_FALSE(ReadAnswer(job, path).has_value());
  std::filesystem::remove(path);
}

TEST(JobFiles, WhatIsNotThereIsNamed) {
  const auto read = ReadJob("/no/such/job");
  ASSERT_FALSE(read.has_value());
  EXPECT_NE(read.error().text.find("/no/such/job"), std::string::npos);
  EXPECT_FALSE(WriteJob(SmallJob(), "/no/such/folder/job").has_value());
}

}  // namespace
}  // namespace linkcpp
