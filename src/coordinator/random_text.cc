#include "coordinator/random_text.h"

#include <sodium.h>

#include <vector>

namespace linkcpp {

std::string RandomHex(std::size_t n_bytes) {
  std::vector<unsigned char> bytes(n_bytes);
  randombytes_buf(bytes.data(), bytes.size());
  std::string text(n_bytes * 2 + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

}  // namespace linkcpp
