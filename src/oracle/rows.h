// What a kernel does to a row before it multiplies it: the number formats of rows, and how far each moves an element.
//
// Two uses. RoundRow keeps the row and says how far the format may move each element: for the worst case. ReplayRow
// turns the row into the format, as a kernel does, and says only where a kernel could have rounded the other way,
// because its row is not exactly ours or its arithmetic is float32. docs/numerics.md derives the figures.
#pragma once

#include <span>
#include <vector>

#include "oracle/weight_type.h"

namespace linkcpp {

// Numbers as known: values, a limit of the error of each, and the variance that float rounding is modelled to give it.
struct UncertainValues {
  std::vector<double> value;
  std::vector<double> worst;
  std::vector<double> variance;
};

struct UncertainRow : UncertainValues {
  UncertainValues sums;  // Q8_1 only: each block's sum as the format carries it, a half of its own
};

UncertainRow RoundRow(RowFormat format, const UncertainRow& row);   // value and variance unchanged, worst grown
UncertainRow ReplayRow(RowFormat format, const UncertainRow& row);  // value turned into the format

// How many standard deviations the likely bound allows. A sum of independent rounding errors, each uniform over one
// step, exceeds t standard deviations with probability at most 2 exp(-t^2 / 2): 2.5e-14 for 8.
inline constexpr double kLikelySigmas = 8;

}  // namespace linkcpp
