// What asking a worker costs: a round trip plus a time per pair, both learnt from its answers as decaying averages.
//
// The time per pair is kept apart for small, middle and large frames: with few pairs an expert's weights are read for
// each of them, with many they are shared. Figures fade towards a hopeful guess when they are not renewed, so a worker
// that was slow once is tried again. Pure; times are microseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace linkcpp {

class LinkCost {
 public:
  // An answer to `n_pairs` took `elapsed_us`, `compute_us` of them by the worker's own account (not trusted beyond
  // elapsed_us; 0: it does not say).
  void Observe(std::uint32_t n_pairs, double elapsed_us, double compute_us, TimePoint now);
  void ObservePing(double elapsed_us, TimePoint now);

  // A frame of n_pairs on an idle link.
  double ExpectedUs(std::uint32_t n_pairs, TimePoint now) const;
  bool measured() const { return measured_; }                                      // false: ExpectedUs is a guess
  bool measured(std::uint32_t n_pairs) const { return known_[ClassOf(n_pairs)]; }  // with frames of about this size

  double mean_us() const { return mean_us_; }  // dispatch to result, decaying average
  double max_us() const { return max_us_; }

 private:
  static constexpr std::size_t kClasses = 3;
  static std::size_t ClassOf(std::uint32_t n_pairs) { return n_pairs < 16 ? 0 : n_pairs < 256 ? 1 : 2; }
  double PerPairUs(std::size_t size_class) const;

  double base_us_ = 0;
  bool base_known_ = false;
  std::array<double, kClasses> per_pair_us_{};
  std::array<bool, kClasses> known_{};
  bool measured_ = false;
  double mean_us_ = 0;
  double max_us_ = 0;
  TimePoint last_{};
};

}  // namespace linkcpp
