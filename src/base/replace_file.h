// A file that is always whole: written beside its place and renamed.
#pragma once

#include <string>
#include <string_view>

namespace linkcpp {

// False: errno says why, and the place is as it was. Not synced to the disk: for what can be made again. Any process.
bool ReplaceFile(const std::string& path, std::string_view bytes);

}  // namespace linkcpp
