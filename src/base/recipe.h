// What the host graph does to one (row, expert) pair between the router and the weighted sum: a short list of steps
// over the expert's tensors and the input row, in the host graph's own order and with its own functions.
//
// A recipe is a closed vocabulary (below), not a graph: every step is checked before anything runs, a worker can
// refuse what it does not know, and two recipes are the same when their steps are. Values are numbered: value 0 is the
// input row, value i + 1 is what step i made; the last value is the result.
//
// The usual one (SWIGLU, separate gate and up) is
//   1 = up · 0     2 = gate · 0     3 = swiglu(2, 1)     4 = down · 3
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace linkcpp {

enum class Projection : std::uint8_t { kGate = 0, kUp = 1, kDown = 2, kGateUp = 3 };  // on the wire: do not renumber
inline constexpr int kProjections = 4;
const char* ProjectionName(Projection projection);  // "gate", "up", "down", "gate_up"

enum class StepOp : std::uint8_t {  // on the wire: do not renumber
  kProject = 1,                     // projection's weight times value a
  kBias = 2,                        // value a + the expert's bias of projection
  kScale = 3,                       // value a × the expert's scale (one number) of projection
  kGlu = 4,      // glu(a, b), function in fn; b == a: both halves of one row (activated half first; swapped: second)
  kUnary = 5,    // unary(a), function in fn
  kSquare = 6,   // a × a
  kClamp = 7,    // a limited to [p0, p1]
  kMul = 8,      // a × b, element by element
  kAdd = 9,      // a + b
  kFactor = 10,  // a × p0 + p1
  kHalf = 11,    // the first (fn 0) or second (fn 1) half of value a's row
};

enum class GluFn : std::uint8_t {  // on the wire: do not renumber
  kReglu = 0,
  kGeglu = 1,
  kSwiglu = 2,
  kSwigluOai = 3,
  kGegluErf = 4,
  kGegluQuick = 5,
  kSwigluClamp = 6,
};
inline constexpr int kGluFns = 7;

enum class UnaryFn : std::uint8_t {  // on the wire: do not renumber
  kRelu = 0,
  kSilu = 1,
  kGelu = 2,
  kGeluQuick = 3,
  kGeluErf = 4,
  kSigmoid = 5,
  kTanh = 6,
  kNeg = 7,
  kExp = 8,
  kSoftplus = 9,
  kAbs = 10,
  kElu = 11,
  kHardswish = 12,
  kHardsigmoid = 13,
  kStep = 14,
  kSgn = 15,
};
inline constexpr int kUnaryFns = 16;

struct Step {
  StepOp op = StepOp::kProject;
  Projection projection = Projection::kGate;  // kProject, kBias, kScale
  std::uint8_t fn = 0;                        // GluFn, UnaryFn, or which half
  bool swapped = false;                       // kGlu
  std::uint8_t a = 0;                         // value number
  std::uint8_t b = 0;                         // value number: kGlu, kMul, kAdd
  float p0 = 0;                               // kClamp min, kFactor scale, kGlu alpha (SWIGLU_OAI)
  float p1 = 0;                               // kClamp max, kFactor offset, kGlu limit (SWIGLU_OAI, SWIGLU_CLAMP)
  friend bool operator==(const Step&, const Step&) = default;
};

struct Recipe {
  std::vector<Step> steps;
  friend bool operator==(const Recipe&, const Recipe&) = default;

  // "up.0 gate.0 swiglu(2,1) down.3": for logs and for the tests' lists.
  std::string Describe() const;

  // The usual recipe: separate gate and up, SWIGLU, down.
  static Recipe Swiglu();
};

inline constexpr std::size_t kMaxRecipeSteps = 32;
inline constexpr std::size_t kStepBytes = 14;

// Fixed-width little-endian bytes, kStepBytes a step: op, projection, fn, swapped, a, b (u8 each), p0, p1 (f32).
std::vector<std::uint8_t> EncodeRecipe(const Recipe& recipe);

// kMalformed: wrong length, unknown op or function, a value number that does not exist yet, no or too many steps.
// Does not know the expert's tensors: whether projection X exists is for the holder of the slice to say.
Result<Recipe> DecodeRecipe(std::span<const std::uint8_t> bytes);

// 64-bit FNV-1a of the encoded bytes: a key for caches.
std::uint64_t RecipeKey(const Recipe& recipe);

}  // namespace linkcpp
