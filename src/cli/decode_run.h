// Runs linkcpp-decode (decode_main.cc) as a child and takes its logits as they come. Nothing is held but one position.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/stop_signals.h"

namespace linkcpp {

struct TokenList {
  std::int32_t n_vocab = 0;
  bool has_text = false;  // the model has a tokeniser
  std::vector<std::int32_t> ids;
};

struct DecodeJob {
  std::string program;  // path of linkcpp-decode, or a link to it: its name is what the coordinator shows
  std::string model;
  std::string folder;       // scratch
  std::string name;         // of this run, for messages and file names: "alone"
  std::string tokens_file;  // ids, one a line
  std::size_t n_batch = 32, n_steps = 1;
  int n_threads = 1;
  double noise = 0;                                // power added to what experts return, relative to it
  std::uint64_t seed = 1;                          // of the noise
  std::map<std::string, std::string> environment;  // on top of ours
};

// The model's tokeniser on a text file. kLocal: libllama cannot load it, or the program is missing; its last words.
Result<TokenList> RunTokeniser(const DecodeJob& job, const std::string& text_file, const StopSignals& signals);

// on_position: logits of position i, in order, [n_vocab]. A fault ends the run and is returned.
// still_attached: called once after the last position, while the child still has its model and links; may be empty.
// tick: asked a few times a second whether to go on. kGone: stopped by a signal. kLocal: the child failed; its last
// words.
struct DecodeEvents {
  std::function<Result<void>(std::uint32_t position, std::span<const float> logits)> on_position;
  std::function<Result<void>()> still_attached;
  std::function<Result<void>()> tick;
};
Result<void> RunDecoder(const DecodeJob& job, std::size_t n_positions, const DecodeEvents& events,
                        const StopSignals& signals);

}  // namespace linkcpp
