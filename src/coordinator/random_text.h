// Ids and secrets nobody can guess.
#pragma once

#include <cstddef>
#include <string>

namespace linkcpp {

// 2 * n_bytes lower-case hex digits from the operating system's generator.
std::string RandomHex(std::size_t n_bytes);

}  // namespace linkcpp
