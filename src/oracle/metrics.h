// How far a result is from its reference, in the usual measures and element by element.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace linkcpp {

// Sums over any number of rows; Add may be called again and again. A NaN or infinity in the result counts against it.
class Comparison {
 public:
  // `reference` and `result` have the same length.
  void Add(std::span<const double> reference, std::span<const double> result);
  void Add(std::span<const double> reference, std::span<const float> result);
  void Add(const Comparison& other);

  std::size_t n_elements() const { return n_elements_; }
  std::size_t n_not_finite() const { return n_not_finite_; }

  double Cosine() const;  // 1 when both are all zero, 0 when one is
  double Nmse() const;    // sum (reference - result)^2 / sum reference^2, as ggml's own backend tests have it
  double MaxAbs() const { return max_abs_; }  // max |reference - result|
  double RelativeError() const;               // sqrt(Nmse): |reference - result| / |reference| as vectors
  double ReferenceMaxAbs() const { return reference_max_abs_; }

 private:
  void AddOne(double reference, double result);
  std::size_t n_elements_ = 0;
  std::size_t n_not_finite_ = 0;
  double dot_ = 0, reference_squares_ = 0, result_squares_ = 0, error_squares_ = 0;
  double max_abs_ = 0, reference_max_abs_ = 0;
};

// |result - reference| <= tolerance + tolerance |reference| for every element. NaN anywhere: false.
bool AllClose(std::span<const double> reference, std::span<const double> result, double tolerance);
bool AllClose(std::span<const double> reference, std::span<const float> result, double tolerance);

// The same bits in every element; NaNs are equal when their bits are.
bool BitIdentical(std::span<const float> a, std::span<const float> b);

}  // namespace linkcpp
