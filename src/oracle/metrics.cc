#include "oracle/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace linkcpp {

void Comparison::AddOne(double reference, double result) {
  ++n_elements_;
  reference_squares_ += reference * reference;
  reference_max_abs_ = std::max(reference_max_abs_, std::fabs(reference));
  if (!std::isfinite(result)) {
    ++n_not_finite_;
    max_abs_ = error_squares_ = std::numeric_limits<double>::infinity();
    return;
  }
  const double error = reference - result;
  dot_ += reference * result;
  result_squares_ += result * result;
  error_squares_ += error * error;
  max_abs_ = std::max(max_abs_, std::fabs(error));
}

void Comparison::Add(std::span<const double> reference, std::span<const double> result) {
  for (std::size_t i = 0; i < reference.size(); ++i) AddOne(reference[i], result[i]);
}

void Comparison::Add(std::span<const double> reference, std::span<const float> result) {
  for (std::size_t i = 0; i < reference.size(); ++i) AddOne(reference[i], result[i]);
}

void Comparison::Add(const Comparison& other) {
  n_elements_ += other.n_elements_;
  n_not_finite_ += other.n_not_finite_;
  dot_ += other.dot_;
  reference_squares_ += other.reference_squares_;
  result_squares_ += other.result_squares_;
  error_squares_ += other.error_squares_;
  max_abs_ = std::max(max_abs_, other.max_abs_);
  reference_max_abs_ = std::max(reference_max_abs_, other.reference_max_abs_);
}

double Comparison::Cosine() const {
  if (n_not_finite_ > 0) return 0;
  if (reference_squares_ == 0 || result_squares_ == 0) return reference_squares_ == result_squares_ ? 1 : 0;
  return dot_ / std::sqrt(reference_squares_) / std::sqrt(result_squares_);
}

double Comparison::Nmse() const {
  if (error_squares_ == 0) return 0;
  if (reference_squares_ == 0) return std::numeric_limits<double>::infinity();
  return error_squares_ / reference_squares_;
}

double Comparison::RelativeError() const {
  return std::sqrt(Nmse());
}

namespace {

template <class T>
bool AllCloseAs(std::span<const double> reference, std::span<const T> result, double tolerance) {
  if (reference.size() != result.size()) return false;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double limit = tolerance + tolerance * std::fabs(reference[i]);
    if (!(std::fabs(static_cast<double>(result[i]) - reference[i]) <= limit)) return false;
  }
  return true;
}

}  // namespace

bool AllClose(std::span<const double> reference, std::span<const double> result, double tolerance) {
  return AllCloseAs(reference, result, tolerance);
}

bool AllClose(std::span<const double> reference, std::span<const float> result, double tolerance) {
  return AllCloseAs(reference, result, tolerance);
}

bool BitIdentical(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(
      a, b, {}, [](float v) { return std::bit_cast<std::uint32_t>(v); },
      [](float v) { return std::bit_cast<std::uint32_t>(v); });
}

}  // namespace linkcpp
