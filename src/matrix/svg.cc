// MatrixSvg of report.h. Written by hand: rectangles and text need no library.
#include <algorithm>
#include <cmath>
#include <format>

#include "matrix/report.h"

namespace linkcpp {
namespace {

constexpr int kCell = 66, kCellHeight = 30, kNames = 216, kMargin = 16, kLine = 20;
constexpr int kFigures = 4;  // columns before those of the backends, all against the oracle

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string NameOf(const MatrixReport& report, const std::string& id) {
  const auto found = std::ranges::find(report.backends, id, &BackendReport::id);
  return found == report.backends.end() ? id : found->name;
}

struct Cell {
  bool known = false;
  bool same_bits = false;
  bool outside = false;  // of its bound; between two: they contradict each other
  double cosine = 0;
};

// How many nines a cosine has, as a step of the colour scale: 0 (fewer than 3) to 5 (7 and more).
int Step(const Cell& cell) {
  const double distance = 1 - cell.cosine;
  if (distance <= 0) return 5;
  return std::clamp(static_cast<int>(std::floor(-std::log10(distance))) - 2, 0, 5);
}

Cell Between(const GroupReport& group, std::size_t row, std::size_t column) {
  if (row == column) {
    const auto& itself = group.oracle[row].itself;
    if (!itself.has_value()) return {};
    return {.known = true, .same_bits = itself->bit_identical, .outside = false, .cosine = itself->cosine};
  }
  const std::string& a = group.oracle[std::min(row, column)].backend;
  const std::string& b = group.oracle[std::max(row, column)].backend;
  for (const PairCell& cell : group.between) {
    if (cell.a == a && cell.b == b) {
      return {.known = cell.figures.pairs > 0,
              .same_bits = cell.figures.bit_identical,
              .outside = cell.contradiction,
              .cosine = cell.figures.cosine};
    }
  }
  return {};
}

std::string Text(int x, int y, std::string_view classes, std::string_view text) {
  return std::format("<text x=\"{}\" y=\"{}\" class=\"{}\">{}</text>\n", x, y, classes, Escaped(text));
}

std::string Draw(const Cell& cell, int x, int y) {
  const std::string style = !cell.known      ? "none"
                            : cell.outside   ? "out"
                            : cell.same_bits ? "same"
                                             : std::format("s{}", Step(cell));
  const std::string label = !cell.known ? "–" : cell.same_bits ? "=" : CosineText(cell.cosine);
  return std::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{}\"/>\n", x, y, kCell - 2,
                     kCellHeight - 2, style) +
         Text(x + kCell / 2 - 1, y + kCellHeight / 2 + 3, std::format("c on-{}", style), label);
}

constexpr std::string_view kStyle = R"css(
text { font: 12px system-ui, sans-serif; fill: var(--ink) }
.t { font-weight: 600; font-size: 14px } .m { fill: var(--dim) } .c { font-size: 10.5px; text-anchor: middle } .h { text-anchor: middle }
svg { --page: #ffffff; --ink: #1b1f24; --dim: #59636e; --s0: #fbe3d6; --s1: #f7efcf; --s2: #e3edf9; --s3: #c3daf3; --s4: #93bce8; --s5: #5f9bd9; --same: #2f7d4f; --out: #c0392b; --none: #eceff2 }
@media (prefers-color-scheme: dark) { svg { --page: #0d1117; --ink: #e6edf3; --dim: #9198a1; --s0: #5c3420; --s1: #55491c; --s2: #16273c; --s3: #1b3a5c; --s4: #235489; --s5: #2f6fb3; --same: #2f7d4f; --out: #b03a2e; --none: #21262d } }
.page { fill: var(--page) } .s0 { fill: var(--s0) } .s1 { fill: var(--s1) } .s2 { fill: var(--s2) } .s3 { fill: var(--s3) } .s4 { fill: var(--s4) } .s5 { fill: var(--s5) } .same { fill: var(--same) } .out { fill: var(--out) } .none { fill: var(--none) }
.on-same, .on-out { fill: #ffffff }
)css";

}  // namespace

std::string MatrixSvg(const MatrixReport& report) {
  std::string body;
  int width = 640, y = kMargin;
  for (const GroupReport& group : report.groups) {
    const int n = static_cast<int>(group.oracle.size());
    width = std::max(width, 2 * kMargin + kNames + (kFigures + n) * kCell);
    y += kLine;
    body += Text(kMargin, y, "t", group.name);
    y += kLine;
    body += Text(kMargin, y, "m", std::format("{}; {}, {} pairs", group.types, group.rows, group.pairs));
    y += kLine;
    constexpr int left = kMargin + kNames;
    const auto middle = [](int column) { return left + column * kCell + kCell / 2 - 1; };
    int column = 0;
    for (const char* heading : {"oracle", "NMSE", "max|Δ|"}) body += Text(middle(column++), y, "h m", heading);
    body += Text(middle(column++), y, "c m", "share of bound");
    for (int number = 1; number <= n; ++number) body += Text(middle(column++), y, "h m", std::to_string(number));
    y += 8;
    for (int row = 0; row < n; ++row) {
      const OracleCell& own = group.oracle[static_cast<std::size_t>(row)];
      const int baseline = y + kCellHeight / 2 + 3;
      body += Text(kMargin, baseline, "", std::format("{}  {:.30}", row + 1, NameOf(report, own.backend)));
      body += Draw({.known = own.fault.empty(),
                    .same_bits = false,
                    .outside = own.fault.empty() && !own.inside,
                    .cosine = own.by_row.cosine},
                   left, y);
      if (own.fault.empty()) {
        body += Text(middle(1), baseline, "c", std::format("{:.1e}", own.by_row.nmse));
        body += Text(middle(2), baseline, "c", std::format("{:.1e}", own.by_row.max_abs));
        body += Text(middle(3), baseline, "c", BoundShare(own.by_row.over_bound));
      }
      for (int other = 0; other < n; ++other) {
        body += Draw(Between(group, static_cast<std::size_t>(row), static_cast<std::size_t>(other)),
                     left + (kFigures + other) * kCell, y);
      }
      y += kCellHeight;
    }
    for (const OracleCell& cell : group.oracle) {
      if (!cell.fault.empty() || cell.by_row.pairs == group.pairs) continue;
      y += kLine;
      body += Text(
          kMargin, y, "m",
          std::format("{}: {} of the pairs, whose experts it holds", NameOf(report, cell.backend), cell.by_row.pairs));
    }
    y += kLine;
  }
  y += 4;
  body +=
      Text(kMargin, y, "m",
           "Coloured: cosine over all pairs, = the same bits; diagonal: the same backend, other order and batches.");
  y += kLine;
  body +=
      Text(kMargin, y, "m",
           "NMSE, max|Δ|, share of bound (the largest |Δ| as a share of what is derived for it): against the oracle.");
  for (const BackendReport& backend : report.backends) {
    if (backend.state != "ran") continue;
    y += kLine;
    body += Text(kMargin, y, "m", std::format("{}: {}", backend.name, backend.kernel_class));
  }
  for (const BackendReport& backend : report.backends) {
    if (backend.state == "ran") continue;
    y += kLine;
    body += Text(kMargin, y, "m", std::format("{} is not shown: {:.90}", backend.name, backend.reason));
  }
  y += kMargin;
  return std::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n"
      "<title>linkcpp matrix: every backend against every other and against the oracle</title>\n<style>{2}</style>\n"
      "<rect width=\"{0}\" height=\"{1}\" class=\"page\"/>\n{3}</svg>\n",
      width, y, kStyle, body);
}

}  // namespace linkcpp
