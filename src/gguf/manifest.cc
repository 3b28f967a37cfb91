#include "gguf/manifest.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "gguf/manifest_codec.h"

namespace linkcpp {
namespace {

constexpr std::size_t kReadBytes = 2 << 20;
constexpr std::uint64_t kWorkBytes = 64 << 20;  // what a thread takes at a time: long runs of one tensor, for disks

// Consecutive experts of one tensor.
struct Work {
  const ExpertTensor* tensor;
  std::size_t slab;         // index in the slices' lists
  std::size_t first_slice;  // index in Slices of first_expert
  std::uint32_t first_expert;
  std::uint32_t n_experts;
};

class SlabHashing {
 public:
  SlabHashing(const ModelFile& model, Manifest::Slices& slices) : model_(model), slices_(slices) {
    for (const MoeLayer& layer : model.moe_layers()) {
      const std::size_t first_slice = slices.size();
      for (std::uint32_t expert = 0; expert < layer.n_experts; ++expert) {
        auto& [id, slabs] = slices.emplace_back();
        id = {layer.layer, ExpertId(static_cast<std::uint16_t>(expert))};
        for (const ExpertTensor& tensor : layer.tensors) {
          slabs.push_back({tensor.projection, tensor.kind, {}, tensor.slab_bytes});
        }
      }
      for (std::size_t slab = 0; slab < layer.tensors.size(); ++slab) {
        const ExpertTensor& tensor = layer.tensors[slab];
        const auto step =
            static_cast<std::uint32_t>(std::clamp<std::uint64_t>(kWorkBytes / tensor.slab_bytes, 1, 65536));
        for (std::uint32_t expert = 0; expert < layer.n_experts; expert += step) {
          work_.push_back({&tensor, slab, first_slice + expert, expert, std::min(step, layer.n_experts - expert)});
        }
        total_bytes_ += tensor.slab_bytes * layer.n_experts;
      }
    }
  }

  Result<void> Run(int n_threads, const Manifest::Progress& progress) {
    const auto n_readers = static_cast<std::size_t>(std::clamp<std::int64_t>(n_threads, 1, 64));
    std::vector<std::jthread> readers;
    {
      const std::scoped_lock lock(mutex_);
      while (readers.size() < std::min(n_readers, work_.size())) {
        try {
          readers.emplace_back([this] { Reader(); });
          ++running_;
        } catch (const std::system_error&) {  // no more threads to be had: fewer will do
          break;
        }
      }
    }
    if (readers.empty()) Reader();
    std::unique_lock lock(mutex_);
    while (running_ > 0) {
      finished_.wait_for(lock, std::chrono::milliseconds(200));
      lock.unlock();
      if (progress) progress(done_bytes_, total_bytes_);
      lock.lock();
    }
    if (fault_) return std::unexpected(*fault_);
    if (progress) progress(total_bytes_, total_bytes_);
    return {};
  }

 private:
  void Reader() {
    auto result = HashAll();
    const std::scoped_lock lock(mutex_);
    if (!result && !fault_) fault_ = result.error();
    if (!result) stop_ = true;
    if (running_ > 0) --running_;
    finished_.notify_one();
  }

  Result<void> HashAll() try {
    std::vector<std::byte> buffer(kReadBytes);
    while (!stop_) {
      const std::size_t next = next_++;
      if (next >= work_.size()) break;
      RETURN_IF_FAULT(HashOne(work_[next], buffer));
    }
    return {};
  } catch (const std::bad_alloc&) {
    return Fail(FaultCode::kLocal, "not enough memory to hash {}", model_.name());
  }

  // Reads the experts of `work` one after another, however the reads fall on their borders.
  Result<void> HashOne(const Work& work, std::span<std::byte> buffer) {
    const std::uint64_t slab_bytes = work.tensor->slab_bytes;
    const TensorInfo& tensor = *work.tensor->tensor;
    std::uint64_t offset = tensor.offset + work.first_expert * slab_bytes;
    std::uint64_t left = work.n_experts * slab_bytes;
    std::size_t slice = work.first_slice;
    Hasher hasher;
    std::uint64_t slab_left = slab_bytes;
    while (left > 0 && !stop_) {
      auto part = buffer.first(static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size())));
      RETURN_IF_FAULT(model_.ReadAt(tensor.file, offset, part));
      offset += part.size();
      left -= part.size();
      done_bytes_ += part.size();
      while (!part.empty()) {
        const auto n_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(slab_left, part.size()));
        hasher.Update(part.first(n_bytes));
        part = part.subspan(n_bytes);
        slab_left -= n_bytes;
        if (slab_left > 0) continue;
        slices_[slice++].second[work.slab].hash = hasher.Finish();
        hasher = Hasher();
        slab_left = slab_bytes;
      }
    }
    return {};
  }

  const ModelFile& model_;
  Manifest::Slices& slices_;  // each reader writes other elements
  std::vector<Work> work_;
  std::uint64_t total_bytes_ = 0;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> done_bytes_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;  // guards running_, fault_
  std::condition_variable finished_;
  std::size_t running_ = 0;
  std::optional<Fault> fault_;
};

}  // namespace

Manifest::Manifest(Hash header_hash, Slices slices)
    : model_id_(ModelIdOf(header_hash, slices)), header_hash_(header_hash), slices_(std::move(slices)) {}

Result<Manifest> Manifest::Compute(const ModelFile& model, int n_threads, const Progress& progress) try {
  Slices slices;
  SlabHashing hashing(model, slices);
  RETURN_IF_FAULT(hashing.Run(n_threads, progress));
  for (std::size_t i = 0; i < model.paths().size(); ++i) {
    RETURN_IF_FAULT(model.source(static_cast<std::uint16_t>(i)).CheckUnchanged());
  }
  return Manifest(model.header_hash(), std::move(slices));
} catch (const std::bad_alloc&) {
  return Fail(FaultCode::kLocal, "not enough memory for the manifest of {}", model.name());
}

Result<Manifest> Manifest::Decode(std::string_view bytes) try {
  ASSIGN_OR_RETURN(auto parts, DecodeManifest(bytes));
  Manifest manifest(parts.header_hash, std::move(parts.slices));
  if (manifest.model_id_ != parts.model_id) {
    return Fail(FaultCode::kMalformed, "a manifest whose hashes do not give its model id");
  }
  return manifest;
} catch (const std::bad_alloc&) {
  return Fail(FaultCode::kLocal, "not enough memory for a manifest of {} bytes", bytes.size());
}

std::string Manifest::Encode() const {
  return EncodeManifest(model_id_, header_hash_, slices_);
}

const std::vector<SlabHash>* Manifest::Find(SliceId slice) const {
  const auto found = std::ranges::lower_bound(slices_, slice, {}, &Slices::value_type::first);
  return found == slices_.end() || found->first != slice ? nullptr : &found->second;
}

Result<void> VerifySlab(SliceId slice, const SlabHash& expected, std::span<const std::byte> bytes) {
  if (bytes.size() == expected.size_bytes && HashOf(bytes) == expected.hash) return {};
  return Fail(FaultCode::kMalformed, "the {} {} of layer {}, expert {} is not the model's: {}",
              ProjectionName(expected.projection), SlabKindName(expected.kind), slice.layer.value, slice.expert.value,
              bytes.size() == expected.size_bytes
                  ? std::string("its hash differs")
                  : std::format("{} bytes instead of {}", bytes.size(), expected.size_bytes));
}

}  // namespace linkcpp
