#include "oracle/dequantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/rng.h"
#include "oracle/half.h"

namespace linkcpp {
namespace {

// A block written element by element from small integers, so that what it must decode to is plain arithmetic.
std::vector<float> Decode(std::uint32_t type, const std::vector<std::uint8_t>& bytes) {
  const WeightLayout layout = *LayoutOf(type);
  EXPECT_EQ(bytes.size(), layout.block_bytes);
  std::vector<float> out(layout.block_elements);
  const auto done = Dequantise(layout, std::as_bytes(std::span(bytes)), out);
  EXPECT_TRUE(done.has_value()) << (done.has_value() ? "" : done.error().text);
  return out;
}

void PutHalf(std::vector<std::uint8_t>& block, std::size_t at, float value) {
  const std::uint16_t half = ToHalf(value);
  block[at] = static_cast<std::uint8_t>(half);
  block[at + 1] = static_cast<std::uint8_t>(half >> 8);
}

TEST(Half, EveryHalfGoesToFloatAndBack) {
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    const float value = FromHalf(static_cast<std::uint16_t>(half));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FromHalf(ToHalf(value))));
    } else {
      EXPECT_EQ(ToHalf(value), half) << value;
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(ToHalf(1.0f + 0x1p-11f), 0x3c00);      // a tie: down to even
  EXPECT_EQ(ToHalf(1.0f + 3 * 0x1p-11f), 0x3c02);  // a tie: up to even
  EXPECT_EQ(ToHalf(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);
  EXPECT_EQ(ToHalf(0x1p-25f), 0);  // a tie with zero
  EXPECT_EQ(ToHalf(0x1.8p-24f), 2);
  EXPECT_EQ(ToHalf(65519.0f), 0x7bff);
  EXPECT_EQ(ToHalf(65520.0f), 0x7c00);
}

TEST(Half, BfloatIsTheTopOfAFloat) {
  EXPECT_EQ(FromBfloat(0x3f80), 1.0f);
  EXPECT_EQ(ToBfloat(1.0f + 0x1p-8f), 0x3f80);  // a tie: down to even
  EXPECT_EQ(ToBfloat(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_TRUE(std::isnan(FromBfloat(ToBfloat(std::nanf("")))));
}

TEST(Dequantise, Q4_0TakesLowNibblesFirst) {
  std::vector<std::uint8_t> block(18);
  PutHalf(block, 0, 0.5f);
  for (std::size_t i = 0; i < 16; ++i) block[2 + i] = static_cast<std::uint8_t>(i | (15 - i) << 4);
  const auto w = Decode(2, block);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(w[i], 0.5f * static_cast<float>(i - 8));
    EXPECT_EQ(w[i + 16], 0.5f * static_cast<float>(7 - i));
  }
}

TEST(Dequantise, Q5_1AddsFifthBitsAndMinimum) {
  std::vector<std::uint8_t> block(24);
  PutHalf(block, 0, 0.25f);
  PutHalf(block, 2, -3.0f);
  block[4] = 0b10;      // element 1
  block[6] = 0b1;       // element 16
  block[8 + 1] = 0x05;  // element 1: 5
  block[8 + 0] = 0x70;  // element 16: 7
  const auto w = Decode(7, block);
  EXPECT_EQ(w[0], -3.0f);
  EXPECT_EQ(w[1], 0.25f * 21 - 3);
  EXPECT_EQ(w[16], 0.25f * 23 - 3);
}

// Sub-block s gets scale s + 1 (the last four above 32, so that their split high bits matter), minimum 40 + s.
TEST(Dequantise, Q4_KUnpacksItsSixBitScales) {
  const int scales[8] = {1, 2, 3, 4, 33, 34, 51, 63}, mins[8] = {40, 41, 42, 43, 5, 20, 37, 62};
  std::vector<std::uint8_t> block(144);
  PutHalf(block, 0, 2.0f);
  PutHalf(block, 2, 0.5f);
  for (int i = 0; i < 4; ++i) {
    block[4 + i] = static_cast<std::uint8_t>(scales[i] | scales[i + 4] >> 4 << 6);
    block[8 + i] = static_cast<std::uint8_t>(mins[i] | mins[i + 4] >> 4 << 6);
    block[12 + i] = static_cast<std::uint8_t>((scales[i + 4] & 15) | (mins[i + 4] & 15) << 4);
  }
  for (int i = 0; i < 128; ++i) block[16 + i] = static_cast<std::uint8_t>(i % 16 | (i + 3) % 16 << 4);
  const auto w = Decode(12, block);
  for (int e = 0; e < 256; ++e) {
    const int sub = e / 32, byte = sub / 2 * 32 + e % 32;
    const int q = sub % 2 == 0 ? byte % 16 : (byte + 3) % 16;
    EXPECT_EQ(w[e], 2.0f * static_cast<float>(scales[sub] * q) - 0.5f * static_cast<float>(mins[sub])) << e;
  }
}

TEST(Dequantise, Q6_KJoinsNibbleAndTwoBits) {
  std::vector<std::uint8_t> block(210);
  PutHalf(block, 208, 1.0f);
  for (int i = 0; i < 16; ++i) block[192 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(i - 8));
  block[0] = 0xa5;             // element 0: low nibble 5; element 64: nibble 10
  block[128] = 0b11'10'01'00;  // elements 0, 32, 64, 96: top bits 0, 1, 2, 3
  const auto w = Decode(14, block);
  EXPECT_EQ(w[0], -8.0f * (5 - 32));
  EXPECT_EQ(w[64], -4.0f * (10 + 32 - 32));
  EXPECT_EQ(w[32], -6.0f * (16 - 32));
  EXPECT_EQ(w[96], -2.0f * (48 - 32));
}

TEST(Dequantise, Mxfp4HasPowersOfTwo) {
  std::vector<std::uint8_t> block(17);
  block[0] = 128;   // 2^1
  block[1] = 0xf7;  // element 0: 6, element 16: -6
  const auto w = Decode(39, block);
  EXPECT_EQ(w[0], 12.0f);
  EXPECT_EQ(w[16], -12.0f);
}

TEST(Dequantise, APartOfABlockIsRefused) {
  const WeightLayout q4k = *LayoutNamed("q4_k");
  std::vector<std::byte> bytes(144);
  std::vector<float> out(255);
  const auto done = Dequantise(q4k, bytes, out);
  ASSERT_FALSE(done.has_value());
  EXPECT_NE(done.error().text.find("255"), std::string::npos) << done.error().text;
  EXPECT_NE(done.error().text.find("Q4_K"), std::string::npos) << done.error().text;
}

TEST(WeightType, ATypeWithoutAnOracleIsRefusedByName) {
  const auto layout = LayoutOf(16);
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(layout.error().code, FaultCode::kRefused);
  EXPECT_NE(layout.error().text.find("IQ2_XXS"), std::string::npos) << layout.error().text;
  EXPECT_NE(LayoutOf(1234).error().text.find("type 1234"), std::string::npos);
}

}  // namespace
}  // namespace linkcpp
