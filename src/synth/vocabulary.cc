#include "synth/vocabulary.h"

#include <format>
#include <string_view>

namespace linkcpp {
namespace {

constexpr std::string_view kSpace = "\u0120";  // how byte-level vocabularies write a space
constexpr std::string_view kConsonants = "bdfghjklmnprstvwyzcx";
constexpr std::string_view kVowels = "aeiou";
constexpr std::uint32_t kSyllables = 100;
constexpr std::uint32_t kFixedTokens = 256 + 3;  // bytes, special ones
static_assert(kConsonants.size() * kVowels.size() == kSyllables);

std::string Utf8(std::uint32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

// Byte-level tokenisers write a byte as a printable letter: itself where it is one, else 256 and up in order.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    tokens.push_back(Utf8(printable ? byte : next++));
  }
  return tokens;
}

std::string Syllable(std::uint32_t i) {
  return {kConsonants[i / kVowels.size()], kVowels[i % kVowels.size()]};
}

// Words in the order their merges need: syllables, syllables after a space, then those continued by one syllable, two.
// Word number i as (left, right); left and right are bytes or earlier words.
struct Word {
  std::string left, right;
};
Word WordAt(std::uint32_t i) {
  if (i < kSyllables) {
    const std::string syllable = Syllable(i);
    return {syllable.substr(0, 1), syllable.substr(1)};
  }
  i -= kSyllables;
  if (i < kSyllables) return {std::string(kSpace), Syllable(i)};
  i -= kSyllables;
  // Word i of n syllables continues word i / 100 of n - 1.
  const auto whole = [](std::uint32_t n, std::uint32_t number) {
    std::string text;
    for (; n > 0; --n, number /= kSyllables) text.insert(0, Syllable(number % kSyllables));
    return std::string(kSpace) + text;
  };
  std::uint32_t n = 2, count = kSyllables * kSyllables;
  while (i >= count) {
    i -= count;
    count *= kSyllables;
    ++n;
  }
  return {whole(n - 1, i / kSyllables), Syllable(i % kSyllables)};
}

}  // namespace

Result<void> CheckVocabulary(std::uint32_t n_tokens, std::uint32_t n_merges) {
  if (n_tokens < kLeastVocabulary || n_tokens > kGreatestVocabulary) {
    return Fail(FaultCode::kRefused, "a vocabulary of {} tokens is out of range: choose {} to {}", n_tokens,
                kLeastVocabulary, kGreatestVocabulary);
  }
  if (n_merges > n_tokens - kFixedTokens) {
    return Fail(FaultCode::kRefused, "{} merges do not fit a vocabulary of {} tokens", n_merges, n_tokens);
  }
  return {};
}

Vocabulary MakeVocabulary(std::uint32_t n_tokens, std::uint32_t n_merges) {
  if (!CheckVocabulary(n_tokens, n_merges)) return {};
  if (n_merges == 0) n_merges = n_tokens - kFixedTokens;
  Vocabulary vocabulary;
  vocabulary.tokens = ByteTokens();
  vocabulary.tokens.reserve(n_tokens);
  vocabulary.merges.reserve(n_merges);
  for (std::uint32_t i = 0; i < n_merges; ++i) {
    Word word = WordAt(i);
    vocabulary.tokens.push_back(word.left + word.right);
    vocabulary.merges.push_back(std::move(word.left) + ' ' + word.right);
  }
  vocabulary.types.assign(vocabulary.tokens.size(), 1);
  const auto special = [&](std::string text, std::int32_t type) {
    vocabulary.tokens.push_back(std::move(text));
    vocabulary.types.push_back(type);
    return static_cast<std::uint32_t>(vocabulary.tokens.size() - 1);
  };
  vocabulary.end_of_text = special("<|endoftext|>", 3);
  vocabulary.start_of_turn = special("<|im_start|>", 3);
  vocabulary.end_of_turn = special("<|im_end|>", 3);
  while (vocabulary.tokens.size() < n_tokens) special(std::format("<|unused_{}|>", vocabulary.tokens.size()), 5);
  return vocabulary;
}

}  // namespace linkcpp
