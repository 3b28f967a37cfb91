// The header of one GGUF file: its keys and its tensor directory, checked against the size of the file.
//
// Any bytes at all give a header or a fault: counts and lengths are checked against what the file can hold before
// anything is allocated. Knows nothing of splits or experts. Format: GGUF versions 2 and 3, little-endian,
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "gguf/source.h"

namespace linkcpp {

enum class GgufType : std::uint32_t {  // as in the file
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// Elements are kept only for small arrays (numbers and bools up to 65536 elements, strings up to 4096 and 4 MB); of a
// tokenizer's tables only the count is known.
struct GgufArray {
  GgufType element_type = GgufType::kU8;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> integers;  // integer and bool elements, sign-extended
  std::vector<double> numbers;          // float elements
  std::vector<std::string> strings;
};
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string, GgufArray>;
using GgufKeys = std::map<std::string, GgufValue, std::less<>>;

struct TensorInfo {
  std::string name;
  std::uint32_t type = 0;  // ggml type number; one that this ggml knows
  std::array<std::uint64_t, 4> ne{1, 1, 1, 1};
  std::uint16_t file = 0;    // index into ModelFile::paths()
  std::uint64_t offset = 0;  // of its first byte, from the start of that file
  std::uint64_t size_bytes = 0;
};

struct GgufHeader {
  std::uint32_t version = 0;
  GgufKeys keys;
  std::vector<TensorInfo> tensors;  // in the file's order; names are distinct, bytes lie inside the file, none overlap
  std::uint64_t alignment = 32;     // a power of two
  std::uint64_t data_offset = 0;    // where tensor data begins
};

// Parses one file. `name` is for messages, `file` for TensorInfo::file. Feeds everything before data_offset (or before
// the end of a file without tensors) to `hasher`. kMalformed: name, offset and reason. kLocal: cannot read.
Result<GgufHeader> ParseGgufHeader(const ByteSource& source, std::string_view name, std::uint16_t file, Hasher& hasher);

}  // namespace linkcpp
