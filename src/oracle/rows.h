// What a kernel does to a row before it multiplies it: the number formats of rows, and how far each moves an element.
//
// Two uses. Unreplayed: the row is exact and the error of turning it into the format is bounded. Replayed: the row is
// turned into the format here, and what remains is only where a kernel could have rounded the other way, because its
// row is not exactly ours or its arithmetic is float32. docs/numerics.md derives the figures.
#pragma once

#include <span>
#include <vector>

#include "oracle/weight_type.h"

namespace linkcpp {

// A row as known: its values, a limit of the error of each, and the variance that the error is modelled to have.
struct UncertainRow {
  std::vector<double> value;
  std::vector<double> worst;
  std::vector<double> variance;
};

// The row as the kernel multiplies it: `value` to compute with, and how far the kernel's own may be from it.
UncertainRow RoundRow(RowFormat format, const UncertainRow& row);   // value unchanged, errors grown
UncertainRow ReplayRow(RowFormat format, const UncertainRow& row);  // value turned into the format

// How many standard deviations the likely bound allows. A sum of independent rounding errors, each uniform over one
// step, exceeds t standard deviations with probability at most 2 exp(-t^2 / 2): 2.5e-14 for 8.
inline constexpr double kLikelySigmas = 8;

}  // namespace linkcpp
