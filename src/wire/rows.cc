// Rows to bytes and back. Every conversion is straight-line code over 32-bit lanes, which compilers turn into SIMD for
// any instruction set; both ends of a link must give the same bits whatever they were compiled for.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "wire/messages.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kF32Infinity = 0x7f800000;
constexpr std::size_t kQ8BlockBytes = 2 + kQ8BlockValues;

// Round to nearest even; overflow to infinity; NaN stays NaN (quiet, with what fits of its payload).
std::uint16_t F16FromF32(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t size = bits & 0x7fffffff;
  // Normal: drop 13 bits of mantissa and move the exponent's bias from 127 to 15.
  const std::uint32_t normal = (size + 0xfff + ((size >> 13) & 1) - (112u << 23)) >> 13;
  // Below 2^-14 one step is 2^-24, which is also the step of floats in [0.5, 1): adding 0.5 makes the FPU round.
  const std::uint32_t tiny =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(std::min(size, 0x3f000000u)) + 0.5f) - 0x3f000000;
  const std::uint32_t nan = 0x7e00 | ((size >> 13) & 0x3ff);
  std::uint32_t half = size < 0x38800000 ? tiny : normal;
  half = size >= 0x477ff000 ? 0x7c00 : half;  // 65520: halfway from the largest half to the next step
  half = size > kF32Infinity ? nan : half;
  return static_cast<std::uint16_t>(sign | half);
}

float F32FromF16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t size = half & 0x7fff;
  const std::uint32_t normal = (size << 13) + (112u << 23);
  const std::uint32_t tiny =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(size)) * 0x1p-24f);
  std::uint32_t bits = size < 0x400 ? tiny : normal;
  bits = size >= 0x7c00 ? (size << 13) | kF32Infinity : bits;
  return std::bit_cast<float>(sign | bits);
}

std::uint16_t Bf16FromF32(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > kF32Infinity ? nan : rounded);
}

float F32FromBf16(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

template <class Convert>
void PackHalves(std::span<const float> rows, std::byte* out, Convert convert) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::uint16_t half = convert(rows[i]);
    std::memcpy(out + 2 * i, &half, 2);
  }
}

template <class Convert>
void UnpackHalves(const std::byte* bytes, std::span<float> rows, Convert convert) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes + 2 * i, 2);
    rows[i] = convert(half);
  }
}

// To the nearest integer, halves away from zero. Exact where x + 0.5 is not (0.49999997). |value| <= 2^22.
std::int32_t RoundAway(float value) {
  const auto whole = static_cast<std::int32_t>(value);
  const float rest = value - static_cast<float>(whole);
  return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
}

// A block with a value that is not finite becomes NaN throughout, so that the other end notices.
void PackQ8Block(const float* values, std::byte* out) {
  std::uint32_t largest_bits = 0;  // of |x|; unsigned order is float order, and NaN is above infinity
  for (std::uint32_t i = 0; i < kQ8BlockValues; ++i) {
    largest_bits = std::max(largest_bits, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffff);
  }
  std::int8_t quants[kQ8BlockValues];
  std::uint16_t scale = 0;
  if (largest_bits >= kF32Infinity) {
    scale = 0x7e00;
    std::fill_n(quants, kQ8BlockValues, std::int8_t{1});
  } else {
    const float d = std::bit_cast<float>(largest_bits) / 127.0f;
    // A d so small that 1/d overflows is 0 as f16, so the quants do not matter.
    const float inverse = d > 0x1p-127f ? 1.0f / d : 0.0f;
    scale = F16FromF32(d);
    for (std::uint32_t i = 0; i < kQ8BlockValues; ++i)
      quants[i] = static_cast<std::int8_t>(RoundAway(values[i] * inverse));
  }
  std::memcpy(out, &scale, 2);
  std::memcpy(out + 2, quants, kQ8BlockValues);
}

void UnpackQ8Block(const std::byte* bytes, float* values) {
  std::uint16_t scale = 0;
  std::int8_t quants[kQ8BlockValues];
  std::memcpy(&scale, bytes, 2);
  std::memcpy(quants, bytes + 2, kQ8BlockValues);
  const float d = F32FromF16(scale);
  for (std::uint32_t i = 0; i < kQ8BlockValues; ++i) values[i] = d * static_cast<float>(quants[i]);
}

}  // namespace

std::size_t RowBytes(RowType type, std::uint32_t row_len) {
  const std::size_t n = row_len;
  switch (type) {
    case RowType::kF32: return 4 * n;
    case RowType::kF16:
    case RowType::kBf16: return 2 * n;
    case RowType::kQ8_0: return n / kQ8BlockValues * kQ8BlockBytes;
  }
  return 0;
}

void PackRows(RowType type, std::span<const float> rows, std::uint32_t, std::span<std::byte> out) {
  switch (type) {
    case RowType::kF32: std::memcpy(out.data(), rows.data(), rows.size_bytes()); return;
    case RowType::kF16: PackHalves(rows, out.data(), F16FromF32); return;
    case RowType::kBf16: PackHalves(rows, out.data(), Bf16FromF32); return;
    case RowType::kQ8_0:
      for (std::size_t block = 0; block < rows.size() / kQ8BlockValues; ++block) {
        PackQ8Block(rows.data() + block * kQ8BlockValues, out.data() + block * kQ8BlockBytes);
      }
      return;
  }
}

void UnpackRows(RowType type, std::span<const std::byte> bytes, std::uint32_t, std::span<float> out) {
  switch (type) {
    case RowType::kF32: std::memcpy(out.data(), bytes.data(), out.size_bytes()); return;
    case RowType::kF16: UnpackHalves(bytes.data(), out, F32FromF16); return;
    case RowType::kBf16: UnpackHalves(bytes.data(), out, F32FromBf16); return;
    case RowType::kQ8_0:
      for (std::size_t block = 0; block < out.size() / kQ8BlockValues; ++block) {
        UnpackQ8Block(bytes.data() + block * kQ8BlockBytes, out.data() + block * kQ8BlockValues);
      }
      return;
  }
}

}  // namespace linkcpp
