#include "oracle/activation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace linkcpp {
namespace {

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double Silu(double x) {
  return x * Sigmoid(x);
}
double GeluQuick(double x) {
  return x * Sigmoid(1.702 * x);
}
double GeluErf(double x) {
  return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
}
double GeluTanh(double x) {
  constexpr double kSqrt2OverPi = 0.79788456080286535587989211986876;
  return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * x * (1 + 0.044715 * x * x)));
}

// Largest slope anywhere, rounded up. Infinite where there is none: exp grows, step and sgn jump.
double GlobalSlope(UnaryFn fn) {
  switch (fn) {
    case UnaryFn::kSilu: return 1.1;       // 1.0998 at x = 2.4
    case UnaryFn::kGelu: return 1.13;      // 1.1290 at x = 1.4
    case UnaryFn::kGeluErf: return 1.13;   // 1.1290 at x = sqrt 2
    case UnaryFn::kGeluQuick: return 1.1;  // silu's, stretched
    case UnaryFn::kSigmoid: return 0.25;
    case UnaryFn::kHardswish: return 1.5;  // at x = 3
    case UnaryFn::kHardsigmoid: return 1.0 / 6;
    case UnaryFn::kRelu:
    case UnaryFn::kTanh:
    case UnaryFn::kNeg:
    case UnaryFn::kSoftplus:
    case UnaryFn::kAbs:
    case UnaryFn::kElu: return 1;
    case UnaryFn::kExp:
    case UnaryFn::kStep:
    case UnaryFn::kSgn: return std::numeric_limits<double>::infinity();
  }
  return std::numeric_limits<double>::infinity();
}

bool Monotone(UnaryFn fn) {
  switch (fn) {
    case UnaryFn::kSilu:
    case UnaryFn::kGelu:
    case UnaryFn::kGeluErf:
    case UnaryFn::kGeluQuick:
    case UnaryFn::kHardswish:
    case UnaryFn::kAbs: return false;
    default: return true;
  }
}

// The unary function on a glu's gate. SWIGLU_OAI's and SWIGLU_CLAMP's limit is applied by the caller.
UnaryFn GateFn(GluFn fn) {
  switch (fn) {
    case GluFn::kReglu: return UnaryFn::kRelu;
    case GluFn::kGeglu: return UnaryFn::kGelu;
    case GluFn::kGegluErf: return UnaryFn::kGeluErf;
    case GluFn::kGegluQuick: return UnaryFn::kGeluQuick;
    case GluFn::kSwiglu:
    case GluFn::kSwigluClamp:
    case GluFn::kSwigluOai: return UnaryFn::kSilu;
  }
  return UnaryFn::kSilu;
}

}  // namespace

double Unary(UnaryFn fn, double x) {
  switch (fn) {
    case UnaryFn::kRelu: return x > 0 ? x : 0;
    case UnaryFn::kSilu: return Silu(x);
    case UnaryFn::kGelu: return GeluTanh(x);
    case UnaryFn::kGeluQuick: return GeluQuick(x);
    case UnaryFn::kGeluErf: return GeluErf(x);
    case UnaryFn::kSigmoid: return Sigmoid(x);
    case UnaryFn::kTanh: return std::tanh(x);
    case UnaryFn::kNeg: return -x;
    case UnaryFn::kExp: return std::exp(x);
    case UnaryFn::kSoftplus: return x > 20 ? x : std::log1p(std::exp(x));
    case UnaryFn::kAbs: return std::fabs(x);
    case UnaryFn::kElu: return x > 0 ? x : std::expm1(x);
    case UnaryFn::kHardswish: return x * std::clamp((x + 3) / 6, 0.0, 1.0);
    case UnaryFn::kHardsigmoid: return std::clamp((x + 3) / 6, 0.0, 1.0);
    case UnaryFn::kStep: return x > 0 ? 1 : 0;
    case UnaryFn::kSgn: return x > 0 ? 1 : x < 0 ? -1 : 0;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double GluGate(GluFn fn, double a, float alpha, float limit) {
  switch (fn) {
    case GluFn::kSwigluOai: {
      const double gate = std::min(a, static_cast<double>(limit));
      return gate * Sigmoid(alpha * gate);
    }
    case GluFn::kSwigluClamp: return Silu(std::min(a, static_cast<double>(limit)));
    default: return Unary(GateFn(fn), a);
  }
}

double GluUp(GluFn fn, double b, float limit) {
  switch (fn) {
    case GluFn::kSwigluOai: return std::clamp(b, -static_cast<double>(limit), static_cast<double>(limit)) + 1;
    case GluFn::kSwigluClamp: return std::clamp(b, -static_cast<double>(limit), static_cast<double>(limit));
    default: return b;
  }
}

double Glu(GluFn fn, double a, double b, float alpha, float limit) {
  return GluGate(fn, a, alpha, limit) * GluUp(fn, b, limit);
}

FunctionRounding RoundingOf(UnaryFn fn) {
  constexpr double kHalf = 0x1p-11, kHalfLeast = 0x1p-25;
  constexpr double kFloats = 0x1p-20;  // a few float32 operations, one of them an exp good to a few last places
  switch (fn) {
    case UnaryFn::kRelu:
    case UnaryFn::kNeg:
    case UnaryFn::kAbs:
    case UnaryFn::kStep:
    case UnaryFn::kSgn: return {};
    // A table of halves indexed by halves; of 0.5 x (1 + tanh(...)) where negative x cancels.
    case UnaryFn::kGelu:
      return {.in = kHalf, .in_least = kHalfLeast, .out = kHalf, .out_least = kHalfLeast, .of_input = kFloats};
    case UnaryFn::kGeluQuick: return {.in = kHalf, .in_least = kHalfLeast, .out = kHalf, .out_least = kHalfLeast};
    case UnaryFn::kGeluErf: return {.out = kFloats, .of_input = kFloats};    // 0.5 x (1 + erf(...))
    case UnaryFn::kSoftplus: return {.out = kFloats, .out_least = kFloats};  // log(1 + e^x)
    default: return {.out = kFloats};
  }
}

FunctionRounding RoundingOf(GluFn fn) {
  return RoundingOf(GateFn(fn));
}

double UnarySpread(UnaryFn fn, double x, double e) {
  const double by_slope = GlobalSlope(fn) * e;
  if (e == 0) return 0;
  if (!Monotone(fn)) return by_slope;
  const double middle = Unary(fn, x);
  return std::min(by_slope, std::max(std::fabs(Unary(fn, x + e) - middle), std::fabs(Unary(fn, x - e) - middle)));
}

double GluGateSpread(GluFn fn, double a, double e, float limit) {
  switch (fn) {
    case GluFn::kSwigluOai: return 1.1 * std::min(e, std::max(0.0, static_cast<double>(limit) - a + e));
    case GluFn::kSwigluClamp: return 1.1 * std::min(e, std::max(0.0, static_cast<double>(limit) - a + e));
    default: return UnarySpread(GateFn(fn), a, e);
  }
}

}  // namespace linkcpp
