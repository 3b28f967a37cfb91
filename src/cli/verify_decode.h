// The same tokens through stock libllama alone and with its experts on workers: what `linkcpp verify decode` measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"

namespace linkcpp {

struct VerifyDecodeOptions {
  std::string model;
  int n_workers = 2;        // of our own; used when swarm is ""
  std::string swarm;        // URL of a running one
  std::string token_file;   // "": LINKCPP_TOKEN
  std::string data_listen;  // where the swarm's workers dial us; "": loopback, or all interfaces when the swarm is not
  std::string worker_device = "cpu";
  std::string local;           // "allow", "deny"; "": deny with workers of our own, allow with a swarm
  int wait_s = 30;             // for coverage: so long without one more slice
  std::uint32_t n_tokens = 0;  // 0: 128, or all of the given text
  std::uint32_t n_batch = 32;
  std::optional<std::string> text;  // at most one of these; neither: a text of our own
  std::string prompt_file;
  int n_threads = 0;  // of libllama; 0: one per core
};

// What --json prints.
struct VerifyDecodeWorker {
  std::string node_id, name, device, kernel_class;
  bool same_class = false;  // as this machine's own CPU: must be bit-identical
  std::uint64_t pairs = 0;  // sent to it
  std::uint64_t faults = 0;
};
struct VerifyDecodeBound {  // of logits of a right kernel that rounds rows differently (docs/numerics.md)
  double expert_noise = 0;  // power, relative: what two right kernels may differ by in an expert's result
  double nmse = 0, kl_mean = 0;
};
struct VerifyDecodeReport {
  std::string verdict;  // "bit-identical", "inside-bound", "outside-bound", "not-computed"
  std::string why;      // a sentence for people
  std::string model;
  std::string text;  // whose tokens
  std::uint64_t tokens = 0, in_batches = 0, batch = 0, one_by_one = 0, vocabulary = 0;
  std::string host_kernel_class;
  bool bit_identical = false;
  std::uint64_t positions_differing = 0;
  std::optional<std::uint64_t> first_differing_position;
  double nmse = 0, max_abs = 0;
  std::optional<double> kl_mean, kl_max;  // nats; null: infinite
  std::uint64_t kl_max_position = 0;
  std::uint64_t top1_agree = 0;  // positions
  double top1_agreement = 0;     // share
  std::uint64_t not_finite = 0;  // logits with workers that are NaN or infinite
  std::uint64_t pairs = 0, pairs_by_workers = 0, pairs_local = 0, pairs_asked_again = 0;
  std::vector<VerifyDecodeWorker> workers;
  std::optional<VerifyDecodeBound> bound;  // only where it was needed
  double seconds_alone = 0, seconds_with_workers = 0;

  bool Good() const { return verdict == "bit-identical" || verdict == "inside-bound"; }
};

// Whether it is worth beginning: the model can be decoded with experts elsewhere, files, device and token are there. A
// fault is the user's: wrong usage. Before there are other threads.
Result<void> CheckVerifyDecode(const VerifyDecodeOptions& options);

// kGone: interrupted by a signal, or no coordinator. kRefused: a model, text, token or swarm that will not do. kLocal:
// this machine. Everything started here has ended and every file is gone when it returns. Main thread, once.
Result<VerifyDecodeReport> VerifyDecode(const VerifyDecodeOptions& options, LogSink& log);

}  // namespace linkcpp
