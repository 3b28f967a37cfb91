#include "worker/shard_fetch.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>

#include "gguf/model.h"
#include "gguf/shard.h"
#include "wire/control.h"
#include "worker/byte_size.h"
#include "worker/control_session.h"
#include "worker/file.h"

namespace linkcpp {
namespace {

std::string PartName(const ShardBatch& batch) {
  const std::string what =
      std::format("{} {} {}", batch.model_id, batch.layer->layer.value, FormatRanges(batch.experts));
  return HashOf(what).Hex().substr(0, 24);
}

// Broken downloads that nobody is at: they can be had again, the space can not.
void RemoveAbandonedParts(const SlabCache& cache, const std::string& but) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(cache.downloads_dir(), ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    const std::string path = it->path().string();
    if (!path.ends_with(".part") || it->path().filename().string().starts_with(but)) continue;
    if (const auto file = File::Open(path, O_RDWR); !file || !file->TryLock()) continue;
    ::unlink((path + ".etag").c_str());
    ::unlink(path.c_str());
  }
}

// The shard on disk while it arrives. The file is locked while we write; when another process has it, ours gets a
// name of its own (downloaded twice, never mixed).
class PartFile {
 public:
  static Result<PartFile> Open(const SlabCache& cache, const ShardBatch& batch) {
    const std::string name = PartName(batch);
    std::string path = cache.downloads_dir() + "/" + name + ".part";
    ASSIGN_OR_RETURN(File file, File::Open(path, O_RDWR | O_CREAT));
    // Between our opening and locking it, its owner may have finished and deleted it.
    if (!file.TryLock() || !file.IsAt(path)) {
      static std::atomic<std::uint64_t> counter{0};
      path = std::format("{}/{}.{}.{}.part", cache.downloads_dir(), name, ::getpid(), counter++);
      auto own = File::Open(path, O_RDWR | O_CREAT | O_EXCL);
      if (!own) return std::unexpected(own.error());
      file = std::move(*own);
      (void)file.TryLock();
    }
    PartFile part(std::move(file), std::move(path));
    ASSIGN_OR_RETURN(part.size_, part.file_.Size());
    std::ifstream(part.path_ + ".etag") >> part.etag_;
    if (part.etag_.empty()) RETURN_IF_FAULT(part.Restart());  // nobody could say what it is the beginning of
    return part;
  }

  Result<void> Restart() {
    size_ = 0;
    SetEtag("");
    return file_.Truncate(0);
  }
  Result<void> Append(const char* data, std::size_t size) {
    RETURN_IF_FAULT(file_.WriteAt(size_, std::as_bytes(std::span(data, size))));
    size_ += size;
    return {};
  }
  void SetEtag(const std::string& etag) {
    if (etag == etag_) return;
    etag_ = etag;
    if (etag.empty()) {
      ::unlink((path_ + ".etag").c_str());
    } else {
      std::ofstream(path_ + ".etag") << etag;  // a lost etag only costs a fresh start
    }
  }
  void Delete() {
    SetEtag("");
    ::unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }
  const std::string& etag() const { return etag_; }
  std::uint64_t size() const { return size_; }

 private:
  PartFile(File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  File file_;
  std::string path_, etag_;
  std::uint64_t size_ = 0;
};

std::string ShardPath(const ShardBatch& batch) {
  return std::format("/api/proxy/models/{}/expert-shard?layers={}&experts={}", EscapePath(batch.model_name),
                     batch.layer->layer.value, FormatRanges(batch.experts));
}

Fault StatusFault(const ShardBatch& batch, const HttpReply& reply) {
  const std::string message = ErrorMessage(reply.body);
  return {
      reply.status >= 500 || reply.status == 429 ? FaultCode::kGone : FaultCode::kRefused,
      std::format("downloading layer {} experts {}: {}", batch.layer->layer.value, FormatRanges(batch.experts),
                  message.empty() ? std::format("the coordinator answered with status {}", reply.status) : message)};
}

// Until the shard is whole, or until something is wrong. A part whose shard has changed since (another ETag) is begun
// anew.
Result<void> Download(HttpClient& http, const ShardBatch& batch, PartFile& part,
                      const std::function<bool(std::uint64_t)>& on_bytes) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::uint64_t offset = part.size();
    std::uint64_t n_new = 0;
    Result<void> written;
    bool stopped = false;
    const auto on_status = [&](const HttpReply& reply, std::uint64_t) {
      if (reply.status == 200) {  // from the start
        written = part.Restart();
        part.SetEtag(reply.etag);  // before the first byte: a download that breaks can not tell it any more
      }
      return written.has_value();
    };
    const auto on_data = [&](const char* data, std::size_t size) {
      written = part.Append(data, size);
      n_new += size;
      stopped = !on_bytes(n_new);
      return written && !stopped;
    };
    const auto reply = http.Download(ShardPath(batch), offset, part.etag(), on_status, on_data);
    RETURN_IF_FAULT(written);
    if (stopped) return Fail(FaultCode::kGone, "stopped");
    if (!reply) return Wrap(reply.error(), std::format("downloading layer {}", batch.layer->layer.value));
    if (reply->status == 200 || reply->status == 206) return {};
    // 416: the part is as long as the shard or longer; it may be whole, which taking it apart would tell, but starting
    // over is as good.
    if (reply->status != 416 || offset == 0) return std::unexpected(StatusFault(batch, *reply));
    RETURN_IF_FAULT(part.Restart());
  }
  return Fail(FaultCode::kGone, "downloading layer {}: the coordinator does not serve it from the start",
              batch.layer->layer.value);
}

const SlabRef* FindSlab(const std::vector<SlabRef>& slabs, const CatalogTensor& tensor) {
  for (const SlabRef& slab : slabs) {
    if (slab.projection == tensor.projection && slab.kind == tensor.kind) return &slab;
  }
  return nullptr;
}

// Slab by slab through one buffer.
Result<FetchOutcome> TakeApart(const ShardBatch& batch, const std::string& path, const SlabCache& cache) {
  ASSIGN_OR_RETURN(const ModelFile shard, ModelFile::Open(path));
  FetchOutcome outcome;
  std::vector<std::byte> buffer;
  for (std::size_t i = 0; i < batch.experts.size(); ++i) {
    const std::uint16_t expert = batch.experts[i];
    ASSIGN_OR_RETURN(const auto slabs, shard.Slabs({batch.layer->layer, ExpertId(static_cast<std::uint16_t>(i))}));
    for (const CatalogTensor& tensor : batch.layer->tensors) {
      const Hash& wanted = tensor.hashes[expert];
      if (cache.Has(wanted, tensor.slab_bytes)) continue;
      const SlabRef* slab = FindSlab(slabs, tensor);
      if (slab == nullptr || slab->size_bytes != tensor.slab_bytes) {
        return Fail(FaultCode::kMalformed, "the shard has no slab of {} bytes for layer {} expert {} {}",
                    tensor.slab_bytes, batch.layer->layer.value, expert, ProjectionName(tensor.projection));
      }
      buffer.resize(tensor.slab_bytes);
      RETURN_IF_FAULT(shard.ReadAt(slab->file, slab->offset, buffer));
      const auto stored = cache.Put(wanted, buffer);
      if (stored) {
        ++outcome.slabs_stored;
      } else if (stored.error().code == FaultCode::kRefused) {
        if (outcome.slabs_wrong++ == 0) {
          outcome.first_wrong = std::format("layer {} expert {} {}: {}", batch.layer->layer.value, expert,
                                            ProjectionName(tensor.projection), stored.error().text);
        }
      } else {
        return std::unexpected(stored.error());
      }
    }
  }
  return outcome;
}

}  // namespace

Result<FetchOutcome> FetchShard(HttpClient& http, const ShardBatch& batch, const SlabCache& cache,
                                const std::function<bool(std::uint64_t)>& on_bytes) {
  const std::uint64_t bytes = batch.layer->slice_bytes * batch.experts.size();
  // The part file and the slabs taken from it are there at the same time, for the last batch.
  std::uint64_t free = FreeDiskBytes(cache.dir());
  if (free != 0 && free < 2 * bytes) {
    RemoveAbandonedParts(cache, PartName(batch));
    free = FreeDiskBytes(cache.dir());
  }
  if (free != 0 && free < 2 * bytes) {
    return Fail(
        FaultCode::kLocal,
        "the disk is full: {} has {} free, the next download needs {}: free some space, or choose another folder "
        "with --cache",
        cache.dir(), FormatByteSize(free), FormatByteSize(2 * bytes));
  }
  ASSIGN_OR_RETURN(PartFile part, PartFile::Open(cache, batch));
  if (auto done = Download(http, batch, part, on_bytes); !done) {
    // Without room for the rest, what came is only in the way of others.
    if (done.error().code == FaultCode::kLocal) part.Delete();
    return std::unexpected(done.error());
  }
  auto outcome = TakeApart(batch, part.path(), cache);
  part.Delete();
  return outcome;
}

}  // namespace linkcpp
