// Models to plan with, by name, straight from the tables of src/synth: headers in memory, no weights anywhere.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gguf/model.h"
#include "planner/model_sizes.h"
#include "synth/plan.h"

namespace linkcpp::test {

// A file whose data are one hole.
class HollowSource final : public ByteSource {
 public:
  HollowSource(std::string header, std::uint64_t size_bytes) : header_(std::move(header)), size_bytes_(size_bytes) {}
  Result<void> ReadAt(std::uint64_t offset, std::span<std::byte> bytes) const override {
    std::memset(bytes.data(), 0, bytes.size());
    if (offset < header_.size()) {
      std::memcpy(bytes.data(), header_.data() + offset, std::min<std::size_t>(bytes.size(), header_.size() - offset));
    }
    return {};
  }
  std::uint64_t size_bytes() const override { return size_bytes_; }

 private:
  std::string header_;
  std::uint64_t size_bytes_;
};

inline ModelSizes SizesOf(std::string_view like, std::string_view type = "Q4_K_M") {
  const auto plan = PlanSynth({.like = like, .type = type, .vocabulary = {}});
  if (!plan) {
    ADD_FAILURE() << plan.error().text;
    return {};
  }
  std::string header = GgufHeader(*plan);
  std::vector<std::unique_ptr<ByteSource>> sources;
  const std::uint64_t size = header.size() + plan->data_bytes;
  sources.push_back(std::make_unique<HollowSource>(std::move(header), size));
  const auto model = ModelFile::FromSources({std::string(like) + ".gguf"}, std::move(sources));
  if (!model) {
    ADD_FAILURE() << model.error().text;
    return {};
  }
  auto sizes = MeasureModel(*model);
  if (!sizes) {
    ADD_FAILURE() << sizes.error().text;
    return {};
  }
  return *std::move(sizes);
}

}  // namespace linkcpp::test
