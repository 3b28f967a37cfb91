// What `linkcpp matrix` does: cases from models, computed by every backend and worker that can be had, judged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "cli/matrix_swarm.h"
#include "matrix/contenders.h"
#include "matrix/report.h"

namespace linkcpp {

struct MatrixOptions {
  std::vector<std::string> models;    // none: austen-moe and the 122B's shape
  std::vector<std::uint32_t> layers;  // none: all; with a swarm: LayersFor (matrix_cases.h)
  std::string experts;
  std::uint32_t n_rows = 0;
  std::string rows_from, text;
  std::uint64_t seed = 1;
  std::vector<std::string> backends, require, added;
  std::string swarm, token_file, data_listen;  // swarm "": no workers
  std::vector<std::string> nodes;              // of the swarm; none: all
  int n_threads = 0;
  int timeout_s = 240;
  std::string svg;
  bool json = false;
};

// Whether it is worth beginning: files are there and can be written, models can be opened, names and numbers fit.
// Computes nothing. A fault is the user's: wrong usage.
Result<void> CheckMatrixOptions(const MatrixOptions& options);

// The rows of this machine that will be tried. kRefused: --backends or --require name one that there is not: wrong
// usage. kLocal: the row program does not run.
Result<std::vector<Contender>> MatrixBackends(const MatrixOptions& options);

// The workers of --swarm, none without; `backends`: whose ids are taken. As FindWorkers.
Result<std::vector<WorkerContender>> MatrixWorkers(const MatrixOptions& options,
                                                   const std::vector<Contender>& backends);

// Blocks for minutes. A backend or worker that is not to be had, breaks or answers nonsense is a row of the report and
// no fault. kGone: interrupted (InterruptGuard). kRefused: a case without an oracle. kLocal: this machine.
Result<MatrixReport> RunMatrix(const MatrixOptions& options, const std::vector<Contender>& backends,
                               const std::vector<WorkerContender>& workers, LogSink& log);

}  // namespace linkcpp
