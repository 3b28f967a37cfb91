// The block types of 256 elements: sub-blocks of 16 or 32 with small scales of their own under one half-precision
// scale.
#include "oracle/dequantise.h"
#include "oracle/half.h"

namespace linkcpp::blocks {
namespace {

float Half(Bytes in) {
  return FromHalf(static_cast<std::uint16_t>(in[0] | in[1] << 8));
}

// Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minima into 12 bytes: the first four of each in the low six
// bits of bytes 0-3 and 4-7; of the last four the low nibbles share bytes 8-11, their top two bits are those of bytes
// 0-7.
struct ScaleMin {
  int scale;
  int min;
};
ScaleMin UnpackScaleMin(Bytes packed, int i) {
  if (i < 4) return {packed[i] & 63, packed[i + 4] & 63};
  const int j = i - 4;
  return {(packed[8 + j] & 15) | (packed[j] >> 6) << 4, (packed[8 + j] >> 4) | (packed[4 + j] >> 6) << 4};
}

}  // namespace

// 16 bytes: 4-bit scale (low) and minimum (high) of 16 sub-blocks of 16; 64 bytes of 2-bit quants; d, dmin.
// Each 32 bytes of quants hold four runs of 32 elements, two bits up each time. w = (d scale) q - dmin min
void Q2_K(Bytes in, float* out) {
  const std::uint8_t* quants = in + 16;
  const float d = Half(in + 80), dmin = Half(in + 82);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, shift = i / 32 % 4 * 2;
    const int q = quants[half * 32 + i % 32] >> shift & 3;
    const float scale = d * static_cast<float>(in[i / 16] & 15);
    const float min = dmin * static_cast<float>(in[i / 16] >> 4);
    out[i] = scale * static_cast<float>(q) - min;
  }
}

// 32 bytes of third bits (one bit plane a run of 32); 64 bytes of 2-bit quants as in Q2_K; 12 bytes of 6-bit scales; d.
// The third bit set means "no offset": q in [-4, 3]. w = (d (scale - 32)) q
void Q3_K(Bytes in, float* out) {
  const std::uint8_t *quants = in + 32, *packed = in + 96;
  const float d = Half(in + 108);
  for (int i = 0; i < 256; ++i) {
    const int sub = i / 16;
    const int low = sub < 8 ? packed[sub] & 15 : packed[sub - 8] >> 4;
    const int high = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const int q = quants[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    const int third = in[i % 32] >> (i / 32) & 1;
    out[i] = scale * static_cast<float>(q - (third == 1 ? 0 : 4));
  }
}

// d, dmin; 12 bytes of scales and minima; 128 bytes of nibbles: 32 bytes hold 32 elements low, the next 32 high.
// w = (d scale) q - dmin min
void Q4_K(Bytes in, float* out) {
  const float d = Half(in), dmin = Half(in + 2);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin s = UnpackScaleMin(in + 4, sub);
    const float scale = d * static_cast<float>(s.scale), min = dmin * static_cast<float>(s.min);
    const std::uint8_t* quants = in + 16 + sub / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int q = sub % 2 == 0 ? quants[i] & 15 : quants[i] >> 4;
      out[sub * 32 + i] = scale * static_cast<float>(q) - min;
    }
  }
}

// As Q4_K, with 32 bytes of fifth bits (one bit plane a sub-block) before the nibbles.
void Q5_K(Bytes in, float* out) {
  const float d = Half(in), dmin = Half(in + 2);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleMin s = UnpackScaleMin(in + 4, sub);
    const float scale = d * static_cast<float>(s.scale), min = dmin * static_cast<float>(s.min);
    const std::uint8_t *fifth = in + 16, *quants = in + 48 + sub / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int low = sub % 2 == 0 ? quants[i] & 15 : quants[i] >> 4;
      const int q = low | (fifth[i] >> sub & 1) << 4;
      out[sub * 32 + i] = scale * static_cast<float>(q) - min;
    }
  }
}

// 128 bytes of nibbles (64 bytes: 64 elements low, 64 high), 64 bytes of two more bits (32 bytes: four runs of 32),
// 16 signed scales of sub-blocks of 16, d. w = (d scale) (q - 32)
void Q6_K(Bytes in, float* out) {
  const std::uint8_t *low = in, *high = in + 128, *scales = in + 192;
  const float d = Half(in + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, in_half = i % 128;
    const std::uint8_t byte = low[half * 64 + in_half % 64];
    const int nibble = in_half < 64 ? byte & 15 : byte >> 4;
    const int top = high[half * 32 + i % 32] >> (in_half / 32 * 2) & 3;
    const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
    out[i] = scale * static_cast<float>((nibble | top << 4) - 32);
  }
}

// d; 16 bits with the top two bits of eight scales; 4 bytes with their nibbles; 128 bytes of nibbles, 16 bytes a
// sub-block of 32 laid out as in IQ4_NL. w = (d (scale - 32)) level[q]
void Iq4Xs(Bytes in, float* out) {
  const float d = Half(in);
  const int high = in[2] | in[3] << 8;
  for (int sub = 0; sub < 8; ++sub) {
    const int low = sub % 2 == 0 ? in[4 + sub / 2] & 15 : in[4 + sub / 2] >> 4;
    const float scale = d * static_cast<float>((low | (high >> (2 * sub) & 3) << 4) - 32);
    const std::uint8_t* quants = in + 8 + sub * 16;
    for (int i = 0; i < 16; ++i) {
      out[sub * 32 + i] = scale * static_cast<float>(kIq4Values[quants[i] & 15]);
      out[sub * 32 + i + 16] = scale * static_cast<float>(kIq4Values[quants[i] >> 4]);
    }
  }
}

}  // namespace linkcpp::blocks
