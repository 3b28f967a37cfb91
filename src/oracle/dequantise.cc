#include "oracle/dequantise.h"

#include <cstring>

#include "oracle/half.h"

namespace linkcpp {
namespace blocks {
namespace {

std::uint32_t Word(Bytes in) {
  return static_cast<std::uint32_t>(in[0]) | static_cast<std::uint32_t>(in[1]) << 8 |
         static_cast<std::uint32_t>(in[2]) << 16 | static_cast<std::uint32_t>(in[3]) << 24;
}

float Half(Bytes in) {
  return FromHalf(static_cast<std::uint16_t>(in[0] | in[1] << 8));
}

}  // namespace

const std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void F32(Bytes in, float* out) {
  *out = std::bit_cast<float>(Word(in));
}
void F16(Bytes in, float* out) {
  *out = Half(in);
}
void Bf16(Bytes in, float* out) {
  *out = FromBfloat(static_cast<std::uint16_t>(in[0] | in[1] << 8));
}

// In blocks of 32, byte i holds element i in its low nibble and element i + 16 in its high one.

// scale; 16 bytes of nibbles. w = d (q - 8)
void Q4_0(Bytes in, float* out) {
  const float d = Half(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((in[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((in[2 + i] >> 4) - 8);
  }
}

// scale, minimum; nibbles. w = d q + m
void Q4_1(Bytes in, float* out) {
  const float d = Half(in), m = Half(in + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(in[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(in[4 + i] >> 4) + m;
  }
}

// scale; 32 fifth bits; nibbles. w = d (q - 16)
void Q5_0(Bytes in, float* out) {
  const float d = Half(in);
  const std::uint32_t high = Word(in + 2);
  for (int i = 0; i < 16; ++i) {
    const int low_q = (in[6 + i] & 15) | static_cast<int>(high >> i & 1) << 4;
    const int high_q = (in[6 + i] >> 4) | static_cast<int>(high >> (i + 16) & 1) << 4;
    out[i] = d * static_cast<float>(low_q - 16);
    out[i + 16] = d * static_cast<float>(high_q - 16);
  }
}

// scale, minimum; 32 fifth bits; nibbles. w = d q + m
void Q5_1(Bytes in, float* out) {
  const float d = Half(in), m = Half(in + 2);
  const std::uint32_t high = Word(in + 4);
  for (int i = 0; i < 16; ++i) {
    const int low_q = (in[8 + i] & 15) | static_cast<int>(high >> i & 1) << 4;
    const int high_q = (in[8 + i] >> 4) | static_cast<int>(high >> (i + 16) & 1) << 4;
    out[i] = d * static_cast<float>(low_q) + m;
    out[i + 16] = d * static_cast<float>(high_q) + m;
  }
}

// scale; 32 signed bytes. w = q d
void Q8_0(Bytes in, float* out) {
  const float d = Half(in);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<std::int8_t>(in[2 + i])) * d;
}

// scale; nibbles that index a table of uneven levels. w = d level[q]
void Iq4Nl(Bytes in, float* out) {
  const float d = Half(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kIq4Values[in[2 + i] & 15]);
    out[i + 16] = d * static_cast<float>(kIq4Values[in[2 + i] >> 4]);
  }
}

// power-of-two scale; nibbles of sign, 2-bit exponent, 1-bit mantissa (values doubled here, the scale halved)
void Mxfp4(Bytes in, float* out) {
  static constexpr std::int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const float d = FromE8m0Half(in[0]);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kDoubled[in[1 + i] & 15]);
    out[i + 16] = d * static_cast<float>(kDoubled[in[1 + i] >> 4]);
  }
}

}  // namespace blocks

namespace {

void (*BlockFunction(WeightType type))(blocks::Bytes, float*) {
  switch (type) {
    case WeightType::kF32: return blocks::F32;
    case WeightType::kF16: return blocks::F16;
    case WeightType::kQ4_0: return blocks::Q4_0;
    case WeightType::kQ4_1: return blocks::Q4_1;
    case WeightType::kQ5_0: return blocks::Q5_0;
    case WeightType::kQ5_1: return blocks::Q5_1;
    case WeightType::kQ8_0: return blocks::Q8_0;
    case WeightType::kQ2_K: return blocks::Q2_K;
    case WeightType::kQ3_K: return blocks::Q3_K;
    case WeightType::kQ4_K: return blocks::Q4_K;
    case WeightType::kQ5_K: return blocks::Q5_K;
    case WeightType::kQ6_K: return blocks::Q6_K;
    case WeightType::kIQ4_NL: return blocks::Iq4Nl;
    case WeightType::kIQ4_XS: return blocks::Iq4Xs;
    case WeightType::kBF16: return blocks::Bf16;
    case WeightType::kMXFP4: return blocks::Mxfp4;
  }
  return nullptr;
}

}  // namespace

Result<void> Dequantise(const WeightLayout& layout, std::span<const std::byte> bytes, std::span<float> out) {
  ASSIGN_OR_RETURN(const std::uint64_t expected, BytesOf(layout, out.size(), 1));
  if (bytes.size() != expected) {
    return Fail(FaultCode::kRefused, "{} elements of {} are {} bytes, not {}", out.size(), layout.name, expected,
                bytes.size());
  }
  const auto block = BlockFunction(layout.type);
  const auto* in = reinterpret_cast<const std::uint8_t*>(bytes.data());
  for (std::size_t at = 0; at < out.size(); at += layout.block_elements, in += layout.block_bytes) {
    block(in, out.data() + at);
  }
  return {};
}

}  // namespace linkcpp
