// BLAKE3, 32 bytes. Names a slab, a header, a model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace linkcpp {

struct Hash {
  std::array<std::uint8_t, 32> bytes{};

  std::string Hex() const;                               // 64 lower-case digits
  static Result<Hash> FromHex(std::string_view digits);  // kMalformed
  friend auto operator<=>(const Hash&, const Hash&) = default;
};

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text) { Update(std::as_bytes(std::span(text.data(), text.size()))); }
  Hash Finish() const;  // may be called again after more updates

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Hash HashOf(std::span<const std::byte> bytes);
Hash HashOf(std::string_view text);

}  // namespace linkcpp

template <>
struct std::hash<linkcpp::Hash> {
  std::size_t operator()(const linkcpp::Hash& hash) const noexcept {
    std::size_t value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i) value = value << 8 | hash.bytes[i];
    return value;
  }
};
