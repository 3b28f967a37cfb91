// One group of the report: every row that answered against the oracle, and each against each other.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "matrix/compare.h"
#include "matrix/report.h"

namespace linkcpp {

// A row that has answered, borrowed.
struct AnsweredRow {
  std::string id;
  KernelKind kind = KernelKind::kCpu;
  const MatrixAnswer* answer = nullptr;
};

// kRefused: as Judge. A row that refused a task of the group, or answered none of its pairs, has a fault there instead.
Result<GroupReport> JudgeGroup(Judge& judge, const MatrixJob& job, std::span<const MatrixGroup> groups,
                               std::size_t index, std::span<const AnsweredRow> rows);

}  // namespace linkcpp
