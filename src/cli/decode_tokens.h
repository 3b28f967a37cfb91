// Which tokens `linkcpp verify decode` compares: the user's text, one of our own, or fixed ids where a model has no
// tokeniser.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/decode_run.h"
#include "cli/verify_decode.h"
#include "gguf/model.h"

namespace linkcpp {

struct ChosenTokens {
  std::vector<std::int32_t> ids;  // at least one
  std::uint64_t n_vocab = 0;
  std::size_t wanted = 0;  // how many were asked for; 0: all of the text
  std::string text;        // whose: "built-in", "given", the file's path, or that there is none
};

// `job`: as for any run of this command; its folder gets the text, and job.tokens_file the ids, one a line. kRefused:
// no tokens, more than the model's context, or a text for a model without a tokeniser. kGone: interrupted. kLocal:
// files, or libllama failed.
Result<ChosenTokens> ChooseTokens(const VerifyDecodeOptions& options, const ModelFile& model, const DecodeJob& job,
                                  const StopSignals& signals);

}  // namespace linkcpp
