// A byte-level vocabulary of any size for made models: the 256 byte tokens, a few special ones, and made-up words built
// from syllables, each with the merge that makes it, so that any stock tool can tokenise any text and print any token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace linkcpp {

struct Vocabulary {
  std::vector<std::string> tokens;  // distinct; token i has id i
  std::vector<std::int32_t> types;  // 1 normal, 3 control, 5 unused
  std::vector<std::string> merges;  // "left right", most urgent first
  std::uint32_t end_of_text = 0;    // ids
  std::uint32_t start_of_turn = 0;
  std::uint32_t end_of_turn = 0;
};

inline constexpr std::uint32_t kLeastVocabulary = 320;
inline constexpr std::uint32_t kGreatestVocabulary = 1'000'000;

// kRefused: n_tokens out of range, or too few for so many merges.
Result<void> CheckVocabulary(std::uint32_t n_tokens, std::uint32_t n_merges);

// n_merges: how many words to make; the tokens left over are unused ones. 0: as many as fit. Numbers that
// CheckVocabulary would refuse make an empty vocabulary.
Vocabulary MakeVocabulary(std::uint32_t n_tokens, std::uint32_t n_merges);

}  // namespace linkcpp
