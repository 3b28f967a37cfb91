// Writes a planned model to a file: with weights, or as a skeleton whose data are file holes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "synth/plan.h"

namespace linkcpp {

struct WriteOptions {
  bool skeleton = false;
  bool overwrite = false;
  std::uint64_t seed = 1;
  unsigned threads = 2;
  // Called from the calling thread a few times a second and at the end. false: stop, remove what was written.
  std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress;
};

struct WriteOutcome {
  std::uint64_t file_bytes = 0;
  std::uint64_t header_bytes = 0;
  std::uint64_t disk_bytes = 0;  // what the file takes on disk; a skeleton's holes take nothing
  double seconds = 0;
};

// The same plan and seed give the same bytes, with any number of threads. Writes PATH.part and renames it, so PATH is
// never half a model. kLocal: exists already, no room, not writable, stopped.
Result<WriteOutcome> WriteSynth(const SynthPlan& plan, const std::string& path, const WriteOptions& options);

}  // namespace linkcpp
