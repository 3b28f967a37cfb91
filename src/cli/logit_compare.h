// Two models' logits of the same tokens, position by position: how far apart are they? Pure; nothing is kept but sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "oracle/metrics.h"

namespace linkcpp {

class LogitComparison {
 public:
  // One position. reference, result: [n_vocab] f32, n_vocab > 0.
  void Add(std::span<const float> reference, std::span<const float> result);

  std::uint64_t n_positions() const { return n_positions_; }
  bool BitIdentical() const { return n_differing_ == 0; }
  std::uint64_t n_differing() const { return n_differing_; }                         // positions
  std::optional<std::uint64_t> first_differing() const { return first_differing_; }  // index of the position
  std::uint64_t n_not_finite() const { return all_.n_not_finite(); }                 // logits of the result

  double Nmse() const { return all_.Nmse(); }  // sum (reference - result)^2 / sum reference^2
  double MaxAbs() const { return all_.MaxAbs(); }
  std::uint64_t top1_agree() const { return n_top1_; }  // positions with the same most likely token; ties: the lowest

  // KL(P || Q) = sum p (log p - log q) in nats, P from the reference and Q from the result, softmax in double. Infinite
  // as soon as a position's result is not finite.
  double KlMean() const { return n_positions_ == 0 ? 0 : kl_sum_ / static_cast<double>(n_positions_); }
  double KlMax() const { return kl_max_; }
  std::uint64_t kl_max_at() const { return kl_max_at_; }

 private:
  Comparison all_;
  std::uint64_t n_positions_ = 0, n_differing_ = 0, n_top1_ = 0, kl_max_at_ = 0;
  std::optional<std::uint64_t> first_differing_;
  double kl_sum_ = 0, kl_max_ = 0;
  std::vector<double> reference_;  // scratch
};

// As above, of one position.
double KlDivergence(std::span<const float> reference, std::span<const float> result);

}  // namespace linkcpp
