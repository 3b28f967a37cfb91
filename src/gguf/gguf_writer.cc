#include "gguf/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace linkcpp {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

template <class Number>
void Put(std::string& out, Number number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

void PutText(std::string& out, std::string_view text) {
  Put<std::uint64_t>(out, text.size());
  out += text;
}

void Pad(std::string& out, std::size_t alignment) {
  out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
}

}  // namespace

void GgufWriter::Key(std::string_view key, GgufType type) {
  PutText(keys_, key);
  Put(keys_, static_cast<std::uint32_t>(type));
  ++n_keys_;
}

void GgufWriter::Text(std::string_view key, std::string_view value) {
  Key(key, GgufType::kString);
  PutText(keys_, value);
}

void GgufWriter::U32(std::string_view key, std::uint32_t value) {
  Key(key, GgufType::kU32);
  Put(keys_, value);
}

void GgufWriter::F32(std::string_view key, float value) {
  Key(key, GgufType::kF32);
  Put(keys_, value);
}

void GgufWriter::Flag(std::string_view key, bool value) {
  Key(key, GgufType::kBool);
  Put<std::uint8_t>(keys_, value ? 1 : 0);
}

void GgufWriter::U32s(std::string_view key, std::span<const std::uint32_t> values) {
  Key(key, GgufType::kArray);
  Put(keys_, static_cast<std::uint32_t>(GgufType::kU32));
  Put<std::uint64_t>(keys_, values.size());
  for (const std::uint32_t value : values) Put(keys_, value);
}

void GgufWriter::Texts(std::string_view key, std::span<const std::string> values) {
  Key(key, GgufType::kArray);
  Put(keys_, static_cast<std::uint32_t>(GgufType::kString));
  Put<std::uint64_t>(keys_, values.size());
  for (const std::string& value : values) PutText(keys_, value);
}

void GgufWriter::Value(std::string_view key, const GgufValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return Text(key, *text);
  if (const auto* flag = std::get_if<bool>(&value)) return Flag(key, *flag);
  if (const auto* number = std::get_if<double>(&value)) return F32(key, static_cast<float>(*number));
  if (const auto* natural = std::get_if<std::uint64_t>(&value)) {
    if (*natural <= UINT32_MAX) return U32(key, static_cast<std::uint32_t>(*natural));
    Key(key, GgufType::kU64);
    return Put(keys_, *natural);
  }
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    if (*integer >= 0 && *integer <= UINT32_MAX) return U32(key, static_cast<std::uint32_t>(*integer));
    Key(key, GgufType::kI64);
    return Put(keys_, *integer);
  }
  const auto& array = std::get<GgufArray>(value);
  if (array.strings.size() == array.count) return Texts(key, array.strings);
  if (array.integers.size() == array.count) {
    const bool narrow = std::ranges::all_of(array.integers, [](std::uint64_t i) { return i <= UINT32_MAX; });
    Key(key, GgufType::kArray);
    Put(keys_, static_cast<std::uint32_t>(array.element_type == GgufType::kBool ? GgufType::kBool
                                          : narrow                              ? GgufType::kU32
                                                                                : GgufType::kI64));
    Put(keys_, array.count);
    for (const std::uint64_t integer : array.integers) {
      if (array.element_type == GgufType::kBool) {
        Put(keys_, static_cast<std::uint8_t>(integer));
      } else if (narrow) {
        Put(keys_, static_cast<std::uint32_t>(integer));
      } else {
        Put(keys_, integer);
      }
    }
  } else if (array.numbers.size() == array.count) {
    Key(key, GgufType::kArray);
    Put(keys_, static_cast<std::uint32_t>(GgufType::kF32));
    Put(keys_, array.count);
    for (const double number : array.numbers) Put(keys_, static_cast<float>(number));
  }
}

std::uint64_t GgufWriter::Tensor(std::string_view name, std::uint32_t type, std::span<const std::uint64_t> ne,
                                 std::uint64_t size_bytes) {
  const std::uint64_t offset = data_bytes_;
  PutText(tensors_, name);
  Put(tensors_, static_cast<std::uint32_t>(ne.size()));
  for (const std::uint64_t n : ne) Put(tensors_, n);
  Put(tensors_, type);
  Put(tensors_, offset);
  ++n_tensors_;
  data_bytes_ = (offset + size_bytes + alignment_ - 1) / alignment_ * alignment_;
  return offset;
}

std::string GgufWriter::Header() const {
  std::string out = "GGUF";
  Put<std::uint32_t>(out, 3);
  Put(out, n_tensors_);
  Put(out, n_keys_);
  out += keys_;
  out += tensors_;
  Pad(out, alignment_);
  return out;
}

}  // namespace linkcpp
