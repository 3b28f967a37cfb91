// What does a dispatch cost, against the memory it has to read and against the same graph in bare ggml?
//
//   kernel_bench [--slots N] [--threads N] [--device NAME] [--smoke]
//
// Experts of the 122B's shape (3072 x 1024, Q4_K/Q4_K/Q6_K, 6.1 MB each). Decode: one row, 8 experts picked anew each
// time among all slots, so weights come from memory as long as the slots together are larger than the caches.
//
// Measured on 2 cores of a shared Xeon (Sapphire Rapids), 2 threads, --slots 128, other work of about one core beside
// it; one decode dispatch of 49 MB, median, bare ggml in brackets:
//   GOMP_SPINCOUNT      0     8.6 ms  (9.0)      sleeping costs a wake-up for every node
//                    1000     4.5 ms  (4.7)      10.9 GB/s, 85 % of what plain reading reached in that run
//                   10000     4.3 ms  (4.3)      11.3 GB/s
//                  100000     5.1 ms  (5.3)      one in ten takes 30 ms
//                   unset     did not finish in 100 s, where the others took 12 to 25 s in all
// Overhead of a dispatch of three tiny nodes 8 to 12 us, 6 to 9 us more when its graph has to be built. Sharing rows
// between pairs made no difference beyond noise in a prefill of 512 pairs (163 to 186 ms against 178 to 188 ms).
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <print>
#include <string_view>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "kernel/device.h"
#include "kernel/expert_stack.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kEmbd = 3072;
constexpr std::uint32_t kFf = 1024;
constexpr std::uint32_t kUsed = 8;

using BenchClock = std::chrono::steady_clock;
double Microseconds(BenchClock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

struct Timing {
  double median = 0;
  double p90 = 0;
};

template <class Function>
Timing Measure(int repeats, Function&& function) {
  std::vector<double> times;
  for (int i = 0; i < repeats + 2; ++i) {
    const auto begin = BenchClock::now();
    function();
    if (i >= 2) times.push_back(Microseconds(BenchClock::now() - begin));
  }
  std::ranges::sort(times);
  return {times[times.size() / 2], times[times.size() * 9 / 10]};
}

std::vector<std::byte> Weights(ggml_type type, std::uint32_t n_in, std::uint32_t n_out, Rng& rng) {
  std::vector<float> values(std::size_t{n_in} * n_out);
  for (float& value : values) value = static_cast<float>((rng.Uniform() - 0.5) / std::sqrt(n_in));
  std::vector<std::byte> bytes(ggml_row_size(type, n_in) * n_out);
  ggml_quantize_chunk(type, values.data(), bytes.data(), 0, n_out, n_in, nullptr);
  return bytes;
}

std::vector<SlotPair> RandomPairs(std::uint32_t n_rows, std::uint32_t n_slots, Rng& rng) {
  std::vector<std::uint32_t> deck(n_slots);
  std::iota(deck.begin(), deck.end(), 0u);
  std::vector<SlotPair> pairs;
  for (std::uint32_t row = 0; row < n_rows; ++row) {
    for (std::uint32_t i = 0; i < std::min(kUsed, n_slots); ++i) {
      std::swap(deck[i], deck[i + rng.Below(n_slots - i)]);
      pairs.push_back({row, deck[i]});
    }
  }
  return pairs;
}

// GB/s at which `n_threads` read memory, 8 bytes a time summed.
double ReadBandwidth(int n_threads, std::size_t bytes) {
  std::vector<std::uint64_t> memory(bytes / 8, 1);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(n_threads) * 16);
  const Timing timing = Measure(5, [&] {
    std::vector<std::jthread> threads;
    for (int t = 0; t < n_threads; ++t) {
      threads.emplace_back([&, t] {
        const std::size_t begin = memory.size() * static_cast<std::size_t>(t) / static_cast<std::size_t>(n_threads);
        const std::size_t end = memory.size() * static_cast<std::size_t>(t + 1) / static_cast<std::size_t>(n_threads);
        sums[static_cast<std::size_t>(t) * 16] =
            std::accumulate(memory.begin() + static_cast<std::ptrdiff_t>(begin),
                            memory.begin() + static_cast<std::ptrdiff_t>(end), std::uint64_t{0});
      });
    }
  });
  if (sums[0] == 0) std::println("(nothing was read)");
  return static_cast<double>(memory.size() * 8) / timing.median / 1e3;
}

// The same layer in ggml alone: full tensors in the host's buffer type, one graph built once and computed again and
// again.
class BareGraph {
 public:
  BareGraph(ggml_backend_dev_t device, int n_threads, std::uint32_t n_slots, std::uint32_t n_rows,
            const std::vector<std::byte>& gate, const std::vector<std::byte>& down) {
    backend_ = ggml_backend_dev_init(device, nullptr);
    ggml_backend_reg_t registration = ggml_backend_dev_backend_reg(device);
    if (auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(registration, "ggml_backend_set_n_threads"))) {
      set(backend_, n_threads);
    }
    context_ = ggml_init(
        {.mem_size = 64 * ggml_tensor_overhead() + ggml_graph_overhead(), .mem_buffer = nullptr, .no_alloc = true});
    ggml_tensor* gates = Stack(device, GGML_TYPE_Q4_K, kEmbd, kFf, n_slots, gate);
    ggml_tensor* ups = Stack(device, GGML_TYPE_Q4_K, kEmbd, kFf, n_slots, gate);
    ggml_tensor* downs = Stack(device, GGML_TYPE_Q6_K, kFf, kEmbd, n_slots, down);
    x_ = ggml_new_tensor_3d(context_, GGML_TYPE_F32, kEmbd, 1, n_rows);
    ids_ = ggml_new_tensor_2d(context_, GGML_TYPE_I32, std::min(kUsed, n_slots), n_rows);
    ggml_set_input(x_);
    ggml_set_input(ids_);
    ggml_tensor* up = ggml_mul_mat_id(context_, ups, x_, ids_);
    ggml_tensor* activated = ggml_swiglu_split(context_, ggml_mul_mat_id(context_, gates, x_, ids_), up);
    y_ = ggml_mul_mat_id(context_, downs, activated, ids_);
    ggml_set_output(y_);
    graph_ = ggml_new_graph(context_);
    ggml_build_forward_expand(graph_, y_);
    allocator_ = ggml_gallocr_new(ggml_backend_dev_buffer_type(device));
    ggml_gallocr_alloc_graph(allocator_, graph_);
  }
  BareGraph(const BareGraph&) = delete;
  BareGraph& operator=(const BareGraph&) = delete;
  ~BareGraph() {
    ggml_gallocr_free(allocator_);
    for (ggml_backend_buffer_t buffer : buffers_) ggml_backend_buffer_free(buffer);
    ggml_free(context_);
    ggml_backend_free(backend_);
  }

  void Run(const std::vector<float>& x, const std::vector<SlotPair>& pairs, std::vector<float>& y) {
    std::vector<std::int32_t> ids;
    for (const SlotPair& pair : pairs) ids.push_back(static_cast<std::int32_t>(pair.slot));
    ggml_backend_tensor_set(x_, x.data(), 0, ggml_nbytes(x_));
    ggml_backend_tensor_set(ids_, ids.data(), 0, ggml_nbytes(ids_));
    ggml_backend_graph_compute(backend_, graph_);
    ggml_backend_tensor_get(y_, y.data(), 0, ggml_nbytes(y_));
  }

 private:
  // Two-dimensional aliases fill the slots, as repacked buffers take whole tensors only.
  ggml_tensor* Stack(ggml_backend_dev_t device, ggml_type type, std::int64_t n_in, std::int64_t n_out,
                     std::uint32_t n_slots, const std::vector<std::byte>& slab) {
    ggml_tensor* stack = ggml_new_tensor_3d(context_, type, n_in, n_out, std::max(n_slots, 2u));
    ggml_tensor* rows = ggml_new_tensor_3d(context_, GGML_TYPE_F32, n_in, 1, 512);
    ggml_tensor* product = ggml_mul_mat_id(context_, stack, rows, ggml_new_tensor_2d(context_, GGML_TYPE_I32, 1, 512));
    ggml_backend_buffer_type_t chosen = ggml_backend_dev_buffer_type(device);
    auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
    for (ggml_backend_buffer_type_t* type_ = extra == nullptr ? nullptr : extra(device);
         type_ != nullptr && *type_ != nullptr; ++type_) {
      stack->buffer = ggml_backend_buft_alloc_buffer(*type_, 0);
      if (ggml_backend_dev_supports_op(device, product)) chosen = *type_;
      ggml_backend_buffer_free(stack->buffer);
      stack->buffer = nullptr;
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(chosen, ggml_nbytes(stack));
    buffers_.push_back(buffer);
    ggml_backend_tensor_alloc(buffer, stack, ggml_backend_buffer_get_base(buffer));
    ggml_context* aliases =
        ggml_init({.mem_size = n_slots * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true});
    for (std::uint32_t slot = 0; slot < n_slots; ++slot) {
      ggml_tensor* alias = ggml_new_tensor_2d(aliases, type, n_in, n_out);
      ggml_backend_tensor_alloc(buffer, alias, static_cast<std::byte*>(stack->data) + slot * stack->nb[2]);
      ggml_backend_tensor_set(alias, slab.data(), 0, slab.size());
    }
    ggml_free(aliases);
    return stack;
  }

  ggml_backend_t backend_ = nullptr;
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_gallocr_t allocator_ = nullptr;
  ggml_tensor* x_ = nullptr;
  ggml_tensor* ids_ = nullptr;
  ggml_tensor* y_ = nullptr;
  std::vector<ggml_backend_buffer_t> buffers_;
};

struct Options {
  std::uint32_t n_slots = 256;
  int n_threads = 0;
  std::string device = "cpu";
  bool smoke = false;
};

int Complain(const Fault& fault) {
  std::println(stderr, "kernel_bench: {}", fault.text);
  return 1;
}

std::uint32_t Distinct(const std::vector<SlotPair>& pairs, std::uint32_t n_slots) {
  std::vector<bool> seen(n_slots);
  for (const SlotPair& pair : pairs) seen[pair.slot] = true;
  return static_cast<std::uint32_t>(std::ranges::count(seen, true));
}

// What a dispatch costs besides arithmetic and memory: a tiny expert, a graph met before and one not met before.
int Overhead(Device& device) {
  ExpertShape shape;
  shape.projections[1] = ProjectionShape{.type = GGML_TYPE_F32, .n_in = 32, .n_out = 32};
  auto stack = ExpertStack::Create(shape, kUsed, device);
  if (!stack) return Complain(stack.error());
  Rng rng(1);
  const std::vector<std::byte> weight = Weights(GGML_TYPE_F32, 32, 32, rng);
  ExpertSlabs slabs;
  slabs.projections[1].weight = weight;
  for (std::uint32_t slot = 0; slot < kUsed; ++slot) (void)(*stack)->Load(slot, slabs);
  const std::vector<float> x(32, 1.0f);
  std::vector<float> y(32 * kUsed);
  const std::vector<SlotPair> pairs = RandomPairs(1, kUsed, rng);
  const auto recipe = [](float most) {
    return Recipe{{{.op = StepOp::kProject, .projection = Projection::kUp},
                   {.op = StepOp::kClamp, .a = 1, .p0 = 0, .p1 = most},
                   {.op = StepOp::kSquare, .a = 2}}};
  };
  const Recipe known = recipe(1);
  const Timing again = Measure(2000, [&] { (void)(*stack)->Run(known, x, 1, pairs, y); });
  float most = 2;
  const Timing anew = Measure(500, [&] { (void)(*stack)->Run(recipe(most += 1), x, 1, pairs, y); });
  std::println("overhead, 3 tiny nodes   graph met before {:.1f} us, new recipe and graph {:.1f} us", again.median,
               anew.median);
  return 0;
}

int Bench(const Options& options) {
  NullLog log;
  auto device = Device::Open({.name = options.device, .n_threads = options.n_threads, .backend_path = ""}, log);
  if (!device) return Complain(device.error());
  const char* spin = std::getenv("GOMP_SPINCOUNT");
  const int n_threads = (*device)->n_threads();
  std::println("{} ({}), {} threads, GOMP_SPINCOUNT {}, {} slots", (*device)->kernel_class(),
               (*device)->info().description, n_threads, spin == nullptr ? "unset" : spin, options.n_slots);

  Rng rng(1);
  const std::vector<std::byte> gate = Weights(GGML_TYPE_Q4_K, kEmbd, kFf, rng);
  const std::vector<std::byte> down = Weights(GGML_TYPE_Q6_K, kFf, kEmbd, rng);
  const double expert_bytes = static_cast<double>(2 * gate.size() + down.size());
  const double bandwidth = ReadBandwidth(n_threads, std::size_t{options.smoke ? 64u : 1024u} << 20);
  std::println("memory, read by {} threads    {:.1f} GB/s", n_threads, bandwidth);
  if (const int status = Overhead(**device); status != 0) return status;

  ggml_backend_dev_t bare_device = ggml_backend_dev_by_name((*device)->info().name.c_str());
  for (const std::uint32_t n_rows : {1u, 4u, 64u}) {
    const int repeats = options.smoke ? 3 : n_rows == 1 ? 100 : 10;
    std::vector<float> x(std::size_t{n_rows} * kEmbd);
    for (float& value : x) value = static_cast<float>(rng.Uniform() - 0.5);
    std::vector<std::vector<SlotPair>> dispatches;
    for (int i = 0; i < 64; ++i) dispatches.push_back(RandomPairs(n_rows, options.n_slots, rng));
    const std::size_t n_pairs = dispatches.front().size();
    std::vector<float> y(n_pairs * kEmbd);
    std::vector<float> bare_y(n_pairs * kEmbd);
    double read_bytes = 0;
    for (const auto& pairs : dispatches) read_bytes += Distinct(pairs, options.n_slots) * expert_bytes / 64;

    Timing ours;
    Timing shuffled;
    {
      ExpertShape shape;
      shape.projections[0] = ProjectionShape{.type = GGML_TYPE_Q4_K, .n_in = kEmbd, .n_out = kFf};
      shape.projections[1] = shape.projections[0];
      shape.projections[2] = ProjectionShape{.type = GGML_TYPE_Q6_K, .n_in = kFf, .n_out = kEmbd};
      auto stack = ExpertStack::Create(shape, options.n_slots, **device);
      if (!stack) return Complain(stack.error());
      ExpertSlabs slabs;
      slabs.projections[0].weight = gate;
      slabs.projections[1].weight = gate;
      slabs.projections[2].weight = down;
      const auto begin = BenchClock::now();
      for (std::uint32_t slot = 0; slot < options.n_slots; ++slot) {
        if (const auto loaded = (*stack)->Load(slot, slabs); !loaded) return Complain(loaded.error());
      }
      if (n_rows == 1) {
        const double each = Microseconds(BenchClock::now() - begin) / options.n_slots;
        std::println("load (repacks Q4_K)           {:.0f} us an expert, {:.2f} GB/s", each, expert_bytes / each / 1e3);
      }
      const Recipe recipe = Recipe::Swiglu();
      std::size_t turn = 0;
      ours = Measure(repeats, [&] { (void)(*stack)->Run(recipe, x, n_rows, dispatches[turn++ % 64], y); });
      // The same pairs in an order that no row can be shared in, as a worker with a part of the experts sees it.
      for (auto& pairs : dispatches) std::ranges::reverse(pairs);
      if (n_rows > 1)
        shuffled = Measure(repeats, [&] { (void)(*stack)->Run(recipe, x, n_rows, dispatches[turn++ % 64], y); });
      for (auto& pairs : dispatches) std::ranges::reverse(pairs);
      (void)(*stack)->Run(recipe, x, n_rows, dispatches[0], y);
    }
    BareGraph bare(bare_device, n_threads, options.n_slots, n_rows, gate, down);
    std::size_t turn = 0;
    const Timing theirs = Measure(repeats, [&] { bare.Run(x, dispatches[turn++ % 64], bare_y); });
    bare.Run(x, dispatches[0], bare_y);
    std::println(
        "{:>3} rows, {:>3} pairs           {:.0f} us (p90 {:.0f}), {:.1f} GB/s = {:.0f} % of reading; bare ggml {:.0f} "
        "us "
        "(p90 {:.0f}); {}{}",
        n_rows, n_pairs, ours.median, ours.p90, read_bytes / ours.median / 1e3,
        100 * read_bytes / ours.median / 1e3 / bandwidth, theirs.median, theirs.p90,
        n_rows > 1 ? std::format("rows not shared {:.0f} us; ", shuffled.median) : "",
        y == bare_y ? "same bits" : "OTHER BITS");
    if (y != bare_y) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace linkcpp

int main(int argc, char** argv) {
  linkcpp::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--smoke") {
      options.smoke = true;
      options.n_slots = 8;
    } else if (word == "--slots" && has_value) {
      options.n_slots = static_cast<std::uint32_t>(std::max(2, std::atoi(argv[++i])));
    } else if (word == "--threads" && has_value) {
      options.n_threads = std::atoi(argv[++i]);
    } else if (word == "--device" && has_value) {
      options.device = argv[++i];
    } else {
      std::println(stderr, "usage: kernel_bench [--slots N] [--threads N] [--device NAME] [--smoke]");
      return word == "--help" ? 0 : 2;
    }
  }
  return linkcpp::Bench(options);
}
