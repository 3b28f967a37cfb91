#include "cli/decode_tokens.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>

#include "cli/count_text.h"

namespace linkcpp {
namespace {

constexpr std::uint64_t kDefaultTokens = 128;
constexpr std::size_t kTextBytesPerToken = 16;  // more than tokenisers take on average

// What is decoded when the user has no text. Its content does not matter; that it is language does.
constexpr std::string_view kText =
    "The expert who lives across the river keeps one small part of the work and does it the same way every day. In the "
    "morning a boy rows over with a letter; by noon the answer is on its way home. Nobody in the house could say which "
    "of the neighbours had written which line, and nobody needed to, for the lines were the same whoever wrote them. "
    "When the river rose and the boat could not cross, another neighbour took up the pen, and the book went on without "
    "a word out of place. That was the whole of the bargain: be exact, or say that you can not. ";

std::vector<std::int32_t> FixedIds(std::size_t n, std::int32_t n_vocab) {
  std::vector<std::int32_t> ids;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t mixed = (i + 1) * 2654435761u;
    ids.push_back(static_cast<std::int32_t>((mixed >> 8) % static_cast<std::uint32_t>(n_vocab)));
  }
  return ids;
}

}  // namespace

Result<ChosenTokens> ChooseTokens(const VerifyDecodeOptions& options, const ModelFile& model, const DecodeJob& job,
                                  const StopSignals& signals) {
  const std::uint64_t context = model.ArchInteger("context_length").value_or(0);
  const bool own_text = !options.text && options.prompt_file.empty();
  ChosenTokens tokens{.ids = {},
                      .n_vocab = 0,
                      .wanted = options.n_tokens,
                      .text = own_text       ? "built-in"
                              : options.text ? "given"
                                             : options.prompt_file};
  std::string text = options.text.value_or("");
  if (!options.prompt_file.empty()) {
    std::ifstream file(options.prompt_file, std::ios::binary);
    if (!file) return Fail(FaultCode::kLocal, "cannot read {}", options.prompt_file);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (own_text) {
    if (tokens.wanted == 0) tokens.wanted = context == 0 ? kDefaultTokens : std::min(context, kDefaultTokens);
    while (text.size() < tokens.wanted * kTextBytesPerToken) text += kText;
  }
  const std::string text_file = job.folder + "/text";
  std::ofstream(text_file, std::ios::binary) << text;
  ASSIGN_OR_RETURN(TokenList list, RunTokeniser(job, text_file, signals));
  tokens.ids = std::move(list.ids);
  tokens.n_vocab = static_cast<std::uint64_t>(list.n_vocab);
  if (!list.has_text) {
    if (!own_text) {
      return Fail(FaultCode::kRefused,
                  "{} has no tokeniser, so no text can be given: leave --text and --prompt-file out", model.name());
    }
    tokens.text = "none: the model has no tokeniser; fixed ids";
    tokens.ids = FixedIds(tokens.wanted, list.n_vocab);
  }
  if (tokens.ids.empty()) return Fail(FaultCode::kRefused, "the text has no tokens: nothing to compare");
  if (tokens.wanted != 0 && tokens.ids.size() > tokens.wanted) tokens.ids.resize(tokens.wanted);
  if (context != 0 && tokens.ids.size() > context) {
    return Fail(FaultCode::kRefused, "the text has {} and {} a context of {}: shorten it, or give --tokens",
                CountText(tokens.ids.size(), "token"), model.name(), context);
  }
  std::ofstream out(job.tokens_file);
  for (const std::int32_t id : tokens.ids) out << id << '\n';
  out.close();
  if (!out) return Fail(FaultCode::kLocal, "cannot write to {}", job.folder);
  return tokens;
}

}  // namespace linkcpp
