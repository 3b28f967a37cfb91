// Which backends a matrix tries on this machine: a fixed list by need ("x86 with AVX2 only"), every GPU that ggml
// finds, arm64 programs under an emulator, numpy, and what the user adds. One that is not to be had stays in the list
// with the reason.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/child.h"
#include "base/result.h"

namespace linkcpp {

enum class KernelKind { kCpu, kGpu, kNumpy };  // which kernel models may explain it (oracle/bound.h)

struct Contender {
  std::string id;    // "avx512": for --backends and --require
  std::string name;  // "x86 AVX-512": for tables
  KernelKind kind = KernelKind::kCpu;
  // Commands to try in order until one does not say kRowHasNoDevice; JOB and ANSWER are appended.
  std::vector<ChildCommand> attempts;
  std::vector<std::string> needs;    // features that the backend must report: "AVX512"
  std::vector<std::string> forbids;  // and must not
  std::string missing;               // not empty: why there is nothing to try
};

struct ContenderOptions {
  std::string row_program;    // linkcpp-matrix-row of this machine
  std::string arm64_program;  // the same, built for arm64; ignored on an arm64 machine
  std::string arm64_root;     // where an arm64 system's libraries are
  int n_threads = 0;          // CPU rows; 0: one per core
  int timeout_s = 120;
  std::vector<std::string> added;  // NAME=PATH: ggml backend libraries
};

// Asks the row program which devices there are. kRefused: two of one id. kLocal: it does not run.
Result<std::vector<Contender>> FindContenders(const ContenderOptions& options, const std::function<bool()>& keep_going);

// "" when the backend's report of features has all it needs and nothing that it must not; else what is wrong.
std::string WrongFeatures(const Contender& contender, std::string_view features);

}  // namespace linkcpp
