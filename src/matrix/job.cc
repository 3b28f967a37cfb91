#include "matrix/job.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

namespace linkcpp {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian, arrays are copied as they are");

constexpr std::string_view kJobMagic = "LCMATRX1";
constexpr std::string_view kAnswerMagic = "LCMANSW1";

class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path), file_(path, std::ios::binary | std::ios::trunc) {}

  void Raw(const void* data, std::size_t size) {
    file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  }
  template <class T>
  void Number(T value) {
    Raw(&value, sizeof value);
  }
  void U32(std::size_t value) { Number(static_cast<std::uint32_t>(value)); }
  template <class T>
  void Array(const std::vector<T>& values) {  // u64 count, then the elements
    Number(std::uint64_t{values.size()});
    Raw(values.data(), values.size() * sizeof(T));
  }
  void Text(std::string_view text) {
    Number(std::uint64_t{text.size()});
    Raw(text.data(), text.size());
  }
  Result<void> Finish() {
    file_.close();
    if (!file_) return Fail(FaultCode::kLocal, "{}: cannot be written (disk full?)", path_);
    return {};
  }

 private:
  std::string path_;
  std::ofstream file_;
};

// Reads beyond the end give zeros and are remembered; nothing is allocated that the file does not have.
class Reader {
 public:
  static Result<Reader> Open(const std::string& path, std::string_view magic) {
    Reader reader;
    reader.path_ = path;
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) return Fail(FaultCode::kLocal, "{}: cannot be opened", path);
    reader.bytes_.resize(static_cast<std::size_t>(std::max<std::streamoff>(file.tellg(), 0)));
    file.seekg(0);
    if (!file.read(reader.bytes_.data(), static_cast<std::streamsize>(reader.bytes_.size()))) {
      return Fail(FaultCode::kLocal, "{}: cannot be read", path);
    }
    if (!std::string_view(reader.bytes_.data(), reader.bytes_.size()).starts_with(magic)) {
      return Fail(FaultCode::kMalformed, "{}: does not begin with {}", path, magic);
    }
    reader.at_ = magic.size();
    return reader;
  }

  template <class T>
  T Number() {
    T value{};
    if (Take(sizeof value)) std::memcpy(&value, bytes_.data() + at_ - sizeof value, sizeof value);
    return value;
  }
  std::uint32_t U32() { return Number<std::uint32_t>(); }
  template <class T>
  std::vector<T> Array() {
    const auto count = Number<std::uint64_t>();
    if (count > (bytes_.size() - at_) / sizeof(T)) {
      short_ = true;
      return {};
    }
    std::vector<T> values(count);
    Take(count * sizeof(T));
    if (count > 0) std::memcpy(values.data(), bytes_.data() + at_ - count * sizeof(T), count * sizeof(T));
    return values;
  }
  std::string Text() {
    const auto bytes = Array<char>();
    return {bytes.begin(), bytes.end()};
  }
  // A count of things that take at least one byte each.
  std::uint32_t Count() {
    const std::uint32_t count = U32();
    if (count <= bytes_.size() - at_) return count;
    short_ = true;
    return 0;
  }
  bool whole() const { return !short_ && at_ == bytes_.size(); }
  std::unexpected<Fault> Malformed(std::string_view what) const {
    return Fail(FaultCode::kMalformed, "{}: {}", path_, what);
  }

 private:
  bool Take(std::size_t size) {
    if (size > bytes_.size() - at_) {
      short_ = true;
      at_ = bytes_.size();
      return false;
    }
    at_ += size;
    return true;
  }
  std::string path_;
  std::vector<char> bytes_;
  std::size_t at_ = 0;
  bool short_ = false;
};

void WritePassage(Writer& out, const Passage& passage) {
  out.Array(passage.order);
  out.Array(passage.sizes);
}

Passage ReadPassage(Reader& in) {
  Passage passage;
  passage.order = in.Array<std::uint32_t>();
  passage.sizes = in.Array<std::uint32_t>();
  return passage;
}

bool PassageFits(const Passage& passage, std::size_t n_pairs) {
  std::uint64_t sum = 0;
  for (const std::uint32_t size : passage.sizes) {
    if (size == 0) return false;
    sum += size;
  }
  std::vector<bool> seen(n_pairs);
  for (const std::uint32_t pair : passage.order) {
    if (pair >= n_pairs || seen[pair]) return false;
    seen[pair] = true;
  }
  return sum == n_pairs && passage.order.size() == n_pairs;
}

}  // namespace

Result<void> WriteJob(const MatrixJob& job, const std::string& path) {
  Writer out(path);
  out.Raw(kJobMagic.data(), kJobMagic.size());
  out.U32(job.tasks.size());
  for (const MatrixTask& task : job.tasks) {
    out.Array(EncodeRecipe(task.recipe));
    out.U32(task.n_in);
    out.U32(task.n_out);
    for (const auto& projection : task.shape.projections) {
      const ProjectionShape shape = projection.value_or(ProjectionShape{});
      for (const std::uint32_t number : {std::uint32_t{projection.has_value()}, shape.type, shape.n_in, shape.n_out,
                                         std::uint32_t{shape.has_bias}, std::uint32_t{shape.has_scale}}) {
        out.U32(number);
      }
    }
    out.U32(task.slots.size());
    for (const SlabBytes& slot : task.slots) {
      for (std::size_t p = 0; p < slot.size(); ++p) {
        if (!task.shape.projections[p].has_value()) continue;
        for (const auto& slab : slot[p]) out.Array(slab);
      }
    }
    out.Array(task.rows);
    out.U32(task.pairs.size());
    for (const SlotPair& pair : task.pairs) {
      out.U32(pair.row);
      out.U32(pair.slot);
    }
    for (const Passage& passage : task.passages) WritePassage(out, passage);
  }
  return out.Finish();
}

Result<MatrixJob> ReadJob(const std::string& path) {
  ASSIGN_OR_RETURN(Reader in, Reader::Open(path, kJobMagic));
  MatrixJob job;
  for (std::uint32_t n = in.Count(); n > 0; --n) {
    MatrixTask& task = job.tasks.emplace_back();
    const auto steps = in.Array<std::uint8_t>();
    auto recipe = DecodeRecipe(steps);
    if (!recipe) return in.Malformed(recipe.error().text);
    task.recipe = std::move(*recipe);
    task.n_in = in.U32();
    task.n_out = in.U32();
    for (auto& projection : task.shape.projections) {
      const bool present = in.U32() != 0;
      ProjectionShape shape;
      shape.type = in.U32();
      shape.n_in = in.U32();
      shape.n_out = in.U32();
      shape.has_bias = in.U32() != 0;
      shape.has_scale = in.U32() != 0;
      if (present) projection = shape;
    }
    for (std::uint32_t slots = in.Count(); slots > 0; --slots) {
      SlabBytes& slot = task.slots.emplace_back();
      for (std::size_t p = 0; p < slot.size(); ++p) {
        if (!task.shape.projections[p].has_value()) continue;
        for (auto& slab : slot[p]) slab = in.Array<std::byte>();
      }
    }
    task.rows = in.Array<float>();
    for (std::uint32_t pairs = in.Count(); pairs > 0; --pairs) {
      const std::uint32_t row = in.U32();
      task.pairs.push_back({row, in.U32()});
    }
    for (Passage& passage : task.passages) passage = ReadPassage(in);
    if (task.n_in == 0 || task.n_out == 0 || task.rows.size() % task.n_in != 0) {
      return in.Malformed("rows do not fit their length");
    }
    for (const SlotPair& pair : task.pairs) {
      if (pair.row >= task.n_rows() || pair.slot >= task.slots.size()) return in.Malformed("a pair out of range");
    }
    for (const Passage& passage : task.passages) {
      if (!PassageFits(passage, task.pairs.size())) return in.Malformed("dispatches do not fit the pairs");
    }
  }
  if (!in.whole()) return in.Malformed("cut short, or bytes left over");
  return job;
}

Result<void> WriteAnswer(const MatrixAnswer& answer, const std::string& path) {
  Writer out(path);
  out.Raw(kAnswerMagic.data(), kAnswerMagic.size());
  out.Text(answer.kernel_class);
  out.Text(answer.device);
  out.Text(answer.features);
  out.U32(answer.tasks.size());
  for (const TaskAnswer& task : answer.tasks) {
    out.Text(task.fault);
    for (const auto& values : task.values) out.Array(values);
    out.Number(task.seconds);
  }
  return out.Finish();
}

Result<MatrixAnswer> ReadAnswer(const MatrixJob& job, const std::string& path) {
  ASSIGN_OR_RETURN(Reader in, Reader::Open(path, kAnswerMagic));
  MatrixAnswer answer;
  answer.kernel_class = in.Text();
  answer.device = in.Text();
  answer.features = in.Text();
  if (in.U32() != job.tasks.size()) return in.Malformed("another number of tasks than asked for");
  for (const MatrixTask& asked : job.tasks) {
    TaskAnswer& task = answer.tasks.emplace_back();
    task.fault = in.Text();
    for (auto& values : task.values) values = in.Array<float>();
    task.seconds = in.Number<double>();
    for (const auto& values : task.values) {
      if (task.fault.empty() && values.size() != asked.pairs.size() * asked.n_out) {
        return in.Malformed("not as many numbers as asked for");
      }
    }
  }
  if (!in.whole()) return in.Malformed("cut short, or bytes left over");
  return answer;
}

}  // namespace linkcpp
