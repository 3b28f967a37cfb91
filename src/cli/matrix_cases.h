// From models to the matrix's job: which experts and rows, in which dispatches, and what the oracle needs to judge
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"
#include "matrix/compare.h"
#include "matrix/job.h"

namespace linkcpp {

// What somebody holds of a model: by layer, experts in ascending order.
using HeldExperts = std::map<std::uint16_t, std::vector<std::uint16_t>>;

struct CaseOptions {
  std::vector<std::uint32_t> layers;  // empty: all that have experts; with `holders`: see LayersFor
  std::string experts;                // "0:4,9": these for every row; "": those that the model's router chooses
  std::uint32_t n_rows = 8;
  std::string rows_from = "gaussian";  // or "embeddings", "decode", a file of float32 rows
  std::string text;                    // for "decode": the text whose tokens are decoded
  std::string capture_program;         // for "decode": capture_rows (tests/equivalence)
  std::string scratch;                 // for "decode": a folder
  std::uint64_t seed = 1;
  // Workers of a swarm. Of each that holds experts of a layer, none of which the router chooses, one more is computed,
  // so that everybody has something to answer.
  std::vector<HeldExperts> holders;
};

struct MatrixInput {
  MatrixJob job;
  std::vector<MatrixGroup> groups;
};

// The fewest layers in which every holder has every mix of weight types that it holds at all: a large model's layers
// are dozens of gigabytes, and alike but for that. If none holds anything, one layer of each mix. Without holders: all.
std::vector<std::uint32_t> LayersFor(const ModelFile& model, const std::vector<HeldExperts>& holders);

// Adds the layers of a model as one group. kRefused: no such layer or expert, a type without an oracle, no router where
// one is needed. kLocal: reading failed, rows can not be had.
Result<void> AddModel(MatrixInput& input, const std::string& name, const ModelFile& model, const CaseOptions& options,
                      const std::function<bool()>& keep_going);

}  // namespace linkcpp
