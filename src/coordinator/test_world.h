// For tests: the small trained model, a folder that goes away, a clock that several threads may read.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/registry.h"
#include "coordinator/served_model.h"

namespace linkcpp {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "linkcpp-coordinator-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class TestClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(std::chrono::hours(1)) + Duration(passed_.load()); }
  void Advance(Duration step) { passed_ += step.count(); }

 private:
  std::atomic<Duration::rep> passed_ = 0;
};

// austen-moe: linked into a folder of its own, so that the manifest is not left in the checkout. Loaded once.
inline const ServedModel& Austen() {
  static const TempFolder folder;
  static const std::unique_ptr<ServedModel> served = [] {
    const std::string path = folder.path() + "/austen-moe-q4km.gguf";
    std::filesystem::create_symlink(LINKCPP_ASSETS "/austen-moe-q4km.gguf", path);
    auto loaded = ServedModel::Load(path, folder.path(), [](std::uint64_t, std::uint64_t) {});
    return loaded ? std::move(*loaded) : nullptr;
  }();
  if (served == nullptr) throw std::runtime_error("the test model cannot be loaded");
  return *served;
}

inline RegistryOptions QuickPolls() {
  RegistryOptions options;
  options.poll = std::chrono::milliseconds(300);
  options.probe_seed = 7;
  return options;
}

inline JoinRequest Worker(std::string name, std::uint64_t memory_bytes) {
  JoinRequest request;
  request.name = std::move(name);
  request.device = "CPU";
  request.memory_bytes = memory_bytes;
  return request;
}

inline AttachRequest Backbone(std::string data_address = "127.0.0.1:4711") {
  AttachRequest request;
  request.program = "llama-server";
  request.data_address = std::move(data_address);
  request.header_hash = Austen().header_hash();
  return request;
}

// Memory for exactly `n` slices of layer 0 (the layers of the test model differ a little in size).
inline std::uint64_t MemoryFor(std::uint64_t n_slices) {
  return n_slices * SliceCost(Austen().geometry().front().slice_bytes);
}
inline constexpr std::uint64_t kPlenty = 1ull << 40;

}  // namespace linkcpp
