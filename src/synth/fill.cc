#include "synth/fill.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace linkcpp {
namespace {

constexpr std::size_t kChoices = 4096;  // floats a tensor's values are chosen from: 16 KB, stays in the first cache
constexpr std::size_t kScales = 16;     // scales a tensor's blocks are chosen from, 0.75 to 1.25 of the mean

// Evenly spaced quantiles: of the triangle on ±√6 deviations (spread), or of the range.
std::vector<float> Quantiles(const Fill& fill) {
  std::vector<float> values(kChoices);
  for (std::size_t i = 0; i < kChoices; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kChoices;
    if (fill.kind == Fill::Kind::kRange) {
      values[i] = static_cast<float>(fill.a + p * (static_cast<double>(fill.b) - fill.a));
    } else {
      const double t = p < 0.5 ? std::sqrt(2 * p) - 1 : 1 - std::sqrt(2 * (1 - p));
      values[i] = static_cast<float>(t * std::sqrt(6.0) * fill.a);
    }
  }
  return values;
}

std::uint16_t BrainBits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// What one step of a block's scale is worth: the deviation of quant × sub-block scale when both are drawn as below.
//   uniform integers 0..n-1 have the variance (n² - 1) / 12
double UnitDeviation(TensorType type) {
  const auto uniform = [](double n) { return (n * n - 1) / 12; };
  const auto mean_square = [](int least, int greatest) {
    double sum = 0;
    for (int i = least; i <= greatest; ++i) sum += static_cast<double>(i) * i;
    return sum / (greatest - least + 1);
  };
  switch (type) {
    case TensorType::kQ4_0: return std::sqrt(uniform(16) + 0.25);
    case TensorType::kQ4_1: return std::sqrt(uniform(16));
    case TensorType::kQ5_0: return std::sqrt(uniform(32) + 0.25);
    case TensorType::kQ5_1: return std::sqrt(uniform(32));
    case TensorType::kQ8_0: return std::sqrt(mean_square(-127, 127));
    case TensorType::kQ2_K: return std::sqrt(uniform(4) * mean_square(8, 15));
    case TensorType::kQ3_K: return std::sqrt((uniform(8) + 0.25) * mean_square(-32, 31));
    case TensorType::kQ4_K: return std::sqrt(uniform(16) * mean_square(32, 63));
    case TensorType::kQ5_K: return std::sqrt(uniform(32) * mean_square(32, 63));
    case TensorType::kQ6_K: return std::sqrt((uniform(64) + 0.25) * mean_square(64, 95));
    case TensorType::kIQ4_NL:
    case TensorType::kIQ4_XS: {
      // The sixteen values of the non-linear 4-bit types.
      constexpr int kLevels[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
      double square = 0;
      for (const int level : kLevels) square += static_cast<double>(level) * level / 16;
      return std::sqrt(square * (type == TensorType::kIQ4_XS ? mean_square(-32, 31) : 1));
    }
    case TensorType::kMXFP4: return std::sqrt((0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8);
    default: return 1;
  }
}

// Offset of a block whose quants are not signed: the middle quant becomes zero.
double MiddleQuant(TensorType type) {
  switch (type) {
    case TensorType::kQ2_K: return 1.5;
    case TensorType::kQ4_K: return 7.5;
    case TensorType::kQ5_K: return 15.5;
    case TensorType::kQ4_1: return -7.5;  // added, not subtracted
    case TensorType::kQ5_1: return -15.5;
    default: return 0;
  }
}

// Signed quants whose range is not symmetric get a scale of random sign, so that nothing drifts.
bool SignedScale(TensorType type) {
  return type == TensorType::kQ4_0 || type == TensorType::kQ5_0 || type == TensorType::kIQ4_NL;
}

void Put16(std::byte* to, std::uint16_t value) {
  to[0] = static_cast<std::byte>(value & 0xff);
  to[1] = static_cast<std::byte>(value >> 8);
}

// n: a multiple of 4.
void PutRandom(Rng& rng, std::byte* to, std::size_t n) {
  for (; n >= 8; n -= 8, to += 8) {
    const std::uint64_t word = rng.Next();
    std::memcpy(to, &word, 8);
  }
  if (n > 0) {
    const std::uint64_t word = rng.Next();
    std::memcpy(to, &word, n);
  }
}

// Eight scales of 6 bits, 32..63, and the same eight again as the offsets' scales, in the 12 bytes of Q4_K and Q5_K.
void PutSixBitScales(Rng& rng, std::byte* to) {
  const std::uint64_t word = rng.Next();
  std::array<std::uint8_t, 8> s;
  for (int j = 0; j < 8; ++j) s[j] = static_cast<std::uint8_t>(32 | ((word >> (8 * j)) & 31));
  for (int j = 0; j < 4; ++j) {
    const auto low = static_cast<std::uint8_t>(s[j] | (s[j + 4] >> 4) << 6);
    to[j] = to[j + 4] = static_cast<std::byte>(low);
    to[j + 8] = static_cast<std::byte>((s[j + 4] & 15) | (s[j + 4] & 15) << 4);
  }
}

}  // namespace

std::uint16_t HalfBits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const double magnitude = std::fabs(static_cast<double>(value));
  if (!(magnitude < 65520.0)) return sign | 0x7c00;
  if (magnitude == 0) return sign;
  // Steps of 2^-24 below 2^-14, else 11 significant bits; nearbyint rounds ties to even.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int step = std::max(exponent - 11, -24);
  auto mantissa = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -step)));
  // A mantissa of 2^11 carries into the exponent by itself.
  const std::uint32_t biased = step == -24 ? mantissa : ((static_cast<std::uint32_t>(step + 24) << 10) + mantissa);
  return static_cast<std::uint16_t>(sign | biased);
}

BlockFiller::BlockFiller(TensorType type, const Fill& fill) : type_(type) {
  if (!IsQuantised(type)) {
    for (const float value : Quantiles(fill)) {
      values_.push_back(type == TensorType::kF32   ? std::bit_cast<std::uint32_t>(value)
                        : type == TensorType::kF16 ? HalfBits(value)
                                                   : BrainBits(value));
    }
    return;
  }
  const double deviation =
      fill.kind == Fill::Kind::kSpread ? fill.a : (static_cast<double>(fill.b) - fill.a) / std::sqrt(12.0);
  const double unit = deviation / UnitDeviation(type);
  if (type == TensorType::kMXFP4) {
    // Powers of two only: a mixture of two neighbours has the wanted mean square.
    int exponent = 0;
    const double fraction = std::frexp(unit, &exponent);  // [0.5, 1), so 2^(exponent - 1) <= unit
    const double ratio = 4 * fraction * fraction;         // (unit / 2^(exponent - 1))², [1, 4)
    const auto n_upper = static_cast<std::size_t>(std::nearbyint((ratio - 1) / 3 * kScales));
    for (std::size_t i = 0; i < kScales; ++i) {
      exponents_.push_back(static_cast<std::uint8_t>(std::clamp(127 + exponent - (i < n_upper ? 0 : 1), 1, 253)));
    }
    return;
  }
  double mean_square = 0;
  std::vector<double> factors;
  for (std::size_t i = 0; i < kScales; ++i) {
    factors.push_back(0.75 + 0.5 * static_cast<double>(i) / (kScales - 1));
    mean_square += factors.back() * factors.back() / kScales;
  }
  for (std::size_t i = 0; i < kScales; ++i) {
    const double sign = SignedScale(type) && i % 2 == 1 ? -1 : 1;
    const double scale = sign * unit * factors[i] / std::sqrt(mean_square);
    scales_.push_back(HalfBits(static_cast<float>(scale)));
    offsets_.push_back(HalfBits(static_cast<float>(scale * MiddleQuant(type))));
  }
}

void BlockFiller::Draw(Rng& rng, std::span<std::byte> bytes) const {
  const std::size_t block = InfoOf(type_).block_bytes;
  std::byte* p = bytes.data();
  std::byte* const end = p + bytes.size() / block * block;

  if (!values_.empty()) {
    // Five indices of 12 bits from one draw.
    std::uint64_t word = 0;
    for (int left = 0; p < end; p += block) {
      if (left == 0) {
        word = rng.Next();
        left = 5;
      }
      const std::uint32_t bits = values_[word % kChoices];
      word /= kChoices;
      --left;
      std::memcpy(p, &bits, block);
    }
    return;
  }
  for (; p < end; p += block) {
    const std::uint64_t word = rng.Next();
    const std::size_t choice = word >> 60;
    switch (type_) {
      case TensorType::kQ4_0:
      case TensorType::kQ5_0:
      case TensorType::kIQ4_NL:
        Put16(p, scales_[choice]);
        PutRandom(rng, p + 2, block - 2);
        break;
      case TensorType::kQ4_1:
      case TensorType::kQ5_1:
        Put16(p, scales_[choice]);
        Put16(p + 2, offsets_[choice]);
        PutRandom(rng, p + 4, block - 4);
        break;
      case TensorType::kQ8_0:
        Put16(p, scales_[choice]);
        PutRandom(rng, p + 2, 32);
        // A real quantiser never writes -128, and kernels may rely on it.
        for (std::size_t i = 2; i < 34; ++i) p[i] = p[i] == std::byte{0x80} ? std::byte{0x81} : p[i];
        break;
      case TensorType::kQ2_K:
        for (int i = 0; i < 8; ++i) {
          const auto pair = static_cast<std::uint8_t>(word >> (6 * i));  // two scales of 8..15, offsets' scales alike
          p[2 * i] = static_cast<std::byte>(0x88 | (pair & 7) | (pair & 7) << 4);
          p[2 * i + 1] = static_cast<std::byte>(0x88 | ((pair >> 3) & 7) | ((pair >> 3) & 7) << 4);
        }
        PutRandom(rng, p + 16, 64);
        Put16(p + 80, scales_[choice]);
        Put16(p + 82, offsets_[choice]);
        break;
      case TensorType::kQ3_K:
        PutRandom(rng, p, 108);
        Put16(p + 108, scales_[choice]);
        break;
      case TensorType::kQ4_K:
      case TensorType::kQ5_K:
        Put16(p, scales_[choice]);
        Put16(p + 2, offsets_[choice]);
        PutSixBitScales(rng, p + 4);
        PutRandom(rng, p + 16, block - 16);
        break;
      case TensorType::kQ6_K: {
        PutRandom(rng, p, 192);
        std::array<std::byte, 16> random;
        PutRandom(rng, random.data(), 16);
        for (int i = 0; i < 16; ++i) {  // ±(64..95)
          const auto r = static_cast<int>(random[i]);
          const int magnitude = 64 + (r & 31);
          p[192 + i] = static_cast<std::byte>((r & 128) != 0 ? -magnitude : magnitude);
        }
        Put16(p + 208, scales_[choice]);
        break;
      }
      case TensorType::kIQ4_XS:
        Put16(p, scales_[choice]);
        PutRandom(rng, p + 2, 4);
        Put16(p + 6, static_cast<std::uint16_t>(word));
        PutRandom(rng, p + 8, 128);
        break;
      case TensorType::kMXFP4:
        p[0] = static_cast<std::byte>(exponents_[choice]);
        PutRandom(rng, p + 1, 16);
        break;
      default: break;
    }
  }
}

}  // namespace linkcpp
