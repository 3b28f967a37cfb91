// For tests: a stack whose experts are arithmetic one can do in one's head, and a folder that cleans up after itself.
#pragma once

#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernel/expert_stack.h"

namespace linkcpp {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "linkcpp-worker-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// y = x × (first byte of the down slab + 1): so an answer says which slab's bytes were in the slot.
class FakeStack final : public ExpertStack {
 public:
  // Shared by all stacks of a test.
  struct Behaviour {
    std::atomic<int> checks{0}, runs{0}, loads{0}, alive{0};
    std::function<void()> on_run;    // may block
    std::uint32_t n_out_factor = 1;  // result rows are this many times as long
    bool refuse_recipes = false;
  };

  FakeStack(const ExpertShape& shape, std::uint32_t n_slots, Behaviour& behaviour)
      : shape_(shape), behaviour_(behaviour), slots_(n_slots, -1) {
    ++behaviour_.alive;
  }
  ~FakeStack() override { --behaviour_.alive; }

  static auto Factory(Behaviour& behaviour) {
    return [&behaviour](const ExpertShape& shape, std::uint32_t n_slots) -> Result<std::unique_ptr<ExpertStack>> {
      return std::make_unique<FakeStack>(shape, n_slots, behaviour);
    };
  }

  const ExpertShape& shape() const override { return shape_; }
  std::uint32_t n_slots() const override { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint64_t device_bytes() const override { return slots_.size() * 100; }

  Result<void> Load(std::uint32_t slot, const ExpertSlabs& slabs) override {
    const auto weight = slabs.projections[static_cast<std::size_t>(Projection::kDown)].weight;
    if (weight.empty()) return Fail(FaultCode::kRefused, "no down slab");
    slots_.at(slot) = static_cast<int>(weight[0]);
    ++behaviour_.loads;
    return {};
  }

  Result<Lengths> Check(const Recipe&) override {
    ++behaviour_.checks;
    if (behaviour_.refuse_recipes) return Fail(FaultCode::kRefused, "this recipe needs a bias");
    const std::uint32_t n_in = shape_.projections[static_cast<std::size_t>(Projection::kDown)]->n_out;
    return Lengths{n_in, n_in * behaviour_.n_out_factor};
  }

  Result<void> Run(const Recipe& recipe, std::span<const float> x, std::uint32_t n_rows,
                   std::span<const SlotPair> pairs, std::span<float> y) override {
    const auto lengths = Check(recipe);
    --behaviour_.checks;
    if (!lengths) return std::unexpected(lengths.error());
    if (x.size() != std::size_t{n_rows} * lengths->n_in) return Fail(FaultCode::kLocal, "x has the wrong size");
    if (behaviour_.on_run) behaviour_.on_run();
    ++behaviour_.runs;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      for (std::uint32_t j = 0; j < lengths->n_out; ++j) {
        y[i * lengths->n_out + j] = x[std::size_t{pairs[i].row} * lengths->n_in + j % lengths->n_in] *
                                    static_cast<float>(slots_.at(pairs[i].slot) + 1);
      }
    }
    return {};
  }

 private:
  ExpertShape shape_;
  Behaviour& behaviour_;
  std::vector<int> slots_;
};

// One down matrix of n_in × n_embd bytes' worth: enough for the fake.
inline ExpertShape FakeShape(std::uint32_t n_embd) {
  ExpertShape shape;
  shape.projections[static_cast<std::size_t>(Projection::kDown)] =
      ProjectionShape{.type = 0, .n_in = 32, .n_out = n_embd};
  return shape;
}

// Slabs that make FakeStack multiply by `factor`.
struct FakeSlabs {
  explicit FakeSlabs(int factor) : byte(static_cast<std::byte>(factor - 1)) {
    slabs.projections[static_cast<std::size_t>(Projection::kDown)].weight = {&byte, 1};
  }
  std::byte byte;
  ExpertSlabs slabs;
};

}  // namespace linkcpp
