// What a peer, a file or a library says, made fit for terminals, web pages and JSON. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace linkcpp {

inline constexpr std::size_t kMaxPlainBytes = 200;

// Valid UTF-8 of at most `max_bytes`: control characters become spaces, bytes that are no UTF-8 question marks.
std::string PlainText(std::string_view text, std::size_t max_bytes = kMaxPlainBytes);

// The same of a text of several lines, whole: line feeds stay.
std::string PlainLines(std::string_view text);

}  // namespace linkcpp
