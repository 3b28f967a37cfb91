#include "kernel/expert_stack.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <list>

#include "kernel/arrange.h"
#include "kernel/backends.h"
#include "kernel/ggml_device.h"
#include "kernel/recipe_graph.h"
#include "kernel/recipe_plan.h"
#include "kernel/weight_tensor.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kMaxSlots = 1u << 16;
// A dispatch whose intermediate rows need more than this is run in parts; the bits are the same.
constexpr std::uint64_t kMaxComputeBytes = std::uint64_t{256} << 20;
// A decode meets a few arrangements over and over (as many as a token has experts, when holders change); a prefill
// meets a new one each time and does not mind.
constexpr std::size_t kMaxGraphs = 16;

std::size_t SizeOrZero(bool present, std::size_t bytes) {
  return present ? bytes : 0;
}

Result<void> CheckSlab(const char* projection, const char* kind, std::size_t given, std::size_t wanted) {
  if (given == wanted) return {};
  return Fail(FaultCode::kRefused, "the {} {} slab has {} bytes, not {}", projection, kind, given, wanted);
}

// Small f32 tensors of all slots (biases, scales) in the device's default buffer type.
struct FloatTensor {
  GgmlContext context;
  GgmlBuffer buffer;
  ggml_tensor* tensor = nullptr;

  static Result<FloatTensor> Create(std::int64_t length, std::uint32_t n_slots, const GgmlDevice& device) {
    FloatTensor made;
    made.context = NewContext(1);
    made.tensor = ggml_new_tensor_2d(made.context.get(), GGML_TYPE_F32, length, n_slots);
    made.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(made.context.get(), device.default_buffer_type()));
    if (!made.buffer) return Fail(FaultCode::kLocal, "no memory for {} numbers of {} slots", length, n_slots);
    return made;
  }
  void Write(std::uint32_t slot, std::span<const std::byte> slab) {
    ggml_backend_tensor_set(tensor, slab.data(), slot * tensor->nb[1], slab.size());
  }
};

class GgmlStack final : public ExpertStack {
 public:
  GgmlStack(const ExpertShape& shape, std::uint32_t n_slots, GgmlDevice& device)
      : shape_(shape), n_slots_(n_slots), device_(device), loaded_(n_slots, false) {}

  Result<void> Allocate();

  const ExpertShape& shape() const override { return shape_; }
  std::uint32_t n_slots() const override { return n_slots_; }
  std::uint64_t device_bytes() const override { return device_bytes_; }
  Result<void> Load(std::uint32_t slot, const ExpertSlabs& slabs) override;
  Result<Lengths> Check(const Recipe& recipe) override;
  Result<void> Run(const Recipe& recipe, std::span<const float> x, std::uint32_t n_rows,
                   std::span<const SlotPair> pairs, std::span<float> y) override;

 private:
  struct Part {  // one projection of the shape
    std::optional<WeightTensor> weight;
    std::optional<FloatTensor> bias;
    std::optional<FloatTensor> scale;
  };
  struct CheckedRecipe {
    std::vector<std::uint8_t> key;  // EncodeRecipe
    RecipePlan plan;
  };
  struct CachedGraph {
    std::vector<std::uint8_t> key;
    Arrangement arrangement;
    std::uint64_t generation = 0;
    RecipeGraph graph;
  };

  Result<const CheckedRecipe*> Checked(const Recipe& recipe);
  Result<RecipeGraph*> GraphFor(const CheckedRecipe& checked, const Recipe& recipe, const Arrangement& arrangement);
  Result<void> RunPart(const CheckedRecipe& checked, const Recipe& recipe, std::span<const float> x,
                       const Arrangement& arrangement, std::span<const SlotPair> pairs, std::span<float> y);
  Result<void> RunInParts(const CheckedRecipe& checked, const Recipe& recipe, std::span<const float> x,
                          std::span<const SlotPair> pairs, std::size_t most, std::span<float> y);
  void SetInputs(const RecipeGraph& graph, std::span<const float> x, const Arrangement& arrangement,
                 std::span<const SlotPair> pairs);

  ExpertShape shape_;
  std::uint32_t n_slots_;
  GgmlDevice& device_;
  std::array<Part, kProjections> parts_;
  StackTensors tensors_;
  std::uint64_t device_bytes_ = 0;
  std::vector<bool> loaded_;
  std::list<CheckedRecipe> checked_;  // most recent first
  std::list<CachedGraph> graphs_;     // most recent first
  ArrangeScratch arrange_scratch_;
  std::vector<std::int32_t> ids_;
  std::vector<float> rows_;  // for devices whose memory we can not write
};

Result<void> GgmlStack::Allocate() {
  const std::uint64_t free_bytes = Describe(device_.device()).free_bytes;
  const std::uint64_t expert_bytes = shape_.bytes();
  if (free_bytes != 0 && expert_bytes > free_bytes / n_slots_) {
    return Fail(FaultCode::kLocal, "{} slots of {} bytes do not fit into the {} bytes that are free on {}", n_slots_,
                expert_bytes, free_bytes, device_.info().name);
  }
  for (std::size_t i = 0; i < kProjections; ++i) {
    if (!shape_.projections[i]) continue;
    const ProjectionShape& shape = *shape_.projections[i];
    Part& part = parts_[i];
    ASSIGN_OR_RETURN(part.weight, WeightTensor::Create(shape, n_slots_, device_));
    tensors_.projections[i].weight = part.weight->tensor();
    device_bytes_ += part.weight->buffer_bytes();
    if (shape.has_bias) {
      ASSIGN_OR_RETURN(part.bias, FloatTensor::Create(shape.n_out, n_slots_, device_));
      tensors_.projections[i].bias = part.bias->tensor;
      device_bytes_ += ggml_backend_buffer_get_size(part.bias->buffer.get());
    }
    if (shape.has_scale) {
      ASSIGN_OR_RETURN(part.scale, FloatTensor::Create(1, n_slots_, device_));
      tensors_.projections[i].scale = part.scale->tensor;
      device_bytes_ += ggml_backend_buffer_get_size(part.scale->buffer.get());
    }
  }
  return {};
}

Result<void> GgmlStack::Load(std::uint32_t slot, const ExpertSlabs& slabs) {
  if (slot >= n_slots_) return Fail(FaultCode::kRefused, "slot {} of a stack of {}", slot, n_slots_);
  loaded_[slot] = false;
  for (std::size_t i = 0; i < kProjections; ++i) {
    const char* name = ProjectionName(static_cast<Projection>(i));
    const std::optional<ProjectionShape>& shape = shape_.projections[i];
    const ExpertSlabs::Slabs& given = slabs.projections[i];
    const bool has_bias = shape && shape->has_bias;
    const bool has_scale = shape && shape->has_scale;
    const std::size_t weight_bytes = shape ? parts_[i].weight->slab_bytes() : 0;
    RETURN_IF_FAULT(CheckSlab(name, "weight", given.weight.size(), weight_bytes));
    RETURN_IF_FAULT(
        CheckSlab(name, "bias", given.bias.size(), SizeOrZero(has_bias, has_bias ? 4u * shape->n_out : 0u)));
    RETURN_IF_FAULT(CheckSlab(name, "scale", given.scale.size(), SizeOrZero(has_scale, sizeof(float))));
  }
  for (std::size_t i = 0; i < kProjections; ++i) {
    Part& part = parts_[i];
    const ExpertSlabs::Slabs& given = slabs.projections[i];
    if (part.weight) part.weight->Write(slot, given.weight);
    if (part.bias) part.bias->Write(slot, given.bias);
    if (part.scale) part.scale->Write(slot, given.scale);
  }
  loaded_[slot] = true;
  return {};
}

Result<const GgmlStack::CheckedRecipe*> GgmlStack::Checked(const Recipe& recipe) {
  std::vector<std::uint8_t> key = EncodeRecipe(recipe);
  const auto known = std::ranges::find(checked_, key, &CheckedRecipe::key);
  if (known != checked_.end()) {
    checked_.splice(checked_.begin(), checked_, known);
    return &checked_.front();
  }
  ASSIGN_OR_RETURN(RecipePlan plan, PlanRecipe(recipe, shape_));
  // A device may take an operation for one arrangement and not for another, so both kinds are asked about.
  for (const Arrangement& arrangement : {Arrangement{.used = 2, .tokens = 1}, Arrangement{.used = 1, .tokens = 512}}) {
    RETURN_IF_FAULT(CheckOperations(BuildRecipeGraph(recipe, plan, tensors_, arrangement), device_));
  }
  checked_.push_front({std::move(key), std::move(plan)});
  if (checked_.size() > kMaxGraphs) checked_.pop_back();
  return &checked_.front();
}

Result<ExpertStack::Lengths> GgmlStack::Check(const Recipe& recipe) try {
  ASSIGN_OR_RETURN(const CheckedRecipe* checked, Checked(recipe));
  return Lengths{.n_in = checked->plan.n_in(), .n_out = checked->plan.n_out()};
} catch (const std::exception& error) {
  return Fail(FaultCode::kLocal, "checking a recipe: {}", error.what());
}

Result<RecipeGraph*> GgmlStack::GraphFor(const CheckedRecipe& checked, const Recipe& recipe,
                                         const Arrangement& arrangement) {
  // When the shared compute buffer has moved, every graph that was placed in it is stale.
  graphs_.remove_if([&](const CachedGraph& cached) { return cached.generation != device_.compute_generation(); });
  const auto known = std::ranges::find_if(graphs_, [&](const CachedGraph& cached) {
    return cached.arrangement == arrangement && cached.key == checked.key;
  });
  if (known != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, known);
    return &graphs_.front().graph;
  }
  CachedGraph made{.key = checked.key,
                   .arrangement = arrangement,
                   .graph = BuildRecipeGraph(recipe, checked.plan, tensors_, arrangement)};
  RETURN_IF_FAULT(device_.Allocate(made.graph.graph));
  made.generation = device_.compute_generation();
  graphs_.push_front(std::move(made));
  if (graphs_.size() > kMaxGraphs) graphs_.pop_back();
  return &graphs_.front().graph;
}

void GgmlStack::SetInputs(const RecipeGraph& graph, std::span<const float> x, const Arrangement& arrangement,
                          std::span<const SlotPair> pairs) {
  ids_.resize(pairs.size());
  std::ranges::transform(pairs, ids_.begin(),
                         [](const SlotPair& pair) { return static_cast<std::int32_t>(pair.slot); });
  ggml_backend_tensor_set(graph.ids, ids_.data(), 0, ids_.size() * sizeof(std::int32_t));

  const auto length = static_cast<std::size_t>(graph.x->ne[0]);
  if (arrangement.shared_rows) {
    ggml_backend_tensor_set(graph.x, x.data() + pairs.front().row * length, 0, ggml_nbytes(graph.x));
    return;
  }
  const bool writable = ggml_backend_buffer_is_host(graph.x->buffer);
  if (!writable) rows_.resize(pairs.size() * length);
  float* out = writable ? static_cast<float*>(graph.x->data) : rows_.data();
  for (const SlotPair& pair : pairs) {
    std::memcpy(out, x.data() + pair.row * length, length * sizeof(float));
    out += length;
  }
  if (!writable) ggml_backend_tensor_set(graph.x, rows_.data(), 0, rows_.size() * sizeof(float));
}

Result<void> GgmlStack::RunPart(const CheckedRecipe& checked, const Recipe& recipe, std::span<const float> x,
                                const Arrangement& arrangement, std::span<const SlotPair> pairs, std::span<float> y) {
  ASSIGN_OR_RETURN(RecipeGraph * graph, GraphFor(checked, recipe, arrangement));
  SetInputs(*graph, x, arrangement, pairs);
  RETURN_IF_FAULT(device_.Compute(graph->graph));
  ggml_backend_tensor_get(graph->y, y.data(), 0, y.size() * sizeof(float));
  return {};
}

Result<void> GgmlStack::RunInParts(const CheckedRecipe& checked, const Recipe& recipe, std::span<const float> x,
                                   std::span<const SlotPair> pairs, std::size_t most, std::span<float> y) {
  const std::size_t n_out = checked.plan.n_out();
  std::vector<SlotPair> part;
  std::vector<float> rows;
  for (const std::vector<std::size_t>& members : PartsOf(pairs, most)) {
    part.clear();
    for (const std::size_t i : members) part.push_back(pairs[i]);
    rows.resize(members.size() * n_out);
    const Arrangement arrangement = Arrange(part, checked.plan.input_only_projected, arrange_scratch_);
    RETURN_IF_FAULT(RunPart(checked, recipe, x, arrangement, part, rows));
    for (std::size_t i = 0; i < members.size(); ++i) {
      std::memcpy(y.data() + members[i] * n_out, rows.data() + i * n_out, n_out * sizeof(float));
    }
  }
  return {};
}

Result<void> GgmlStack::Run(const Recipe& recipe, std::span<const float> x, std::uint32_t n_rows,
                            std::span<const SlotPair> pairs, std::span<float> y) try {
  ASSIGN_OR_RETURN(const CheckedRecipe* checked, Checked(recipe));
  const std::size_t n_in = checked->plan.n_in();
  const std::size_t n_out = checked->plan.n_out();
  if (x.size() != n_rows * n_in || y.size() != pairs.size() * n_out) {
    return Fail(FaultCode::kRefused, "{} rows of {} and {} pairs of {} do not fit buffers of {} and {} numbers", n_rows,
                n_in, pairs.size(), n_out, x.size(), y.size());
  }
  for (const SlotPair& pair : pairs) {
    if (pair.row >= n_rows) return Fail(FaultCode::kRefused, "a pair of row {}; there are {}", pair.row, n_rows);
    if (pair.slot >= n_slots_ || !loaded_[pair.slot])
      return Fail(FaultCode::kRefused, "slot {} holds no expert", pair.slot);
  }
  if (pairs.empty()) return {};
  for (Part& part : parts_) {
    if (part.weight) part.weight->Flush();
  }

  // ggml's CPU backend also keeps a table of [slots x pairs] row numbers.
  const std::uint64_t bytes_per_pair = checked->plan.floats_per_pair() * sizeof(float) + n_slots_ * std::uint64_t{8};
  const std::size_t most = std::max<std::size_t>(2 * kManyRows, kMaxComputeBytes / bytes_per_pair);
  if (pairs.size() <= most) {
    return RunPart(*checked, recipe, x, Arrange(pairs, checked->plan.input_only_projected, arrange_scratch_), pairs, y);
  }
  return RunInParts(*checked, recipe, x, pairs, most, y);
} catch (const std::exception& error) {
  return Fail(FaultCode::kLocal, "running a dispatch of {} pairs: {}", pairs.size(), error.what());
}

}  // namespace

std::uint64_t ExpertShape::bytes() const {
  std::uint64_t total = 0;
  for (const std::optional<ProjectionShape>& projection : projections) {
    if (!projection || !CheckWeightShape(*projection)) continue;
    total += ggml_row_size(static_cast<ggml_type>(projection->type), projection->n_in) * projection->n_out;
    if (projection->has_bias) total += sizeof(float) * projection->n_out;
    if (projection->has_scale) total += sizeof(float);
  }
  return total;
}

Result<std::unique_ptr<ExpertStack>> ExpertStack::Create(const ExpertShape& shape, std::uint32_t n_slots,
                                                         Device& device) try {
  auto* ggml_device = dynamic_cast<GgmlDevice*>(&device);
  if (ggml_device == nullptr) return Fail(FaultCode::kRefused, "device {} does not run experts", device.info().name);
  if (n_slots == 0 || n_slots > kMaxSlots) {
    return Fail(FaultCode::kRefused, "a stack of {} slots; 1 to {} are possible", n_slots, kMaxSlots);
  }
  if (std::ranges::none_of(shape.projections, [](const auto& projection) { return projection.has_value(); })) {
    return Fail(FaultCode::kRefused, "an expert without weights");
  }
  auto stack = std::make_unique<GgmlStack>(shape, n_slots, *ggml_device);
  RETURN_IF_FAULT(stack->Allocate());
  return stack;
} catch (const std::exception& error) {
  return Fail(FaultCode::kLocal, "making a stack of {} slots: {}", n_slots, error.what());
}

}  // namespace linkcpp
