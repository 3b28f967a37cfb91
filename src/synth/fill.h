// What numbers a made tensor holds, and the bytes of such a tensor drawn directly in its block format.
//
// Nothing is quantised: scales are chosen so that random quants have the wanted spread, so a tensor costs little more
// than its random bytes. Only exact arithmetic (+ - × ÷ √) is used, so a seed gives the same bytes on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/rng.h"
#include "synth/tensor_type.h"

namespace linkcpp {

struct Fill {
  enum class Kind : std::uint8_t { kSpread, kRange };
  Kind kind = Kind::kSpread;
  float a = 0;  // kSpread: standard deviation about zero. kRange: least value
  float b = 0;  // kRange: greatest value; drawn evenly

  static Fill Spread(double deviation) { return {Kind::kSpread, static_cast<float>(deviation), 0}; }
  static Fill Range(double least, double greatest) {
    return {Kind::kRange, static_cast<float>(least), static_cast<float>(greatest)};
  }
  friend bool operator==(const Fill&, const Fill&) = default;
};

// Draws blocks of one type with one fill. Construction makes small tables; copies share nothing. One thread at a time.
// kRange needs F32, F16 or BF16; a quantised type takes it as the spread about zero with the same deviation.
class BlockFiller {
 public:
  BlockFiller(TensorType type, const Fill& fill);

  // bytes: a whole number of blocks.
  void Draw(Rng& rng, std::span<std::byte> bytes) const;

 private:
  TensorType type_;
  std::vector<std::uint32_t> values_;            // bits of the floats to choose from, ascending (F32, F16, BF16)
  std::vector<std::uint16_t> scales_, offsets_;  // f16 scale and matching offset per block, a few to choose from
  std::vector<std::uint8_t> exponents_;          // MXFP4
};

std::uint16_t HalfBits(float value);  // nearest f16, ties to even; infinities for what does not fit

}  // namespace linkcpp
