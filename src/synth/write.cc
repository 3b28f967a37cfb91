#include "synth/write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/rng.h"

namespace linkcpp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kChunk = 4 << 20;  // one draw and one write; near the second cache's size

double Gigabytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

// Seeds of chunks that follow one another must not: every bit of each depends on all of seed, name and index.
std::uint64_t ChunkSeed(std::uint64_t seed, std::string_view name, std::uint64_t index) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  std::uint64_t mixed = Rng(seed).Next() ^ hash;
  mixed = Rng(mixed).Next() + index;
  return Rng(mixed).Next();
}

// The file under its temporary name; removed unless Keep() was reached.
class PartFile {
 public:
  static Result<PartFile> Create(const std::string& path) {
    PartFile file(path + ".part");
    file.fd_ = ::open(file.path_.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);
    if (file.fd_ < 0) return Fail(FaultCode::kLocal, "can not create {}: {}", file.path_, std::strerror(errno));
    return file;
  }
  PartFile(PartFile&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(path_.c_str());
  }

  int fd() const { return fd_; }

  Result<void> WriteAt(std::uint64_t offset, const void* bytes, std::uint64_t size) const {
    const auto* from = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t n = ::pwrite(fd_, from, size, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return Fail(FaultCode::kLocal, "writing {}: {}", path_, std::strerror(n < 0 ? errno : ENOSPC));
      from += n;
      offset += static_cast<std::uint64_t>(n);
      size -= static_cast<std::uint64_t>(n);
    }
    return {};
  }

  Result<void> Keep(const std::string& path) {
    if (::close(std::exchange(fd_, -1)) != 0 || ::rename(path_.c_str(), path.c_str()) != 0) {
      const int error = errno;
      ::unlink(path_.c_str());
      return Fail(FaultCode::kLocal, "writing {}: {}", path, std::strerror(error));
    }
    return {};
  }

 private:
  explicit PartFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
  int fd_ = -1;
};

// One stretch of one tensor, drawn and written by whoever takes it.
struct Chunk {
  const PlannedTensor* tensor;
  const BlockFiller* filler;
  std::uint64_t index;
  std::uint64_t begin, size;  // within the tensor
};

class Writer {
 public:
  Writer(const SynthPlan& plan, const PartFile& file, std::uint64_t data_start, const WriteOptions& options)
      : file_(file), data_start_(data_start), options_(options) {
    fillers_.reserve(plan.tensors.size());
    for (const PlannedTensor& tensor : plan.tensors) {
      fillers_.emplace_back(tensor.type, tensor.fill);
      const std::uint64_t block = InfoOf(tensor.type).block_bytes;
      const std::uint64_t step = kChunk / block * block;
      for (std::uint64_t begin = 0, index = 0; begin < tensor.size_bytes; begin += step, ++index) {
        chunks_.push_back({&tensor, &fillers_.back(), index, begin, std::min(step, tensor.size_bytes - begin)});
        total_ += chunks_.back().size;
      }
    }
  }

  Result<void> Run() {
    std::vector<std::jthread> threads;
    const unsigned n = std::clamp(options_.threads, 1u, 64u);
    {
      const std::lock_guard lock(mutex_);
      running_ = n;
    }
    for (unsigned i = 0; i < n; ++i) threads.emplace_back([this] { Work(); });
    std::unique_lock lock(mutex_);
    while (!finished_.wait_for(lock, std::chrono::milliseconds(100), [&] { return running_ == 0; })) {
      lock.unlock();
      if (options_.progress && !options_.progress(done_, total_)) stop_ = true;
      lock.lock();
    }
    lock.unlock();
    threads.clear();
    if (fault_) return std::unexpected(*fault_);
    if (options_.progress && !options_.progress(done_, total_)) stop_ = true;
    if (stop_) return Fail(FaultCode::kLocal, "stopped: what was written has been removed");
    return {};
  }

 private:
  void Work() {
    std::optional<Fault> fault;
    try {
      std::vector<std::byte> buffer(kChunk);
      for (std::size_t i = next_++; i < chunks_.size() && !stop_; i = next_++) {
        const Chunk& chunk = chunks_[i];
        Rng rng(ChunkSeed(options_.seed, chunk.tensor->name, chunk.index));
        const auto bytes = std::span(buffer).first(chunk.size);
        chunk.filler->Draw(rng, bytes);
        const auto written =
            file_.WriteAt(data_start_ + chunk.tensor->offset + chunk.begin, bytes.data(), bytes.size());
        if (!written) {
          fault = written.error();
          break;
        }
        done_ += chunk.size;
      }
    } catch (const std::exception& error) {
      fault = Fault{FaultCode::kLocal, std::string("writing: ") + error.what()};
    }
    const std::lock_guard lock(mutex_);
    if (fault) {
      fault_ = std::move(fault);
      stop_ = true;
    }
    --running_;
    finished_.notify_one();
  }

  const PartFile& file_;
  const std::uint64_t data_start_;
  const WriteOptions& options_;
  std::vector<BlockFiller> fillers_;
  std::vector<Chunk> chunks_;
  std::uint64_t total_ = 0;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards running_, fault_
  std::condition_variable finished_;
  unsigned running_ = 0;
  std::optional<Fault> fault_;
};

Result<void> CheckRoom(const PartFile& file, const std::string& path, std::uint64_t needed) {
  struct statvfs fs{};
  if (::fstatvfs(file.fd(), &fs) != 0) return {};
  const std::uint64_t free = std::uint64_t{fs.f_bavail} * fs.f_frsize;
  if (needed <= free) return {};
  return Fail(FaultCode::kLocal,
              "{} needs {:.1f} GB and its disk has {:.1f} GB free: choose another place with -o, or fewer --layers or "
              "--experts",
              path, Gigabytes(needed), Gigabytes(free));
}

}  // namespace

Result<WriteOutcome> WriteSynth(const SynthPlan& plan, const std::string& path, const WriteOptions& options) {
  try {
    const auto start = Clock::now();
    if (!options.overwrite && ::access(path.c_str(), F_OK) == 0) {
      return Fail(FaultCode::kLocal, "{} exists already: remove it, or say --force", path);
    }
    const std::string header = GgufHeader(plan);
    WriteOutcome outcome{.file_bytes = header.size() + plan.data_bytes, .header_bytes = header.size()};
    ASSIGN_OR_RETURN(PartFile file, PartFile::Create(path));
    RETURN_IF_FAULT(CheckRoom(file, path, options.skeleton ? header.size() : outcome.file_bytes));
    if (::ftruncate(file.fd(), static_cast<off_t>(outcome.file_bytes)) != 0) {
      return Fail(FaultCode::kLocal, "{} can not become {:.1f} GB long: {}", path, Gigabytes(outcome.file_bytes),
                  std::strerror(errno));
    }
    RETURN_IF_FAULT(file.WriteAt(0, header.data(), header.size()));
    if (!options.skeleton) RETURN_IF_FAULT(Writer(plan, file, header.size(), options).Run());
    struct stat status{};
    if (::fstat(file.fd(), &status) == 0) outcome.disk_bytes = static_cast<std::uint64_t>(status.st_blocks) * 512;
    RETURN_IF_FAULT(file.Keep(path));
    outcome.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return outcome;
  } catch (const std::exception& error) {
    return Fail(FaultCode::kLocal, "writing {}: {}", path, error.what());
  }
}

}  // namespace linkcpp
