#include "base/plain_text.h"

#include <gtest/gtest.h>

namespace linkcpp {
namespace {

TEST(PlainText, WordsOfAnyLanguageStay) {
  EXPECT_EQ(PlainText("laptop (büro) 机器 🖥"), "laptop (büro) 机器 🖥");
  EXPECT_EQ(PlainText(""), "");
}

TEST(PlainText, WhatATerminalWouldObeyBecomesSpace) {
  EXPECT_EQ(PlainText("\x1b[2Ja\nb\tc\x7f"
                      "d\xc2\x9b"
                      "e"),
            " [2Ja b c d e");
}

TEST(PlainText, BytesThatAreNoTextBecomeQuestionMarks) {
  EXPECT_EQ(PlainText("a\xff"
                      "b\xc3"),
            "a?b?");
  EXPECT_EQ(PlainText("\xc0\xaf"), "??");            // overlong '/'
  EXPECT_EQ(PlainText("\xe0\x80\xaf"), "???");       // overlong
  EXPECT_EQ(PlainText("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(PlainText("\xf4\x90\x80\x80"), "????");  // past U+10FFFF
}

TEST(PlainText, LinesStayLines) {
  EXPECT_EQ(PlainLines("a\x1b[1mb\r\n\nc\xff\n"), "a [1mb \n\nc?\n");
  EXPECT_EQ(PlainLines(std::string(1000, 'x')).size(), 1000u);
  EXPECT_EQ(PlainLines(""), "");
  EXPECT_EQ(PlainLines("\n"), "\n");
}

TEST(PlainText, ItIsCutBetweenCharacters) {
  EXPECT_EQ(PlainText(std::string(1000, 'x')).size(), 200u);
  std::string umlauts = "a";
  for (int i = 0; i < 200; ++i) umlauts += "ü";
  EXPECT_EQ(PlainText(umlauts).size(), 199u);
}

}  // namespace
}  // namespace linkcpp
