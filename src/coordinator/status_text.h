// The status for people: an aligned table, and the same as a web page. Pure.
#pragma once

#include <string>

#include "wire/control.h"

namespace linkcpp {

std::string StatusText(const StatusReply& status);
std::string StatusPage(const StatusReply& status);  // HTML; everything a peer named itself is escaped

std::string BytesText(std::uint64_t bytes);  // "12.3 MB"; powers of ten
std::string DurationText(double seconds);    // "3.2 s", "2 min 5 s", "3 h 2 min"

}  // namespace linkcpp
