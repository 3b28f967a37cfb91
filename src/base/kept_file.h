// Small results kept in a cache folder, so that what takes a second is not computed again for the same question.
//
// Each is a file named by the hash of its question and of this machine since it was started (a home folder may belong
// to several machines, and what was true of one before it was switched off need not be true now). Any failure reads as
// "nothing is known" and writes as "nothing is kept": the answer is computed again. Any thread, any process.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace linkcpp {

// `folder`: is made when something is kept; "": nothing is.
std::optional<std::string> FindKept(const std::string& folder, std::string_view question);
void Keep(const std::string& folder, std::string_view question, std::string_view answer);

}  // namespace linkcpp
