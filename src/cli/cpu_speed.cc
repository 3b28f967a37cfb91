#include "cli/cpu_speed.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <tuple>

#include "base/log.h"
#include "cli/loopback_speed.h"
#include "kernel/device.h"
#include "kernel/shape.h"
#include "planner/step_costs.h"
#include "worker/byte_size.h"

namespace linkcpp {
namespace {

constexpr double kSeconds = 0.5;
constexpr std::uint64_t kMostBytes =
    512ull << 20;  // a server processor's last cache holds 300 MB, and keeps a part of what is a bit more
constexpr std::size_t kLongMessage = 8u << 20, kCaches = 8u << 20;  // more than one core's own caches hold
// How long a thread sleeps before it is woken: as long as others read a layer's weights, about.
constexpr double kLongestPause = 2e-3, kPauseBytesASecond = 10e9;
constexpr std::uint64_t kCovered = 92;  // percent of a token's bytes whose kinds are measured

// Two-dimensional weights that every token is multiplied with, and the experts; alike ones together.
std::vector<MatrixKind> KindsOf(const ModelFile& model, const ModelSizes& sizes) {
  using Key = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t, bool>;
  std::map<Key, MatrixKind> kinds;
  std::uint32_t n_used = 1;
  for (const LayerSizes& layer : sizes.layers) n_used = std::max(n_used, layer.n_used);
  for (const TensorInfo& tensor : model.tensors()) {
    const bool experts = tensor.ne[2] > 1;
    const bool looked_up = tensor.name == "token_embd.weight" && !sizes.tied_embeddings;
    if (tensor.ne[1] < 2 || tensor.ne[3] > 1 || looked_up || (experts && !ParseExpertTensorName(tensor.name))) continue;
    const bool row_each = experts && tensor.name.find("down") != std::string::npos;
    MatrixKind& kind = kinds[{tensor.type, tensor.ne[0], tensor.ne[1], experts ? tensor.ne[2] : 0, row_each}];
    kind.row_each = row_each;
    kind.type = tensor.type;
    kind.n_in = static_cast<std::uint32_t>(tensor.ne[0]);
    kind.n_out = static_cast<std::uint32_t>(tensor.ne[1]);
    kind.n_experts = experts ? static_cast<std::uint32_t>(tensor.ne[2]) : 0;
    kind.n_used = experts ? n_used : 0;
    kind.token_bytes +=
        experts ? tensor.size_bytes / tensor.ne[2] * std::min<std::uint64_t>(n_used, tensor.ne[2]) : tensor.size_bytes;
  }
  std::vector<MatrixKind> list;
  for (const auto& [key, kind] : kinds) list.push_back(kind);
  // Before a matrix is read again, all of a token's bytes are; before an expert is, on average, all experts are.
  std::uint64_t token_bytes = 0;
  for (const MatrixKind& kind : list) token_bytes += kind.token_bytes;
  for (MatrixKind& kind : list) kind.stored_bytes = kind.n_experts > 0 ? sizes.ExpertBytes() : token_bytes;
  std::ranges::stable_sort(list, std::greater(), &MatrixKind::token_bytes);
  std::uint64_t seen = 0;
  std::size_t n = 0;
  for (bool dense = false, chosen = false;
       n < list.size() && (seen < token_bytes * kCovered / 100 || !dense || !chosen); ++n) {
    seen += list[n].token_bytes;
    (list[n].n_experts > 0 ? chosen : dense) = true;
  }
  list.resize(n);
  return list;
}

LayerShape LayerShapeOf(const ModelFile& model, const ModelSizes& sizes) {
  LayerShape shape{.n_embd = sizes.n_embd,
                   .n_head = std::max(sizes.n_head, 1u),
                   .n_head_kv = std::max(sizes.n_head_kv, 1u),
                   .head_length = std::max(sizes.head_length, 2u),
                   .qk_norms = sizes.qk_norms};
  for (const LayerSizes& layer : sizes.layers) {
    shape.n_experts = std::max(shape.n_experts, layer.n_experts);
    shape.n_used = std::max(shape.n_used, layer.n_used);
    shape.n_ff = std::max(shape.n_ff, layer.n_ff_exp);
  }
  const auto key = [&](const char* name) {
    return static_cast<std::uint32_t>(model.Number(sizes.architecture + ".ssm." + name).value_or(0));
  };
  // A gated delta net: its convolution runs over keys twice and values, heads of keys divide those of values.
  const std::uint32_t length = key("state_size"), keys = key("group_count"), values = key("time_step_rank");
  const bool is_delta = length > 0 && keys > 0 && values % keys == 0 && key("inner_size") == length * values;
  for (const TensorInfo& tensor : model.tensors()) {
    if (!is_delta || !tensor.name.ends_with("ssm_conv1d.weight") || tensor.ne[1] != (2 * keys + values) * length)
      continue;
    shape.delta_length = length;
    shape.delta_key_heads = keys;
    shape.delta_value_heads = values;
    shape.delta_taps = static_cast<std::uint32_t>(tensor.ne[0]);
    break;
  }
  return shape;
}

// Reads 128 MiB with every core, for a quarter of a second and at least three times, and takes the best: GB/s.
double MeasureReading() {
  constexpr std::size_t kWords = (128ull << 20) / sizeof(std::uint64_t);
  const std::vector<std::uint64_t> words(kWords, 1);
  const std::size_t n_threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 64);
  double best = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
  for (int pass = 0; pass < 3 || std::chrono::steady_clock::now() < deadline; ++pass) {
    std::vector<std::uint64_t> sums(n_threads);
    const auto start = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (std::size_t t = 0; t < n_threads; ++t) {
        threads.emplace_back([&, t] {
          std::uint64_t sum = 0;
          for (std::size_t i = kWords * t / n_threads; i < kWords * (t + 1) / n_threads; ++i) sum += words[i];
          sums[t] = sum;
        });
      }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::uint64_t sum = 0;
    for (const std::uint64_t part : sums) sum += part;
    if (sum == kWords) best = std::max(best, static_cast<double>(kWords * sizeof(std::uint64_t)) / 1e9 / seconds);
  }
  return best;
}

Result<std::unique_ptr<Device>> Cpu(std::uint32_t n_threads) {
  static NullLog log;
  return Device::Open({.name = "cpu", .n_threads = static_cast<int>(n_threads), .backend_path = ""}, log);
}

// Slices times pairs a second; 0: the experts fit no recipe.
Result<double> WorkerBatchGbs(const SpeedQuestion& question, Device& cpu) {
  const auto a_pair = CalibrateWorkerBatch(question.expert, question.n_experts, question.n_used, question.expert_bytes,
                                           cpu, kSeconds / 2, question.n_batch);
  if (!a_pair) return a_pair.error().code == FaultCode::kRefused ? Result<double>(0) : std::unexpected(a_pair.error());
  return static_cast<double>(question.expert.bytes()) / *a_pair / 1e9;
}

// The same of one token's pairs; without a recipe the kernel's products alone.
Result<double> WorkerTokenGbs(const SpeedQuestion& question, Device& cpu, std::uint64_t most_bytes,
                              double pause_seconds) {
  const auto a_pair = CalibrateWorkerToken(question.expert, question.n_experts, question.n_used, most_bytes, cpu,
                                           kSeconds / 2, pause_seconds);
  if (a_pair) return static_cast<double>(question.expert.bytes()) / *a_pair / 1e9;
  if (a_pair.error().code != FaultCode::kRefused) return std::unexpected(a_pair.error());
  return CalibrateExperts(question.kinds, cpu, kSeconds / 4, most_bytes);
}

}  // namespace

Result<SpeedQuestion> AskSpeed(const ModelFile& model, const ModelSizes& sizes, std::uint32_t n_batch,
                               const std::vector<Node>& nodes) {
  SpeedQuestion question{.kinds = KindsOf(model, sizes),
                         .layer = LayerShapeOf(model, sizes),
                         .n_batch = n_batch,
                         .threads = {},
                         .expert = {},
                         .expert_bytes = sizes.ExpertBytes()};
  for (const LayerSizes& layer : sizes.layers) {
    question.n_experts = std::max(question.n_experts, layer.n_experts);
    question.n_used = std::max(question.n_used, layer.n_used);
    question.layer_bytes =
        std::max(question.layer_bytes, layer.backbone_bytes + layer.slice_bytes * std::uint64_t{layer.n_used});
  }
  for (const Node& node : nodes) {
    if (node.here && !std::ranges::contains(question.threads, node.threads)) question.threads.push_back(node.threads);
  }
  if (question.threads.empty()) return question;
  std::map<ExpertShape, std::uint32_t> shapes;
  for (const MoeLayer& layer : model.moe_layers()) {
    ASSIGN_OR_RETURN(const ExpertShape shape, ShapeOf(layer));
    ++shapes[shape];
  }
  const auto common = std::ranges::max_element(shapes, {}, [](const auto& entry) { return entry.second; });
  if (common != shapes.end()) question.expert = common->first;
  return question;
}

Result<CpuSpeed> MeasureSpeed(const SpeedQuestion& question) {
  const std::uint64_t most_bytes = std::min(kMostBytes, AvailableMemory() / 4);
  CpuSpeed speed{.ram_gbs = MeasureReading(), .token = {}, .batch = {}, .workers = {}};
  const bool has_workers = !question.threads.empty() && question.n_batch > 0;
  {
    ASSIGN_OR_RETURN(const auto cpu, Cpu(0));
    ASSIGN_OR_RETURN(speed.token, Calibrate(question.kinds, question.layer, *cpu, kSeconds, most_bytes));
    if (question.n_batch > 0) {
      ASSIGN_OR_RETURN(speed.batch,
                       CalibrateBatch(question.kinds, question.layer, *cpu, 2 * kSeconds, question.n_batch));
    }
    if (has_workers) {
      ASSIGN_OR_RETURN(speed.worker_gbs, WorkerBatchGbs(question, *cpu));
    }
  }
  const double pause_seconds = std::min(kLongestPause, static_cast<double>(question.layer_bytes) / kPauseBytesASecond);
  speed.wake_seconds = MeasureWake(pause_seconds);
  speed.loopback_gbs = MeasureLoopback(kLongMessage, 0, speed.wake_seconds);
  speed.loopback_row_gbs = MeasureLoopback(std::size_t{4} * question.layer.n_embd * question.n_used,
                                           std::min<std::size_t>(question.layer_bytes, kCaches), speed.wake_seconds);
  for (const std::uint32_t threads : question.threads) {
    CpuSpeed::Worker worker{.threads = threads, .read_gbs = speed.token.expert_gbs, .batch_gbs = speed.worker_gbs};
    const bool all_cores = threads == 0 || threads == std::thread::hardware_concurrency();
    ASSIGN_OR_RETURN(const auto cpu, Cpu(threads));
    ASSIGN_OR_RETURN(worker.read_gbs, WorkerTokenGbs(question, *cpu, most_bytes, pause_seconds));
    if (!all_cores && has_workers) {
      ASSIGN_OR_RETURN(worker.batch_gbs, WorkerBatchGbs(question, *cpu));
    }
    speed.workers.push_back(worker);
  }
  return speed;
}

void UseSpeed(const SpeedQuestion& question, const CpuSpeed& speed, Machine& machine) {
  machine.ram_gbs = speed.ram_gbs;
  machine.dense_gbs = speed.token.dense_gbs;
  machine.expert_gbs = speed.token.expert_gbs;
  machine.attention_gbs = speed.token.attention_gbs;
  machine.attention_seconds = speed.token.attention_seconds;
  machine.router_seconds = speed.token.router_seconds;
  machine.delta_net_seconds = speed.token.delta_net_seconds;
  machine.step_seconds = speed.token.step_seconds;
  machine.graph_seconds = speed.token.graph_seconds;
  machine.wake_seconds = speed.wake_seconds;
  machine.loopback_gbs = speed.loopback_gbs;
  machine.loopback_row_gbs = speed.loopback_row_gbs;
  machine.token_seconds = kTokenSeconds;
  timespec slice{};
  if (::sched_rr_get_interval(0, &slice) == 0)
    machine.slice_seconds = static_cast<double>(slice.tv_sec) + 1e-9 * static_cast<double>(slice.tv_nsec);
  if (question.n_batch > 0) {
    machine.batch = {.n_rows = question.n_batch,
                     .dense_gbs = speed.batch.dense_gbs,
                     .expert_gbs = speed.batch.expert_gbs,
                     .worker_gbs = speed.worker_gbs,
                     .attention_seconds = speed.batch.attention_seconds,
                     .router_seconds = speed.batch.router_seconds,
                     .step_seconds = speed.batch.step_seconds,
                     .delta_net_seconds = speed.batch.delta_net_seconds};
  }
  for (Node& node : machine.nodes) {
    const auto worker = std::ranges::find(speed.workers, node.threads, &CpuSpeed::Worker::threads);
    if (!node.here || worker == speed.workers.end()) continue;
    if (node.read_gbs == 0) node.read_gbs = worker->read_gbs;
    node.batch_gbs = worker->batch_gbs;
  }
}

}  // namespace linkcpp
