// What a peer calls itself, made fit for terminals, web pages and JSON. Pure.
#pragma once

#include <string>
#include <string_view>

namespace linkcpp {

// Valid UTF-8 of at most 200 bytes: control characters become spaces, bytes that are no UTF-8 question marks.
std::string PlainText(std::string_view text);

}  // namespace linkcpp
