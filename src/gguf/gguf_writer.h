// Writes the header of a GGUF file (version 3): keys, tensor directory, padding.
//
// For shards and for other makers of GGUF files here. Knows nothing of what the keys mean.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/header.h"

namespace linkcpp {

class GgufWriter {
 public:
  explicit GgufWriter(std::uint32_t alignment = 32) : alignment_(alignment) {}  // a power of two

  void Text(std::string_view key, std::string_view value);
  void U32(std::string_view key, std::uint32_t value);
  void F32(std::string_view key, float value);
  void Flag(std::string_view key, bool value);
  void U32s(std::string_view key, std::span<const std::uint32_t> values);
  void Texts(std::string_view key, std::span<const std::string> values);
  // A value as it was read: integers as u32 where they fit, else u64 or i64; floats as f32; arrays likewise.
  // Arrays whose elements were not kept are left out.
  void Value(std::string_view key, const GgufValue& value);

  // Places the tensor behind those before it; returns its offset in the data section.
  std::uint64_t Tensor(std::string_view name, std::uint32_t type, std::span<const std::uint64_t> ne,
                       std::uint64_t size_bytes);

  std::string Header() const;                               // up to the data section, padding included
  std::uint64_t data_bytes() const { return data_bytes_; }  // of the data section, padding included

 private:
  void Key(std::string_view key, GgufType type);

  std::uint32_t alignment_;
  std::uint64_t n_keys_ = 0;
  std::uint64_t n_tensors_ = 0;
  std::uint64_t data_bytes_ = 0;
  std::string keys_;
  std::string tensors_;
};

}  // namespace linkcpp
