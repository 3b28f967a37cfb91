// JSON that any reader takes, whatever is in its strings: names come from files and peers. For those who use glaze.
#pragma once

#include <glaze/glaze.hpp>
#include <string>

#include "base/plain_text.h"

namespace linkcpp {

enum class JsonLayout : std::uint8_t { kLine, kIndented };

// Control characters are escaped (by default glaze writes zero bytes), bytes that are no UTF-8 become question marks.
template <JsonLayout layout = JsonLayout::kLine, class T>
std::string WriteJson(const T& value) {
  struct Options : glz::opts {
    bool escape_control_characters = true;
  };
  std::string text;
  // Only types that can not be written fail, and those do not compile.
  if (glz::write<Options{{.prettify = layout == JsonLayout::kIndented}}>(value, text)) return "null";
  return PlainLines(text);
}

}  // namespace linkcpp
