#include "matrix/report.h"

#include <gtest/gtest.h>

namespace linkcpp {
namespace {

MatrixReport TwoBackends() {
  MatrixReport report{.machine = {}, .seconds = 1, .inside = true, .backends = {}, .groups = {}};
  for (const char* id : {"left", "right"}) {
    report.backends.push_back({.id = id,
                               .name = std::string(id) + " <&>",
                               .state = "ran",
                               .reason = {},
                               .kernel_class = {},
                               .device = {},
                               .features = {}});
  }
  report.backends.push_back({.id = "gone",
                             .name = "Gone",
                             .state = "skipped",
                             .reason = "no such thing",
                             .kernel_class = {},
                             .device = {},
                             .features = {}});
  GroupReport group{.name = "model", .types = "up Q4_K", .rows = "3 rows", .pairs = 12, .oracle = {}, .between = {}};
  for (const char* id : {"left", "right"}) {
    OracleCell& cell = group.oracle.emplace_back();
    cell.backend = id;
    cell.inside = true;
    cell.by_row = cell.shuffled =
        cell.one_batch = {.pairs = 12, .cosine = 0.9998690, .inside = true, .row_format = "Q8_K"};
    cell.itself = PairFigures{.pairs = 12, .identical_pairs = 12, .cosine = 1, .bit_identical = true};
  }
  group.between.push_back({.a = "left",
                           .b = "right",
                           .same_rows = true,
                           .same_class = false,
                           .figures = {.pairs = 12, .cosine = 1 - 4e-9, .max_abs = 2e-6}});
  report.groups.push_back(group);
  return report;
}

TEST(CosineText, ShowsHowFarFromOne) {
  EXPECT_EQ(CosineText(0.999869), "0.9998690");
  EXPECT_EQ(CosineText(1 - 4e-9), "1-4e-09");
  EXPECT_EQ(CosineText(1), "1");
  EXPECT_EQ(CosineText(-0.25), "-0.2500000");
}

TEST(Table, HasEveryBackendAndWhyOneIsMissing) {
  const std::string text = MatrixTable(TwoBackends());
  EXPECT_NE(text.find("skipped: no such thing"), std::string::npos);
  EXPECT_NE(text.find("1-4e-09"), std::string::npos) << text;
  EXPECT_NE(text.find("2.0e-06"), std::string::npos) << text;
  EXPECT_EQ(text.find("OUTSIDE"), std::string::npos);
}

TEST(Table, SaysOutsideAlsoOfOneBatchOnly) {
  MatrixReport report = TwoBackends();
  report.inside = report.groups[0].oracle[1].one_batch.inside = false;
  const std::string text = MatrixTable(report);
  EXPECT_NE(text.find("in one batch"), std::string::npos);
  EXPECT_NE(text.find("OUTSIDE"), std::string::npos);
  EXPECT_NE(text.find("NOT every backend"), std::string::npos);
}

TEST(Svg, EscapesNamesAndMarksWhatIsOutside) {
  MatrixReport report = TwoBackends();
  EXPECT_EQ(MatrixSvg(report).find("class=\"out\""), std::string::npos);
  report.groups[0].oracle[1].inside = false;
  const std::string picture = MatrixSvg(report);
  EXPECT_NE(picture.find("class=\"out\""), std::string::npos);
  EXPECT_NE(picture.find("left &lt;&amp;&gt;"), std::string::npos);
  EXPECT_EQ(picture.find("<&>"), std::string::npos);
  EXPECT_NE(picture.find("no such thing"), std::string::npos);
}

}  // namespace
}  // namespace linkcpp
