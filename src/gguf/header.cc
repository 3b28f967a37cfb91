#include "gguf/header.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "gguf/cursor.h"
#include "gguf/tensor_type.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;           // "GGUF"
constexpr std::uint64_t kMaxKeyBytes = 65535;          // the format's own limit
constexpr std::uint64_t kMaxTensorNameBytes = 1024;    // ggml stops at 63
constexpr std::uint64_t kMaxTextBytes = 64 << 20;      // chat templates are tens of KB
constexpr std::uint64_t kMaxHeaderBytes = 1ull << 30;  // the largest tokenizers take about 20 MB
constexpr std::uint64_t kKeptNumbers = 65536;
constexpr std::uint64_t kKeptStrings = 4096;
constexpr std::uint64_t kKeptStringBytes = 4 << 20;
constexpr std::uint64_t kLeastKeyBytes = 8 + 1 + 4 + 1;         // name length, name, type, value
constexpr std::uint64_t kLeastTensorBytes = 8 + 1 + 4 + 4 + 8;  // name length, name, n_dims, type, offset

std::uint64_t ElementBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kString: return 8;  // at least its length
    case GgufType::kArray: break;
  }
  return 0;
}

template <class Number>
Result<GgufValue> Unsigned(Cursor& cursor) {
  ASSIGN_OR_RETURN(const auto number, cursor.Get<Number>());
  return GgufValue(static_cast<std::uint64_t>(number));
}

template <class Number>
Result<GgufValue> Signed(Cursor& cursor) {
  ASSIGN_OR_RETURN(const auto number, cursor.Get<Number>());
  return GgufValue(static_cast<std::int64_t>(number));
}

template <class Number>
Result<GgufValue> Float(Cursor& cursor) {
  ASSIGN_OR_RETURN(const auto number, cursor.Get<Number>());
  return GgufValue(static_cast<double>(number));
}

Result<GgufValue> Scalar(Cursor& cursor, GgufType type) {
  switch (type) {
    case GgufType::kU8: return Unsigned<std::uint8_t>(cursor);
    case GgufType::kI8: return Signed<std::int8_t>(cursor);
    case GgufType::kU16: return Unsigned<std::uint16_t>(cursor);
    case GgufType::kI16: return Signed<std::int16_t>(cursor);
    case GgufType::kU32: return Unsigned<std::uint32_t>(cursor);
    case GgufType::kI32: return Signed<std::int32_t>(cursor);
    case GgufType::kU64: return Unsigned<std::uint64_t>(cursor);
    case GgufType::kI64: return Signed<std::int64_t>(cursor);
    case GgufType::kF32: return Float<float>(cursor);
    case GgufType::kF64: return Float<double>(cursor);
    case GgufType::kBool: {
      ASSIGN_OR_RETURN(const auto number, cursor.Get<std::uint8_t>());
      if (number > 1) {
        return Fail(FaultCode::kMalformed, "at byte {}: {} is not a bool", cursor.position() - 1, number);
      }
      return GgufValue(number == 1);
    }
    case GgufType::kString: {
      ASSIGN_OR_RETURN(auto text, cursor.String(kMaxTextBytes));
      return GgufValue(std::move(text));
    }
    case GgufType::kArray: break;
  }
  return Fail(FaultCode::kMalformed, "at byte {}: unknown value type {}", cursor.position(),
              static_cast<std::uint32_t>(type));
}

Result<GgufValue> Array(Cursor& cursor) {
  const std::uint64_t start = cursor.position();
  ASSIGN_OR_RETURN(const auto type, cursor.Get<std::uint32_t>());
  GgufArray array;
  array.element_type = static_cast<GgufType>(type);
  const std::uint64_t element_bytes = ElementBytes(array.element_type);
  if (element_bytes == 0) {
    return Fail(FaultCode::kMalformed, "at byte {}: an array of value type {} is not supported", start, type);
  }
  ASSIGN_OR_RETURN(array.count, cursor.Get<std::uint64_t>());
  if (array.count > cursor.remaining() / element_bytes) {
    return Fail(FaultCode::kMalformed, "at byte {}: an array of {} elements does not fit in the {} bytes that are left",
                start, array.count, cursor.remaining());
  }
  if (array.element_type == GgufType::kString) {
    if (array.count > kKeptStrings) {
      RETURN_IF_FAULT(cursor.SkipStrings(array.count));
      return GgufValue(std::move(array));
    }
    std::uint64_t total = 0;
    for (std::uint64_t i = 0; i < array.count; ++i) {
      ASSIGN_OR_RETURN(auto text, cursor.String(kMaxTextBytes));
      total += text.size();
      if (total <= kKeptStringBytes) array.strings.push_back(std::move(text));
    }
    if (total > kKeptStringBytes) array.strings.clear();
    return GgufValue(std::move(array));
  }
  if (array.count > kKeptNumbers) {
    RETURN_IF_FAULT(cursor.Skip(array.count * element_bytes));
    return GgufValue(std::move(array));
  }
  for (std::uint64_t i = 0; i < array.count; ++i) {
    ASSIGN_OR_RETURN(const auto value, Scalar(cursor, array.element_type));
    if (const auto* number = std::get_if<double>(&value)) {
      array.numbers.push_back(*number);
    } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      array.integers.push_back(static_cast<std::uint64_t>(*integer));
    } else if (const auto* natural = std::get_if<std::uint64_t>(&value)) {
      array.integers.push_back(*natural);
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      array.integers.push_back(*flag ? 1 : 0);
    }
  }
  return GgufValue(std::move(array));
}

Result<void> ParseKeys(Cursor& cursor, std::uint64_t n_keys, GgufKeys& keys) {
  for (std::uint64_t i = 0; i < n_keys; ++i) {
    const std::uint64_t start = cursor.position();
    ASSIGN_OR_RETURN(auto key, cursor.String(kMaxKeyBytes));
    if (key.empty()) return Fail(FaultCode::kMalformed, "at byte {}: key {} has no name", start, i);
    ASSIGN_OR_RETURN(const auto type, cursor.Get<std::uint32_t>());
    const auto gguf_type = static_cast<GgufType>(type);
    auto value = gguf_type == GgufType::kArray ? Array(cursor) : Scalar(cursor, gguf_type);
    if (!value) return Wrap(value.error(), std::format("key '{}'", key));
    if (cursor.position() > kMaxHeaderBytes) {
      return Fail(FaultCode::kMalformed, "key '{}': the header is larger than {} bytes", key, kMaxHeaderBytes);
    }
    if (!keys.try_emplace(key, std::move(*value)).second) {
      return Fail(FaultCode::kMalformed, "at byte {}: key '{}' appears twice", start, key);
    }
  }
  return {};
}

// rows × bytes of a row. nullopt: does not fit in 63 bits.
std::optional<std::uint64_t> TensorBytes(const TensorInfo& tensor, const TensorBlock& block) {
  const std::uint64_t blocks = tensor.ne[0] / block.n_elements;
  std::uint64_t total = block.size_bytes;
  for (const std::uint64_t factor : {blocks, tensor.ne[1], tensor.ne[2], tensor.ne[3]}) {
    if (__builtin_mul_overflow(total, factor, &total)) return std::nullopt;
  }
  if (total > INT64_MAX) return std::nullopt;
  return total;
}

Result<TensorInfo> ParseTensor(Cursor& cursor, std::uint64_t alignment) {
  const std::uint64_t start = cursor.position();
  TensorInfo tensor;
  ASSIGN_OR_RETURN(tensor.name, cursor.String(kMaxTensorNameBytes));
  const auto fail = [&]<class... Args>(std::format_string<Args...> format, Args&&... args) {
    return Fail(FaultCode::kMalformed, "at byte {}: tensor '{}': {}", start, tensor.name,
                std::format(format, std::forward<Args>(args)...));
  };
  if (tensor.name.empty()) return fail("it has no name");
  ASSIGN_OR_RETURN(const auto n_dims, cursor.Get<std::uint32_t>());
  if (n_dims > tensor.ne.size()) return fail("{} dimensions, at most {} make sense", n_dims, tensor.ne.size());
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < n_dims; ++i) {
    ASSIGN_OR_RETURN(tensor.ne[i], cursor.Get<std::uint64_t>());
    if (tensor.ne[i] > INT64_MAX || __builtin_mul_overflow(elements, tensor.ne[i], &elements) || elements > INT64_MAX) {
      return fail("its sizes overflow: dimension {} is {}", i, tensor.ne[i]);
    }
  }
  ASSIGN_OR_RETURN(tensor.type, cursor.Get<std::uint32_t>());
  const auto block = TensorTypeBlock(tensor.type);
  if (!block) return fail("unknown tensor type {} (made for a newer ggml?)", tensor.type);
  if (tensor.ne[0] % block->n_elements != 0) {
    return fail("rows of {} elements are not whole {} blocks of {}", tensor.ne[0], TensorTypeName(tensor.type),
                block->n_elements);
  }
  const auto size_bytes = TensorBytes(tensor, *block);
  if (!size_bytes) return fail("its size overflows");
  tensor.size_bytes = *size_bytes;
  ASSIGN_OR_RETURN(tensor.offset, cursor.Get<std::uint64_t>());  // from the start of the data, for now
  if (tensor.offset % alignment != 0) return fail("offset {} is not a multiple of {}", tensor.offset, alignment);
  return tensor;
}

Result<void> ParseTensors(Cursor& cursor, std::uint64_t n_tensors, std::uint16_t file, GgufHeader& header) {
  std::unordered_set<std::string> names;
  for (std::uint64_t i = 0; i < n_tensors; ++i) {
    ASSIGN_OR_RETURN(auto tensor, ParseTensor(cursor, header.alignment));
    if (cursor.position() > kMaxHeaderBytes) {
      return Fail(FaultCode::kMalformed, "the header is larger than {} bytes", kMaxHeaderBytes);
    }
    if (!names.insert(tensor.name).second) {
      return Fail(FaultCode::kMalformed, "tensor '{}' appears twice", tensor.name);
    }
    tensor.file = file;
    header.tensors.push_back(std::move(tensor));
  }
  return {};
}

Result<void> PlaceTensors(GgufHeader& header, std::uint64_t file_bytes) {
  for (TensorInfo& tensor : header.tensors) {
    std::uint64_t end = 0;
    if (__builtin_add_overflow(tensor.offset, header.data_offset, &tensor.offset) ||
        __builtin_add_overflow(tensor.offset, tensor.size_bytes, &end) || end > file_bytes) {
      return Fail(FaultCode::kMalformed,
                  "tensor '{}' ({} bytes at {}) goes past the end of the file at {} (truncated?)", tensor.name,
                  tensor.size_bytes, tensor.offset, file_bytes);
    }
  }
  std::vector<std::uint32_t> order(header.tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {},
                    [&](std::uint32_t i) { return std::pair(header.tensors[i].offset, header.tensors[i].size_bytes); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = header.tensors[order[i - 1]];
    const TensorInfo& tensor = header.tensors[order[i]];
    if (before.offset + before.size_bytes > tensor.offset) {
      return Fail(FaultCode::kMalformed, "tensors '{}' and '{}' overlap at byte {}", before.name, tensor.name,
                  tensor.offset);
    }
  }
  return {};
}

Result<GgufHeader> Parse(const ByteSource& source, std::uint16_t file, Hasher& hasher) {
  Cursor cursor(source, hasher);
  GgufHeader header;
  ASSIGN_OR_RETURN(const auto magic, cursor.Get<std::uint32_t>());
  if (magic != kMagic) return Fail(FaultCode::kMalformed, "not a GGUF file (it does not begin with \"GGUF\")");
  ASSIGN_OR_RETURN(header.version, cursor.Get<std::uint32_t>());
  if (header.version != 2 && header.version != 3) {
    const bool big_endian = (header.version & 0xffff) == 0 && header.version != 0;
    return Fail(FaultCode::kMalformed, "{}",
                big_endian ? std::string("a big-endian GGUF file: convert it with gguf-convert-endian")
                           : std::format("GGUF version {}, only 2 and 3 are supported", header.version));
  }
  ASSIGN_OR_RETURN(const auto n_tensors, cursor.Get<std::uint64_t>());
  ASSIGN_OR_RETURN(const auto n_keys, cursor.Get<std::uint64_t>());
  if (n_keys > cursor.remaining() / kLeastKeyBytes || n_tensors > cursor.remaining() / kLeastTensorBytes) {
    return Fail(FaultCode::kMalformed, "{} keys and {} tensors do not fit in {} bytes", n_keys, n_tensors,
                source.size_bytes());
  }
  RETURN_IF_FAULT(ParseKeys(cursor, n_keys, header.keys));
  if (const auto found = header.keys.find("general.alignment"); found != header.keys.end()) {
    const auto* alignment = std::get_if<std::uint64_t>(&found->second);
    if (alignment == nullptr || !std::has_single_bit(*alignment) || *alignment > (1u << 30)) {
      return Fail(FaultCode::kMalformed, "general.alignment is not a power of two");
    }
    header.alignment = *alignment;
  }
  RETURN_IF_FAULT(ParseTensors(cursor, n_tensors, file, header));
  const std::uint64_t end = cursor.position();
  header.data_offset = (end + header.alignment - 1) / header.alignment * header.alignment;
  RETURN_IF_FAULT(PlaceTensors(header, source.size_bytes()));
  RETURN_IF_FAULT(cursor.Skip(std::min(header.data_offset, source.size_bytes()) - end));
  cursor.Finish();
  return header;
}

}  // namespace

Result<GgufHeader> ParseGgufHeader(const ByteSource& source, std::string_view name, std::uint16_t file,
                                   Hasher& hasher) {
  auto header = Parse(source, file, hasher);
  // An I/O error names the file already.
  if (!header && header.error().code == FaultCode::kMalformed) return Wrap(header.error(), name);
  return header;
}

}  // namespace linkcpp
