#include <ggml.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "wire/messages.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kRowLen = 256;

// Values of every size that occurs in a hidden state, some exact halves, some zeros, some far out.
std::vector<float> SomeRows(std::uint64_t seed, std::size_t n_values) {
  Rng rng(seed);
  std::vector<float> values(n_values);
  for (float& value : values) {
    const double u = 2 * rng.Uniform() - 1;
    switch (rng.Below(8)) {
      case 0: value = 0; break;
      case 1: value = static_cast<float>(u * 1e-6); break;
      case 2: value = static_cast<float>(u * 1000); break;
      case 3: value = static_cast<float>(rng.Below(64)) * 0.5f; break;
      default: value = static_cast<float>(u); break;
    }
  }
  return values;
}

std::vector<std::byte> Pack(RowType type, std::span<const float> rows) {
  std::vector<std::byte> bytes(rows.size() / kRowLen * RowBytes(type, kRowLen));
  PackRows(type, rows, kRowLen, bytes);
  return bytes;
}

std::vector<float> Unpack(RowType type, std::span<const std::byte> bytes) {
  std::vector<float> rows(bytes.size() / RowBytes(type, kRowLen) * kRowLen);
  UnpackRows(type, bytes, kRowLen, rows);
  return rows;
}

TEST(Rows, BytesOfARow) {
  EXPECT_EQ(RowBytes(RowType::kF32, 3072), 12288u);
  EXPECT_EQ(RowBytes(RowType::kF16, 3072), 6144u);
  EXPECT_EQ(RowBytes(RowType::kBf16, 3072), 6144u);
  EXPECT_EQ(RowBytes(RowType::kQ8_0, 3072), 3264u);
}

TEST(Rows, F32ComesBackBitForBit) {
  const auto rows = SomeRows(1, 4 * kRowLen);
  const auto back = Unpack(RowType::kF32, Pack(RowType::kF32, rows));
  EXPECT_EQ(std::memcmp(back.data(), rows.data(), rows.size() * sizeof(float)), 0);
}

TEST(Rows, Q8HasTheBitsOfGgmlsReferenceQuantiser) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto rows = SomeRows(seed, 4 * kRowLen);
    std::vector<std::byte> expected(4 * RowBytes(RowType::kQ8_0, kRowLen));
    ggml_quantize_chunk(GGML_TYPE_Q8_0, rows.data(), expected.data(), 0, 4, kRowLen, nullptr);
    ASSERT_EQ(Pack(RowType::kQ8_0, rows), expected) << "seed " << seed;
  }
}

TEST(Rows, EveryHalfUnpacksAsGgmlDoesAndPacksToItself) {
  std::vector<std::byte> halves(65536 * 2), bf16(65536 * 2);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    std::memcpy(halves.data() + 2 * i, &half, 2);
  }
  const auto values = Unpack(RowType::kF16, halves);
  const auto wide = Unpack(RowType::kBf16, halves);
  const auto halves_back = Pack(RowType::kF16, values);
  const auto wide_back = Pack(RowType::kBf16, wide);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    std::uint16_t back = 0;
    if (std::isnan(values[i])) {
      EXPECT_TRUE(std::isnan(ggml_fp16_to_fp32(half))) << i;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(ggml_fp16_to_fp32(half))) << i;
      std::memcpy(&back, halves_back.data() + 2 * i, 2);
      ASSERT_EQ(back, half);
    }
    if (!std::isnan(wide[i])) {
      std::memcpy(&back, wide_back.data() + 2 * i, 2);
      ASSERT_EQ(back, half);
    }
  }
}

// All floats whose low bits decide the rounding: around every half there is, the midpoint to the next and its
// neighbours.
TEST(Rows, HalvesRoundToNearestEvenLikeGgml) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 0x7c00; ++i) {
    const double low = ggml_fp16_to_fp32(static_cast<ggml_fp16_t>(i));
    const double high = i + 1 == 0x7c00 ? 65536.0 : ggml_fp16_to_fp32(static_cast<ggml_fp16_t>(i + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (const float value :
       {1e9f, 65520.0f, 1e-30f, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::infinity()}) {
    values.push_back(value);
  }
  values.resize((values.size() + kRowLen - 1) / kRowLen * kRowLen);
  const auto bytes = Pack(RowType::kF16, values);
  const auto wide_bytes = Pack(RowType::kBf16, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    ASSERT_EQ(half, ggml_fp32_to_fp16(values[i])) << values[i];
    std::memcpy(&half, wide_bytes.data() + 2 * i, 2);
    ASSERT_EQ(half, ggml_fp32_to_bf16(values[i]).bits) << values[i];
  }
}

TEST(Rows, ErrorOfAPackedRowIsWithinItsStep) {
  const auto rows = SomeRows(3, 16 * kRowLen);
  struct Case {
    RowType type;
    double relative;  // half a unit in the last place
    double absolute;  // where a type has subnormals
  };
  for (const Case& c : {Case{RowType::kF16, 0x1p-11, 0x1p-25}, Case{RowType::kBf16, 0x1p-8, 0}}) {
    const auto back = Unpack(c.type, Pack(c.type, rows));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const double bound = std::abs(static_cast<double>(rows[i])) * c.relative + c.absolute;
      ASSERT_LE(std::abs(static_cast<double>(back[i]) - static_cast<double>(rows[i])), bound) << rows[i];
    }
  }
  const auto back = Unpack(RowType::kQ8_0, Pack(RowType::kQ8_0, rows));
  for (std::size_t block = 0; block < rows.size(); block += kQ8BlockValues) {
    double largest = 0;
    for (std::size_t i = block; i < block + kQ8BlockValues; ++i)
      largest = std::max(largest, std::abs(static_cast<double>(rows[i])));
    // Half a step of d = largest / 127, and d itself rounded to f16 (up to 127 of them).
    const double bound = largest / 127 * (0.5 + 1e-5) + largest * 0x1p-11 + 127 * 0x1p-25;
    for (std::size_t i = block; i < block + kQ8BlockValues; ++i) {
      ASSERT_LE(std::abs(static_cast<double>(back[i]) - static_cast<double>(rows[i])), bound) << rows[i];
    }
  }
}

TEST(Rows, WhatIsNotFiniteStaysNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const RowType type : {RowType::kF32, RowType::kF16, RowType::kBf16, RowType::kQ8_0}) {
      std::vector<float> rows(kRowLen, 0.25f);
      rows[100] = bad;
      const auto back = Unpack(type, Pack(type, rows));
      EXPECT_FALSE(std::isfinite(back[100])) << bad << " as " << static_cast<int>(type);
      EXPECT_NEAR(back[0], 0.25f, 0.001f) << "another block";
    }
  }
}

}  // namespace
}  // namespace linkcpp
