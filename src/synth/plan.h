// A model that could be written: every key and every tensor with its type and place, and what they add up to.
// Pure: nothing is read or written, so totals of a model of hundreds of gigabytes cost milliseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "synth/fill.h"
#include "synth/geometry.h"
#include "synth/quant_mix.h"

namespace linkcpp {

using MetaValue = std::variant<std::uint32_t, std::int32_t, float, bool, std::string, std::vector<std::uint32_t>,
                               std::vector<std::int32_t>, std::vector<std::string>>;
struct MetaKey {
  std::string name;
  MetaValue value;
};

struct PlannedTensor {
  std::string name;
  std::array<std::uint64_t, 4> ne{1, 1, 1, 1};
  int n_dims = 1;
  TensorType type = TensorType::kF32;
  Fill fill;
  std::uint64_t offset = 0;  // from the start of the data, a multiple of kDataAlignment
  std::uint64_t size_bytes = 0;
};

inline constexpr std::uint64_t kDataAlignment = 32;

struct PlanTotals {
  std::uint64_t n_tensors = 0;
  std::uint64_t n_parameters = 0;
  std::uint64_t expert_bytes = 0;  // routed experts, their biases included
  std::uint64_t other_bytes = 0;   // all other tensors
};

struct SynthPlan {
  Geometry geometry;  // as written: layers, experts and vocabulary as asked for
  Mix mix;
  std::vector<MetaKey> keys;  // all but the tokenizer's, which GgufHeader makes
  std::vector<PlannedTensor> tensors;
  std::uint64_t data_bytes = 0;  // with padding

  PlanTotals Totals() const;
};

struct PlanOptions {
  std::string_view like;                         // FindGeometry
  std::string_view type = "Q4_K_M";              // FindMix
  std::optional<std::uint32_t> layers = {};      // default: all of the model's, and its prediction layers
  std::optional<std::uint32_t> experts = {};     // default: the model's
  std::optional<std::uint32_t> vocabulary = {};  // default: the model's
};

// kRefused: a name that is not known, or a number llama.cpp could not load; the text says which and what would do.
Result<SynthPlan> PlanSynth(const PlanOptions& options);

// The header of the GGUF file, padded so that data starts right behind it. About 10 MB with a full vocabulary.
std::string GgufHeader(const SynthPlan& plan);

// The metadata of a geometry, and that of its vocabulary (keys.cc).
std::vector<MetaKey> ListKeys(const Geometry& geometry, const Mix& mix);
std::vector<MetaKey> ListTokenizerKeys(const Geometry& geometry);

}  // namespace linkcpp
