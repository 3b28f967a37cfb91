// A shard to disk at the speed of a file copy: the kernel moves the bytes where it can, else reads of a few MB.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <new>

#include "gguf/shard.h"

namespace linkcpp {
namespace {

constexpr std::size_t kBufferBytes = 4 << 20;
constexpr std::uint64_t kStrideBytes = 32 << 20;  // between two calls of progress

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

Result<void> CheckTarget(const std::string& path, const ModelFile& model) {
  struct stat target{};
  if (::stat(path.c_str(), &target) != 0) return {};  // not there yet
  if (!S_ISREG(target.st_mode)) {
    return Fail(FaultCode::kRefused, "{} is {}: name a file to write to", path,
                S_ISDIR(target.st_mode) ? "a directory" : "not a plain file");
  }
  for (std::size_t i = 0; i < model.paths().size(); ++i) {
    struct stat source{};
    if (::fstat(model.source(static_cast<std::uint16_t>(i)).fd(), &source) == 0 && SameFile(source, target)) {
      return Fail(FaultCode::kRefused, "{} is the model itself: choose another name for the shard", path);
    }
  }
  return {};
}

// An output file that is gone again unless it was kept.
class PartFile {
 public:
  static Result<PartFile> Create(const std::string& path) {
    PartFile file;
    file.path_ = path;
    file.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file.fd_ < 0) return Fail(FaultCode::kLocal, "cannot create {}: {}", path, ErrnoText(errno));
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

  Result<void> WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t wrote = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return WriteFault(wrote < 0 ? errno : EIO);
      bytes = bytes.subspan(static_cast<std::size_t>(wrote));
      offset += static_cast<std::uint64_t>(wrote);
    }
    return {};
  }

  std::unexpected<Fault> WriteFault(int number) const {
    struct statvfs disk{};
    if ((number == ENOSPC || number == EDQUOT) && ::fstatvfs(fd_, &disk) == 0) {
      return Fail(FaultCode::kLocal, "writing {}: the disk is full ({} MB free): make room or choose another disk",
                  path_, static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize / 1'000'000);
    }
    return Fail(FaultCode::kLocal, "writing {}: {}", path_, ErrnoText(number));
  }

  Result<void> KeepAs(const std::string& path) {
    // Some file systems only notice on closing that the disk is full.
    const int closed = ::close(std::exchange(fd_, -1));
    if (closed == 0 && ::rename(path_.c_str(), path.c_str()) == 0) return {};
    const int number = errno;
    ::unlink(path_.c_str());
    return Fail(FaultCode::kLocal, "writing {}: {}", path, ErrnoText(number));
  }

 private:
  PartFile() = default;
  std::string path_;
  int fd_ = -1;
};

// Copies ranges of one file into another. Once the kernel has declined to do it, it is not asked again.
class Copier {
 public:
  explicit Copier(const PartFile& out) : out_(out) {}

  Result<void> Copy(const ByteSource& source, std::uint64_t from, std::uint64_t to, std::uint64_t n_bytes) {
    while (n_bytes > 0) {
      if (kernel_ && source.fd() >= 0) {
        auto in_offset = static_cast<off_t>(from);
        auto out_offset = static_cast<off_t>(to);
        const ssize_t copied = ::copy_file_range(source.fd(), &in_offset, out_.fd(), &out_offset, n_bytes, 0);
        if (copied > 0) {
          from += static_cast<std::uint64_t>(copied);
          to += static_cast<std::uint64_t>(copied);
          n_bytes -= static_cast<std::uint64_t>(copied);
          continue;
        }
        if (copied < 0 && errno == EINTR) continue;
        if (copied < 0 && (errno == ENOSPC || errno == EDQUOT)) return out_.WriteFault(errno);
        kernel_ = false;  // another file system, an old kernel, or an error that read and write will explain
        continue;
      }
      if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
      const std::span part(buffer_.get(), static_cast<std::size_t>(std::min<std::uint64_t>(n_bytes, kBufferBytes)));
      RETURN_IF_FAULT(source.ReadAt(from, part));
      RETURN_IF_FAULT(out_.WriteAt(to, part));
      from += part.size();
      to += part.size();
      n_bytes -= part.size();
    }
    return {};
  }

 private:
  const PartFile& out_;
  bool kernel_ = true;
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace

Result<void> Shard::WriteTo(const std::string& path, const Manifest::Progress& progress) const try {
  RETURN_IF_FAULT(CheckTarget(path, *model_));
  RETURN_IF_FAULT(CheckTarget(path + ".part", *model_));
  ASSIGN_OR_RETURN(auto out, PartFile::Create(path + ".part"));
  // Room for all of it now, or a clear answer now. Where the file system cannot say, writing will tell.
  if (::fallocate(out.fd(), 0, 0, static_cast<off_t>(size_bytes_)) != 0 && (errno == ENOSPC || errno == EDQUOT)) {
    return Wrap(out.WriteFault(errno).error(), std::format("a shard of {} MB", size_bytes_ / 1'000'000));
  }
  RETURN_IF_FAULT(out.WriteAt(0, std::as_bytes(std::span(header_))));
  Copier copier(out);
  for (const Piece& piece : pieces_) {
    for (std::uint64_t done = 0; done < piece.size_bytes;) {
      const std::uint64_t n_bytes = std::min(piece.size_bytes - done, kStrideBytes);
      RETURN_IF_FAULT(
          copier.Copy(model_->source(piece.file), piece.source_offset + done, piece.offset + done, n_bytes));
      done += n_bytes;
      if (progress) progress(piece.offset + done, size_bytes_);
    }
  }
  // Gaps and the last padding are zeros that nobody wrote.
  if (::ftruncate(out.fd(), static_cast<off_t>(size_bytes_)) != 0) return out.WriteFault(errno);
  RETURN_IF_FAULT(out.KeepAs(path));
  if (progress) progress(size_bytes_, size_bytes_);
  return {};
} catch (const std::bad_alloc&) {
  return Fail(FaultCode::kLocal, "not enough memory to copy {}", path);
}

}  // namespace linkcpp
