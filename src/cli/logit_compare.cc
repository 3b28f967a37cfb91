#include "cli/logit_compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace linkcpp {
namespace {

struct Softmax {
  double max = 0, log_sum = 0;  // log p_i = x_i - max - log_sum
};

Softmax SoftmaxOf(std::span<const float> logits) {
  Softmax out{.max = *std::ranges::max_element(logits)};
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - out.max);
  out.log_sum = std::log(sum);
  return out;
}

bool Finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

std::size_t Top(std::span<const float> logits) {
  return static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace

double KlDivergence(std::span<const float> reference, std::span<const float> result) {
  if (!Finite(reference) || !Finite(result)) return std::numeric_limits<double>::infinity();
  const Softmax p = SoftmaxOf(reference), q = SoftmaxOf(result);
  double sum = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - p.max - p.log_sum;
    sum += std::exp(log_p) * (log_p - (result[i] - q.max - q.log_sum));
  }
  return std::max(sum, 0.0);  // rounding may leave it a little below
}

void LogitComparison::Add(std::span<const float> reference, std::span<const float> result) {
  reference_.assign(reference.begin(), reference.end());
  all_.Add(std::span<const double>(reference_), result);
  const bool same = linkcpp::BitIdentical(reference, result);
  if (!same) {
    ++n_differing_;
    if (!first_differing_) first_differing_ = n_positions_;
  }
  if (Finite(result) && Top(reference) == Top(result)) ++n_top1_;
  const double kl = same && Finite(result) ? 0 : KlDivergence(reference, result);
  kl_sum_ += kl;
  if (kl > kl_max_) {
    kl_max_ = kl;
    kl_max_at_ = n_positions_;
  }
  ++n_positions_;
}

}  // namespace linkcpp
