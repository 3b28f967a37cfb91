// MatrixTable and how its figures are written, of report.h.
#include <algorithm>
#include <format>

#include "matrix/report.h"

namespace linkcpp {
namespace {

const BackendReport* Find(const MatrixReport& report, const std::string& id) {
  const auto found = std::ranges::find(report.backends, id, &BackendReport::id);
  return found == report.backends.end() ? nullptr : &*found;
}

std::string NameOf(const MatrixReport& report, const std::string& id) {
  const BackendReport* backend = Find(report, id);
  return backend == nullptr ? id : backend->name;
}

// Between a (above the diagonal: cosine) and b (below: max|Δ|).
std::string Cell(const GroupReport& group, std::size_t row, std::size_t column) {
  const std::string& a = group.oracle[std::min(row, column)].backend;
  const std::string& b = group.oracle[std::max(row, column)].backend;
  const PairFigures* figures = nullptr;
  if (row == column) {
    const auto& itself = group.oracle[row].itself;
    if (itself.has_value()) figures = &*itself;
  }
  for (const PairCell& cell : group.between) {
    if (cell.a == a && cell.b == b) figures = &cell.figures;
  }
  if (figures == nullptr || figures->pairs == 0) return "-";
  if (figures->bit_identical) return "=";
  return row <= column ? CosineText(figures->cosine) : std::format("{:.1e}", figures->max_abs);
}

void AddFigures(std::string_view name, const OracleFigures& f, std::string_view note, std::string& text) {
  text += std::format("  {:<28.28} {:<9} {:>9} {:>10} {:>9.2e} {:>9.2e} {:>10} {:>14} {:>9}  {}{}\n", name,
                      f.row_format, CosineText(f.cosine), CosineText(f.worst_pair_cosine), f.nmse, f.max_abs,
                      CosineText(f.explained_worst_pair_cosine), BoundShare(f.over_bound), BoundShare(f.over_likely),
                      f.inside ? "inside" : "OUTSIDE", note);
}

bool DiffersFrom(const OracleFigures& by_row, const OracleFigures& other) {
  return other.row_format != by_row.row_format || !other.inside;
}

void AddGroup(const MatrixReport& report, const GroupReport& group, std::string& text) {
  text += std::format("\n{}: {}; {}, {} pairs\n", group.name, group.types, group.rows, group.pairs);
  text += std::format("  {:<28} {:<9} {:>9} {:>10} {:>9} {:>9} {:>10} {:>14} {:>9}\n", "against the oracle", "rows",
                      "cosine", "worst pair", "NMSE", "max|Δ|", "rows alone", "share of bound", "of likely");
  std::size_t number = 0;
  for (const OracleCell& cell : group.oracle) {
    const std::string name = std::format("{} {}", ++number, NameOf(report, cell.backend));
    if (!cell.fault.empty()) {
      text += std::format("  {:<28.28} refused: {}\n", name, cell.fault);
      continue;
    }
    const bool partly = cell.by_row.pairs < group.pairs;  // a worker that does not hold all of the experts
    AddFigures(name, cell.by_row, partly ? std::format(", of {} pairs", cell.by_row.pairs) : "", text);
    // GPUs have other kernels for other sizes; what a CPU does differently then is far below what is shown here.
    if (DiffersFrom(cell.by_row, cell.shuffled)) AddFigures("    in random dispatches", cell.shuffled, "", text);
    if (DiffersFrom(cell.by_row, cell.one_batch)) AddFigures("    in one batch", cell.one_batch, "", text);
  }
  text +=
      "  each against each other: cosine above, max|Δ| below; = the same bits; diagonal: other order and batches\n   ";
  for (std::size_t column = 0; column < group.oracle.size(); ++column) text += std::format(" {:>9}", column + 1);
  text += '\n';
  for (std::size_t row = 0; row < group.oracle.size(); ++row) {
    text += std::format("  {:>2}", row + 1);
    for (std::size_t column = 0; column < group.oracle.size(); ++column) {
      text += std::format(" {:>9}", Cell(group, row, column));
    }
    text += '\n';
  }
  double same = 2, combined = 2;
  for (const PairCell& cell : group.between) {
    if (cell.contradiction) {
      text += std::format("  {} and {} are of one kernel class and DIFFER: one of them is not what it says\n",
                          NameOf(report, cell.a), NameOf(report, cell.b));
    }
    if (cell.same_rows && cell.figures.pairs > 0) same = std::min(same, cell.figures.cosine);
    if (cell.figures.combined_cosine >= 0) combined = std::min(combined, cell.figures.combined_cosine);
  }
  if (same <= 1.5)
    text += std::format("  any two that turn rows into the same format: cosine at least {}\n", CosineText(same));
  if (combined <= 1.5) {
    text += std::format(
        "  the router's sums, experts shared by any two backends, against one piece: cosine at least {:.7f}\n",
        combined);
  }
}

}  // namespace

bool GroupReport::Inside() const {
  return std::ranges::none_of(oracle, [](const OracleCell& cell) { return cell.fault.empty() && !cell.inside; }) &&
         std::ranges::none_of(between, &PairCell::contradiction);
}

std::string BoundShare(double share) {
  return share < 1000 ? std::format("{:.3f}", share) : std::format("{:.0e}", share);
}

std::string CosineText(double cosine) {
  const double distance = 1 - cosine;
  if (distance < 1e-15) return "1";  // the rounding of the sums themselves
  return distance < 5e-8 ? std::format("1-{:.0e}", distance) : std::format("{:.7f}", cosine);
}

std::string MatrixTable(const MatrixReport& report) {
  std::string text;
  for (const BackendReport& backend : report.backends) {
    if (backend.state == "ran") {
      text += std::format("{:<28.28} {:>6.1f} s  {}\n", backend.name, backend.seconds, backend.kernel_class);
    } else {
      text += std::format("{:<28.28} {}: {}\n", backend.name, backend.state, backend.reason);
    }
  }
  for (const GroupReport& group : report.groups) AddGroup(report, group, text);
  text += std::format("\n{} in {:.0f} s\n",
                      report.inside ? "every backend that ran is inside its derived bounds"
                                    : "NOT every backend answered, inside its bounds",
                      report.seconds);
  return text;
}

}  // namespace linkcpp
