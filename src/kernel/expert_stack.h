// Experts of one shape stacked on a device, and the machine that runs pairs through them: y = recipe(expert, x).
//
// A stack has a fixed number of slots. Each slot holds the slabs of one expert; one tensor per projection holds all
// slots, so a whole dispatch is one graph: gather, mul_mat_id, activation, mul_mat_id. A worker fills a slot per held
// expert of a layer; the plug-in's local fallback reuses slots of one stack for all layers of the same shape.
// Knows nothing of routing weights, sockets, or which expert a slot is.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/recipe.h"
#include "base/result.h"
#include "kernel/device.h"

namespace linkcpp {

// Shape of one expert. A projection that the model does not have is absent.
struct ProjectionShape {
  std::uint32_t type = 0;   // ggml type number of the weight
  std::uint32_t n_in = 0;   // ne[0]
  std::uint32_t n_out = 0;  // ne[1]
  bool has_bias = false;    // [n_out] f32
  bool has_scale = false;   // one f32
  friend auto operator<=>(const ProjectionShape&, const ProjectionShape&) = default;
};
struct ExpertShape {
  std::array<std::optional<ProjectionShape>, kProjections> projections;  // indexed by Projection
  friend auto operator<=>(const ExpertShape&, const ExpertShape&) = default;

  std::uint64_t bytes() const;  // of one expert, all slabs
};

// The bytes of one expert, borrowed for the call. Empty spans where the shape has nothing.
struct ExpertSlabs {
  struct Slabs {
    std::span<const std::byte> weight;
    std::span<const std::byte> bias;
    std::span<const std::byte> scale;
  };
  std::array<Slabs, kProjections> projections;
};

// ggml's CPU kernels on x86 multiply most K-quants (in plain buffers) in another order when an expert has at least this
// many rows in a graph (ggml 0.27, tiled.cpp; tests in host_bits_test.cc). So bits depend on one thing besides the
// row: whether the dispatch has fewer than kManyRows pairs of its slot, or not. To have the bits of a host that
// computes a whole batch in one graph, send all of an expert's pairs in one dispatch, or in pieces of at least
// kManyRows.
inline constexpr std::uint32_t kManyRows = 8;

struct SlotPair {
  std::uint32_t row = 0;  // index into x
  std::uint32_t slot = 0;
};

class ExpertStack {
 public:
  // `device` must outlive the stack. kRefused: the device can not run this type or shape. kLocal: it does not fit.
  static Result<std::unique_ptr<ExpertStack>> Create(const ExpertShape& shape, std::uint32_t n_slots, Device& device);
  virtual ~ExpertStack() = default;

  virtual const ExpertShape& shape() const = 0;
  virtual std::uint32_t n_slots() const = 0;
  virtual std::uint64_t device_bytes() const = 0;

  // Copies an expert into a slot (repacked if that is how the host would hold it). No second copy of the stack is made.
  // After a fault the slot holds nothing.
  //
  // kRefused: no such slot, or a slab's size does not fit the shape.
  virtual Result<void> Load(std::uint32_t slot, const ExpertSlabs& slabs) = 0;

  // Row lengths in and out for a recipe. kRefused: the recipe asks for a tensor the shape does not have, lengths do
  // not fit, or the device can not run a step.
  struct Lengths {
    std::uint32_t n_in = 0;
    std::uint32_t n_out = 0;
  };
  virtual Result<Lengths> Check(const Recipe& recipe) = 0;

  // x: [n_rows, n_in] f32, y: [pairs.size(), n_out] f32, row-major, caller-owned, must not overlap.
  // y[i] answers pairs[i]. One thread at a time per Device.
  //
  // Bits depend only on (expert bytes, row, recipe, kernel class) and on which side of kManyRows the number of the
  // slot's pairs lies; on nothing else of the batch (if Device::batch_invariant). NaN and infinities come out as the
  // host has them.
  //
  // kRefused: as Check; a row or slot out of range, a slot that holds nothing, sizes of x or y that do not fit.
  //
  // kLocal: no memory, or the device failed.
  virtual Result<void> Run(const Recipe& recipe, std::span<const float> x, std::uint32_t n_rows,
                           std::span<const SlotPair> pairs, std::span<float> y) = 0;
};

}  // namespace linkcpp
