// From models to the matrix's job: which experts and rows, in which dispatches, and what the oracle needs to judge
// them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"
#include "matrix/compare.h"
#include "matrix/job.h"

namespace linkcpp {

struct CaseOptions {
  std::vector<std::uint32_t> layers;  // empty: all that have experts
  std::string experts;                // "0:4,9": these for every row; "": those that the model's router chooses
  std::uint32_t n_rows = 8;
  std::string rows_from = "gaussian";  // or "embeddings", "decode", a file of float32 rows
  std::string text;                    // for "decode": the text whose tokens are decoded
  std::string capture_program;         // for "decode": capture_rows (tests/equivalence)
  std::string scratch;                 // for "decode": a folder
  std::uint64_t seed = 1;
};

struct MatrixInput {
  MatrixJob job;
  std::vector<MatrixGroup> groups;
};

// Adds the layers of a model as one group. kRefused: no such layer or expert, a type without an oracle, no router where
// one is needed. kLocal: reading failed, rows can not be had.
Result<void> AddModel(MatrixInput& input, const std::string& name, const ModelFile& model, const CaseOptions& options,
                      const std::function<bool()>& keep_going);

}  // namespace linkcpp
