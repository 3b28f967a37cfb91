#include "swarm/link_cost.h"

#include <algorithm>
#include <cmath>

namespace linkcpp {
namespace {

constexpr double kNewest = 0.2;       // share of the newest observation in an average
constexpr double kHalfLifeS = 10;     // of a figure that is worse than the guess
constexpr double kGuessBaseUs = 300;  // a wired network
constexpr std::array<double, 3> kGuessPerPairUs = {100, 50, 20};

void Mix(double& average, bool& known, double value) {
  average = known ? average + kNewest * (value - average) : value;
  known = true;
}

}  // namespace

void LinkCost::Observe(std::uint32_t n_pairs, double elapsed_us, double compute_us, TimePoint now) {
  n_pairs = std::max(n_pairs, 1u);
  elapsed_us = std::max(elapsed_us, 0.0);
  compute_us = std::clamp(compute_us, 0.0, elapsed_us);
  const std::size_t size_class = ClassOf(n_pairs);
  if (size_class == 0) {
    Mix(base_us_, base_known_, elapsed_us - compute_us);
    Mix(per_pair_us_[0], known_[0], compute_us / n_pairs);
  } else {
    // The rows of a large frame take time on the wire too: all beyond an empty round trip counts per pair.
    const double base_us = base_known_ ? std::min(base_us_, elapsed_us) : 0;
    Mix(per_pair_us_[size_class], known_[size_class], (elapsed_us - base_us) / n_pairs);
  }
  Mix(mean_us_, measured_, elapsed_us);
  max_us_ = std::max(max_us_, elapsed_us);
  last_ = now;
}

void LinkCost::ObservePing(double elapsed_us, TimePoint now) {
  Mix(base_us_, base_known_, std::max(elapsed_us, 0.0));
  if (!measured_) last_ = now;
}

double LinkCost::PerPairUs(std::size_t size_class) const {
  if (known_[size_class]) return per_pair_us_[size_class];
  for (std::size_t step = 1; step < kClasses; ++step) {  // the nearest class that is known; a smaller one costs more
    if (size_class >= step && known_[size_class - step]) return per_pair_us_[size_class - step];
    if (size_class + step < kClasses && known_[size_class + step]) return per_pair_us_[size_class + step];
  }
  return kGuessPerPairUs[size_class];
}

double LinkCost::ExpectedUs(std::uint32_t n_pairs, TimePoint now) const {
  const std::size_t size_class = ClassOf(n_pairs);
  const double guess = kGuessBaseUs + kGuessPerPairUs[size_class] * n_pairs;
  const double figure = (base_known_ ? base_us_ : kGuessBaseUs) + PerPairUs(size_class) * n_pairs;
  if (figure <= guess) return figure;
  const double age_s = std::max(0.0, std::chrono::duration<double>(now - last_).count());
  return guess + (figure - guess) * std::exp2(-age_s / kHalfLifeS);
}

}  // namespace linkcpp
