// GGUF files for tests, written field by field so that any of them can be wrong. Independent of GgufWriter: the reader
// is tested against these bytes, not against our own writer.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace linkcpp::test {

template <class Number>
void Put(std::string& out, Number number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

inline void PutText(std::string& out, std::string_view text) {
  Put<std::uint64_t>(out, text.size());
  out += text;
}

inline std::string U32(std::string_view key, std::uint32_t value) {
  std::string out;
  PutText(out, key);
  Put<std::uint32_t>(out, 4);
  Put(out, value);
  return out;
}

inline std::string U16(std::string_view key, std::uint16_t value) {
  std::string out;
  PutText(out, key);
  Put<std::uint32_t>(out, 2);
  Put(out, value);
  return out;
}

inline std::string I32(std::string_view key, std::int32_t value) {
  std::string out;
  PutText(out, key);
  Put<std::uint32_t>(out, 5);
  Put(out, value);
  return out;
}

inline std::string F32(std::string_view key, float value) {
  std::string out;
  PutText(out, key);
  Put<std::uint32_t>(out, 6);
  Put(out, value);
  return out;
}

inline std::string Bool(std::string_view key, std::uint8_t value) {
  std::string out;
  PutText(out, key);
  Put<std::uint32_t>(out, 7);
  Put(out, value);
  return out;
}

inline std::string Text(std::string_view key, std::string_view value) {
  std::string out;
  PutText(out, key);
  Put<std::uint32_t>(out, 8);
  PutText(out, value);
  return out;
}

inline std::string Texts(std::string_view key, const std::vector<std::string>& values) {
  std::string out;
  PutText(out, key);
  Put<std::uint32_t>(out, 9);
  Put<std::uint32_t>(out, 8);
  Put<std::uint64_t>(out, values.size());
  for (const std::string& value : values) PutText(out, value);
  return out;
}

inline std::string I32s(std::string_view key, const std::vector<std::int32_t>& values) {
  std::string out;
  PutText(out, key);
  Put<std::uint32_t>(out, 9);
  Put<std::uint32_t>(out, 5);
  Put<std::uint64_t>(out, values.size());
  for (const std::int32_t value : values) Put(out, value);
  return out;
}

struct Tensor {
  std::string name;
  std::vector<std::uint64_t> ne;
  std::uint32_t type = 0;        // F32
  std::uint64_t size_bytes = 0;  // how far the next tensor is
  std::int64_t offset = -1;      // -1: behind the one before
};

// A file with every knob that the format has. Data bytes are a pattern, so that no two slabs are alike.
struct File {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::vector<std::string> keys;
  std::vector<Tensor> tensors;
  std::uint64_t alignment = 32;
  std::int64_t says_keys = -1;     // -1: as many as there are
  std::int64_t says_tensors = -1;  // -1: as many as there are
  std::uint8_t seed = 0;

  std::string Header() const {
    std::string out = magic;
    Put(out, version);
    Put<std::uint64_t>(out, says_tensors < 0 ? tensors.size() : static_cast<std::uint64_t>(says_tensors));
    Put<std::uint64_t>(out, says_keys < 0 ? keys.size() : static_cast<std::uint64_t>(says_keys));
    for (const std::string& key : keys) out += key;
    std::uint64_t offset = 0;
    for (const Tensor& tensor : tensors) {
      PutText(out, tensor.name);
      Put<std::uint32_t>(out, static_cast<std::uint32_t>(tensor.ne.size()));
      for (const std::uint64_t n : tensor.ne) Put(out, n);
      Put(out, tensor.type);
      Put<std::uint64_t>(out, tensor.offset < 0 ? offset : static_cast<std::uint64_t>(tensor.offset));
      offset = Up(offset + tensor.size_bytes);
    }
    out.resize(Up(out.size()), '\0');
    return out;
  }

  std::uint64_t DataBytes() const {
    std::uint64_t total = 0;
    for (const Tensor& tensor : tensors) total = Up(total + tensor.size_bytes);
    return total;
  }

  std::string Bytes() const {
    std::string out = Header();
    for (std::uint64_t i = 0, n = DataBytes(); i < n; ++i) {
      out.push_back(static_cast<char>((i * 2654435761u >> 13) + seed));
    }
    return out;
  }

  std::uint64_t Up(std::uint64_t n) const { return (n + alignment - 1) / alignment * alignment; }
};

// Two layers of four experts and one dense layer between them; gate, up, down, a router, biases and a scale in layer 0.
inline File TinyMoe() {
  File file;
  file.keys = {Text("general.architecture", "tinymoe"),
               Text("general.name", "Tiny"),
               U32("tinymoe.block_count", 3),
               U32("tinymoe.expert_count", 4),
               I32s("tinymoe.expert_feed_forward_length", {8, 0, 16}),
               F32("tinymoe.attention.layer_norm_rms_epsilon", 1e-6f),
               Bool("tinymoe.flag", 1),
               Texts("tokenizer.ggml.tokens", {"a", "b", "longer than the others"})};
  file.tensors = {{.name = "token_embd.weight", .ne = {32, 8}, .size_bytes = 32 * 8 * 4},
                  {.name = "blk.0.ffn_gate_inp.weight", .ne = {32, 4}, .size_bytes = 32 * 4 * 4},
                  {.name = "blk.0.ffn_gate_exps.weight", .ne = {32, 8, 4}, .type = 8, .size_bytes = 34 * 8 * 4},
                  {.name = "blk.0.ffn_up_exps.weight", .ne = {32, 8, 4}, .type = 2, .size_bytes = 18 * 8 * 4},
                  {.name = "blk.0.ffn_down_exps.weight", .ne = {8, 32, 4}, .size_bytes = 8 * 32 * 4 * 4},
                  {.name = "blk.0.ffn_down_exps.bias", .ne = {32, 4}, .size_bytes = 32 * 4 * 4},
                  {.name = "blk.0.ffn_up_exps.scale", .ne = {4}, .size_bytes = 4 * 4},
                  {.name = "blk.0.ffn_up_shexp.weight", .ne = {32, 8}, .size_bytes = 32 * 8 * 4},
                  {.name = "blk.1.ffn_up.weight", .ne = {32, 8}, .size_bytes = 32 * 8 * 4},
                  {.name = "blk.2.ffn_gate_up_exps.weight", .ne = {32, 32, 4}, .type = 2, .size_bytes = 18 * 32 * 4},
                  {.name = "blk.2.ffn_down_exps.weight", .ne = {16, 32, 4}, .type = 1, .size_bytes = 16 * 32 * 2 * 4}};
  return file;
}

// A folder that is gone when the test is.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "linkcpp-gguf-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data()) == nullptr ? "" : pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  const std::string& path() const { return path_; }

  std::string Write(std::string_view name, std::string_view bytes) const {
    const std::string path = *this / name;
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

 private:
  std::string path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace linkcpp::test
