#include "base/hash.h"

#include <blake3.h>

namespace linkcpp {

struct Hasher::State {
  blake3_hasher hasher;
};

std::string Hash::Hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

Result<Hash> Hash::FromHex(std::string_view digits) {
  Hash hash;
  if (digits.size() != 2 * hash.bytes.size()) {
    return Fail(FaultCode::kMalformed, "a hash has {} hex digits, this has {}", 2 * hash.bytes.size(), digits.size());
  }
  const auto value = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  for (std::size_t i = 0; i < hash.bytes.size(); ++i) {
    const int high = value(digits[2 * i]);
    const int low = value(digits[2 * i + 1]);
    if (high < 0 || low < 0) return Fail(FaultCode::kMalformed, "'{}' is not a lower-case hex hash", digits);
    hash.bytes[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return hash;
}

Hasher::Hasher() : state_(std::make_unique<State>()) {
  blake3_hasher_init(&state_->hasher);
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::Update(std::span<const std::byte> bytes) {
  blake3_hasher_update(&state_->hasher, bytes.data(), bytes.size());
}

Hash Hasher::Finish() const {
  Hash hash;
  blake3_hasher_finalize(&state_->hasher, hash.bytes.data(), hash.bytes.size());
  return hash;
}

Hash HashOf(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.Update(bytes);
  return hasher.Finish();
}

Hash HashOf(std::string_view text) {
  return HashOf(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace linkcpp
