// The status for people: an aligned table, and the same as a web page. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "wire/control.h"

namespace linkcpp {

// For a terminal: table rows are clipped at its edge and other lines broken, so that columns stay columns.
struct TextStyle {
  bool color = false;     // bold heads; what needs an eye in red
  std::size_t width = 0;  // columns; 0: no end
};
std::string StatusText(const StatusReply& status, const TextStyle& style = {});
std::string StatusPage(const StatusReply& status);  // HTML; everything a peer named itself is escaped

std::string BytesText(std::uint64_t bytes);                     // "12.3 MB"; powers of ten
std::string DurationText(double seconds);                       // "3.2 s", "2 min 5 s", "3 h 2 min"
std::string CountText(std::uint64_t n, std::string_view what);  // "1 slice", "2 slices"

}  // namespace linkcpp
