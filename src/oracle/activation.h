// The functions between the matmuls, as formulas in double: unary ones, and the gated ones (glu) of two values.
//
// Also what a kernel's own version may be off by: most compute in float32, but ggml's GELU and GELU_QUICK look their
// result up in a half-precision table on the CPU, so their input and output carry half's rounding.
#pragma once

#include "base/recipe.h"

namespace linkcpp {

double Unary(UnaryFn fn, double x);

// a: the gate, b: the up value. alpha: SWIGLU_OAI's (a step's p0); limit: SWIGLU_OAI's and SWIGLU_CLAMP's (p1).
double Glu(GluFn fn, double a, double b, float alpha, float limit);

// A kernel's f(x) may be off by rounding of its input: relative `in`, absolute `in_least`; and of its result: relative
// `out`, `out_least` absolute, and `of_input` times |x| where 1 + something small cancels inside.
struct FunctionRounding {
  double in = 0, in_least = 0;
  double out = 0, out_least = 0, of_input = 0;
};
FunctionRounding RoundingOf(UnaryFn fn);
FunctionRounding RoundingOf(GluFn fn);

// max |f(x + t) - f(x)| over |t| <= e, from above. Rigorous: the global Lipschitz constant of f where f has one, the
// values at the ends where f is monotone.
double UnarySpread(UnaryFn fn, double x, double e);

// The same of the part of a glu that sees only the gate: Glu = Gate(a) * Up(b).
double GluGate(GluFn fn, double a, float alpha, float limit);
double GluUp(GluFn fn, double b, float limit);
double GluGateSpread(GluFn fn, double a, double e, float limit);

}  // namespace linkcpp
