// Sizes as people write them.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace linkcpp {

// "4G", "512M", "1.5GiB", "800 MB", "1073741824": K, M, G, T are powers of 1024 with or without "i" and "B", any case.
// kRefused: not a size, nothing, or 1 PiB and more.
Result<std::uint64_t> ParseByteSize(std::string_view text);

}  // namespace linkcpp
