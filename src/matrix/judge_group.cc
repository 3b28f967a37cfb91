#include "matrix/judge_group.h"

namespace linkcpp {
namespace {

std::string FaultIn(const MatrixJob& job, const MatrixGroup& group, const MatrixAnswer& answer) {
  bool has_any = false;
  for (const JudgedTask& judged : group.tasks) {
    const TaskAnswer& task = answer.tasks[judged.task];
    if (!task.fault.empty()) return task.fault;
    for (std::uint32_t pair = 0; pair < job.tasks[judged.task].pairs.size(); ++pair) {
      has_any = has_any || task.Has(pair);
    }
  }
  return has_any ? "" : "it holds none of these experts";
}

}  // namespace

Result<GroupReport> JudgeGroup(Judge& judge, const MatrixJob& job, std::span<const MatrixGroup> groups,
                               std::size_t index, std::span<const AnsweredRow> rows) {
  const MatrixGroup& group = groups[index];
  GroupReport report{
      .name = group.name, .types = group.types, .rows = group.rows, .pairs = 0, .oracle = {}, .between = {}};
  for (const JudgedTask& judged : group.tasks) report.pairs += job.tasks[judged.task].pairs.size();
  std::vector<const AnsweredRow*> whole;
  std::vector<std::string> formats;
  for (const AnsweredRow& row : rows) {
    OracleCell& cell = report.oracle.emplace_back();
    cell.backend = row.id;
    cell.fault = FaultIn(job, group, *row.answer);
    if (!cell.fault.empty()) continue;
    ASSIGN_OR_RETURN(cell.by_row, judge.AgainstOracle(index, row.kind, *row.answer, kByRow));
    ASSIGN_OR_RETURN(cell.shuffled, judge.AgainstOracle(index, row.kind, *row.answer, kShuffled));
    ASSIGN_OR_RETURN(cell.one_batch, judge.AgainstOracle(index, row.kind, *row.answer, kOneBatch));
    cell.inside = cell.by_row.inside && cell.shuffled.inside && cell.one_batch.inside;
    cell.itself = judge.WithItself(index, *row.answer, kShuffled);
    whole.push_back(&row);
    formats.push_back(cell.by_row.row_format);
  }
  for (std::size_t a = 0; a < whole.size(); ++a) {
    for (std::size_t b = a + 1; b < whole.size(); ++b) {
      PairCell& cell = report.between.emplace_back();
      cell.a = whole[a]->id;
      cell.b = whole[b]->id;
      cell.same_rows = formats[a] == formats[b];
      cell.same_class = whole[a]->answer->kernel_class == whole[b]->answer->kernel_class;
      ASSIGN_OR_RETURN(cell.figures, judge.Between(index, *whole[a]->answer, *whole[b]->answer));
      // On GPUs the driver may choose another kernel each time; on CPUs nothing of one class may differ.
      cell.contradiction = cell.same_class && cell.figures.pairs > 0 && !cell.figures.bit_identical &&
                           whole[a]->answer->kernel_class.contains("/CPU/");
    }
  }
  return report;
}

}  // namespace linkcpp
