// Files that the user named, looked at before long work begins. kLocal: what is wrong with it, with its path.
#pragma once

#include <string>

#include "base/result.h"

namespace linkcpp {

Result<void> CanBeRead(const std::string& path);
Result<void> CanBeWritten(const std::string& path);  // leaves the file system as it was

}  // namespace linkcpp
