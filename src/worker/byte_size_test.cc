#include "worker/byte_size.h"

#include <gtest/gtest.h>

namespace linkcpp {
namespace {

TEST(ByteSize, ReadsWhatPeopleWrite) {
  const std::pair<const char*, std::uint64_t> kCases[] = {
      {"4G", 4ull << 30},   {"512M", 512ull << 20}, {"1.5GiB", 3ull << 29},     {"800 MB", 800ull << 20},
      {"64k", 64ull << 10}, {"2t", 2ull << 40},     {"1073741824", 1ull << 30}, {"7B", 7},
      {"0.5kb", 512},
  };
  for (const auto& [text, bytes] : kCases) {
    const auto parsed = ParseByteSize(text);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ByteSize, BinaryForPeopleAndForCommandLines) {
  EXPECT_EQ(BinarySizeText(0), "0 B");
  EXPECT_EQ(BinarySizeText(2048), "2.0 KiB");
  EXPECT_EQ(BinarySizeText((1ull << 30) - (1 << 20)), "1023.0 MiB");
  EXPECT_EQ(BinarySizeText(3ull << 29), "1.50 GiB");
  EXPECT_EQ(ByteSizeOption(14ull << 30), "14336M");
  EXPECT_EQ(ByteSizeOption(3ull << 19), "1536K");
  for (const std::uint64_t bytes : {1536ull << 10, 900'000ull, 5'000'000'000ull}) {
    const auto parsed = ParseByteSize(ByteSizeOption(bytes));
    ASSERT_TRUE(parsed);
    EXPECT_LE(*parsed, bytes) << "never more than was said";
    EXPECT_GT(*parsed + (1u << 20), bytes);
  }
}

TEST(ByteSize, RefusesTheRestAndSaysHowToWriteIt) {
  for (const char* text : {"", "G", "4X", "4GG", "4iB", "-4G", "0", "0.0001", "1e9", "nan", "inf", "4 G B", "4,5G",
                           "2000T", "99999999999999999999G"}) {
    const auto parsed = ParseByteSize(text);
    ASSERT_FALSE(parsed) << text << " became " << *parsed;
    EXPECT_EQ(parsed.error().code, FaultCode::kRefused);
    EXPECT_NE(parsed.error().text.find("1.5GiB"), std::string::npos) << parsed.error().text;
  }
}

TEST(ByteSize, IsShownWithOneDecimal) {
  EXPECT_EQ(FormatByteSize(999), "999 B");
  EXPECT_EQ(FormatByteSize(33'095'680), "33.1 MB");
  EXPECT_EQ(FormatByteSize(1'566'572'544), "1.6 GB");
  EXPECT_EQ(FormatByteSize(999'960), "1.0 MB");
}

TEST(DefaultMemory, LeavesRoomForTheMachinesOwner) {
  constexpr std::uint64_t kGib = 1ull << 30;
  EXPECT_EQ(DefaultMemoryOf(16 * kGib), 8 * kGib);     // half
  EXPECT_EQ(DefaultMemoryOf(3 * kGib / 2), kGib / 2);  // all but 1 GiB
  EXPECT_EQ(DefaultMemoryOf(kGib / 2), 64ull << 20);   // the least that makes sense
  EXPECT_EQ(DefaultMemory(
                {.name = "GPU0", .description = "", .free_bytes = 10 * kGib, .total_bytes = 12 * kGib, .is_gpu = true}),
            8 * kGib);
}

}  // namespace
}  // namespace linkcpp
