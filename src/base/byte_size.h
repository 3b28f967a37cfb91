// Sizes as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace linkcpp {

// "4G", "512M", "1.5GiB", "800 MB", "1073741824": K, M, G, T are powers of 1024 with or without "i" and "B", any case.
// kRefused: not a size, nothing, or 1 PiB and more.
Result<std::uint64_t> ParseByteSize(std::string_view text);

// "14.20 GiB", "35.4 MiB", "12.0 KiB", "0 B": powers of 1024, the largest unit that leaves something before the point.
std::string BinarySizeText(std::uint64_t bytes);
// For a command line, and no more than that: "14336M", "4500K"; KiB below 16 MiB, where a MiB is much.
std::string ByteSizeOption(std::uint64_t bytes);

}  // namespace linkcpp
