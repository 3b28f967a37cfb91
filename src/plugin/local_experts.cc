#include "plugin/local_experts.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "kernel/shape.h"

namespace linkcpp {
namespace {

std::uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  std::uint64_t kib = 0;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return kib << 10;
  }
  return std::uint64_t{4} << 30;
}

std::uint64_t Budget(std::uint64_t wanted) {
  return wanted != 0 ? wanted : std::min<std::uint64_t>(AvailableMemory() / 4, std::uint64_t{1} << 30);
}

}  // namespace

CpuExperts::CpuExperts(const ModelFile& model, std::uint64_t memory_bytes, int n_threads, LogSink& log)
    : model_(model), memory_bytes_(Budget(memory_bytes)), n_threads_(n_threads), log_(log) {}

Result<CpuExperts::Pool*> CpuExperts::PoolFor(const MoeLayer& layer) {
  if (device_ == nullptr) {
    ASSIGN_OR_RETURN(device_, Device::Open(DeviceOptions{.name = "cpu", .n_threads = n_threads_}, log_));
  }
  ASSIGN_OR_RETURN(const ExpertShape shape, ShapeOf(layer));
  Pool& pool = pools_[shape];
  if (pool.stack == nullptr) {
    std::uint64_t n_alike = 0;  // slices of this shape in the model
    std::uint64_t n_shapes = 0;
    std::map<ExpertShape, bool> shapes;
    for (const MoeLayer& other : model_.moe_layers()) {
      ASSIGN_OR_RETURN(const ExpertShape theirs, ShapeOf(other));
      if (theirs == shape) n_alike += other.n_experts;
      shapes[theirs] = true;
    }
    n_shapes = shapes.size();
    const std::uint64_t fits = memory_bytes_ / n_shapes / std::max<std::uint64_t>(1, shape.bytes());
    const std::uint64_t n_slots = std::clamp<std::uint64_t>(fits, 1, n_alike);
    ASSIGN_OR_RETURN(pool.stack, ExpertStack::Create(shape, static_cast<std::uint32_t>(n_slots), *device_));
    log_.Info("computing experts of layer {} here: room for {} slices of {} bytes", layer.layer.value, n_slots,
              shape.bytes());
  }
  return &pool;
}

Result<std::uint32_t> CpuExperts::SlotFor(Pool& pool, const MoeLayer& layer, ExpertId expert) {
  const SliceId slice{layer.layer, expert};
  if (const auto at = pool.held.find(slice); at != pool.held.end()) {
    pool.by_use.splice(pool.by_use.begin(), pool.by_use, at->second.use);
    return at->second.slot;
  }
  std::uint32_t slot = static_cast<std::uint32_t>(pool.held.size());
  if (slot == pool.stack->n_slots()) {
    const SliceId oldest = pool.by_use.back();
    slot = pool.held.at(oldest).slot;
    pool.held.erase(oldest);
    pool.by_use.pop_back();
  }
  ASSIGN_OR_RETURN(const std::vector<SlabRef> refs, model_.Slabs(slice));
  std::uint64_t total = 0;
  for (const SlabRef& ref : refs) total += ref.size_bytes;
  scratch_.resize(total);
  ExpertSlabs slabs;
  std::uint64_t at = 0;
  for (const SlabRef& ref : refs) {
    const std::span<std::byte> bytes(scratch_.data() + at, ref.size_bytes);
    RETURN_IF_FAULT(model_.ReadAt(ref.file, ref.offset, bytes));
    at += ref.size_bytes;
    ExpertSlabs::Slabs& into = slabs.projections[static_cast<std::size_t>(ref.projection)];
    switch (ref.kind) {
      case SlabKind::kWeight: into.weight = bytes; break;
      case SlabKind::kBias: into.bias = bytes; break;
      case SlabKind::kScale: into.scale = bytes; break;
      case SlabKind::kInputScale: break;
    }
  }
  RETURN_IF_FAULT(pool.stack->Load(slot, slabs));
  pool.by_use.push_front(slice);
  pool.held[slice] = Pool::Held{slot, pool.by_use.begin()};
  return slot;
}

Result<void> CpuExperts::Compute(LayerId layer_id, const Recipe& recipe, std::span<const float> x, std::uint32_t n_in,
                                 std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out) {
  const MoeLayer* layer = model_.FindMoeLayer(layer_id);
  if (layer == nullptr)
    return Fail(FaultCode::kRefused, "layer {} of {} has no experts", layer_id.value, model_.paths()[0]);
  ASSIGN_OR_RETURN(Pool* const pool, PoolFor(*layer));
  ASSIGN_OR_RETURN(const ExpertStack::Lengths lengths, pool->stack->Check(recipe));
  if (lengths.n_in != n_in || lengths.n_out != n_out) {
    return Fail(FaultCode::kRefused, "layer {}: the recipe takes rows of {} and gives {}, not {} and {}",
                layer_id.value, lengths.n_in, lengths.n_out, n_in, n_out);
  }

  // Sorted by expert, in chunks of as many distinct experts as there are slots, so that none is evicted before its
  // turn.
  std::vector<std::uint32_t> order(pairs.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return pairs[i].expert.value; });
  const auto n_rows = static_cast<std::uint32_t>(x.size() / n_in);
  std::size_t begin = 0;
  while (begin < order.size()) {
    std::vector<SlotPair> chunk;
    std::size_t end = begin;
    std::uint32_t n_distinct = 0;
    std::uint32_t slot = 0;
    for (; end < order.size(); ++end) {
      const Pair& pair = pairs[order[end]];
      if (end == begin || pairs[order[end - 1]].expert != pair.expert) {
        if (n_distinct == pool->stack->n_slots()) break;
        ++n_distinct;
        ASSIGN_OR_RETURN(slot, SlotFor(*pool, *layer, pair.expert));
      }
      chunk.push_back(SlotPair{pair.row, slot});
    }
    std::vector<float> rows(chunk.size() * n_out);
    RETURN_IF_FAULT(pool->stack->Run(recipe, x, n_rows, chunk, rows));
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(i * n_out), n_out,
                  y.begin() + static_cast<std::ptrdiff_t>(std::size_t{order[begin + i]} * n_out));
    }
    begin = end;
  }
  return {};
}

}  // namespace linkcpp
