#include "base/plain_text.h"

#include <algorithm>
#include <cstdint>
#include <ranges>

namespace linkcpp {
namespace {

// Bytes of the character that begins `text`; 0: none does. Overlong forms, surrogates and what is past U+10FFFF are
// none.
std::size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t n_bytes = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (n_bytes == 0 || text.size() < n_bytes) return 0;
  std::uint32_t code = first & (0x7fu >> n_bytes);
  for (std::size_t i = 1; i < n_bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[n_bytes] || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return 0;
  return n_bytes;
}

bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;  // U+0080 to U+009F
}

}  // namespace

std::string PlainText(std::string_view text, std::size_t max_bytes) {
  std::string plain;
  plain.reserve(std::min(text.size(), max_bytes));
  while (!text.empty()) {
    const std::size_t n_bytes = CharacterBytes(text);
    std::string_view character = text.substr(0, n_bytes);
    text.remove_prefix(n_bytes == 0 ? 1 : n_bytes);
    if (n_bytes == 0) {
      character = "?";
    } else if (IsControl(character)) {
      character = " ";
    }
    if (plain.size() + character.size() > max_bytes) break;
    plain += character;
  }
  return plain;
}

std::string PlainLines(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (const auto line : std::views::split(text, '\n')) {
    if (line.begin() != text.begin()) plain += '\n';
    plain += PlainText(std::string_view(line), std::string::npos);
  }
  return plain;
}

}  // namespace linkcpp
