// Sizes as people write them, and how much memory a worker may sensibly give.
#pragma once

#include <cstdint>
#include <string>

#include "base/byte_size.h"
#include "kernel/device.h"

namespace linkcpp {

std::string FormatByteSize(
    std::uint64_t bytes);  // "33.1 MB": powers of 1000 below, one decimal, as download tools show

// Physical memory of this machine or of the control group we are in, whichever is less; 0: unknown.
std::uint64_t TotalMemory();
std::uint64_t AvailableMemory();

// A GPU: four fifths of what is free on it. Else half of what is available, and at most all but 1 GiB of it,
// so that a machine with little left stays usable; at least 64 MiB.
std::uint64_t DefaultMemory(const DeviceInfo& device);
std::uint64_t DefaultMemoryOf(std::uint64_t available_bytes);

}  // namespace linkcpp
