#include "cli/plan_calibrate.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <format>
#include <map>
#include <thread>
#include <tuple>

#include "base/log.h"
#include "kernel/calibrate.h"
#include "kernel/device.h"
#include "kernel/shape.h"
#include "planner/step_costs.h"
#include "worker/byte_size.h"

namespace linkcpp {
namespace {

constexpr double kSeconds = 0.5;
constexpr std::uint64_t kMostBytes =
    512ull << 20;  // a server processor's last cache holds 300 MB, and keeps a part of what is a bit more
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

struct Pair {
  int near = -1, far = -1;
  ~Pair() {
    ::close(near);
    ::close(far);
  }
};

bool ConnectOnLoopback(Pair& pair) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  bool ok = ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
            ::listen(listener, 1) == 0 && ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  pair.near = ::socket(AF_INET, SOCK_STREAM, 0);
  ok = ok && ::connect(pair.near, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (ok) pair.far = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  const int on = 1;
  for (const int socket : {pair.near, pair.far}) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return ok && pair.far >= 0;
}

// Half the median round trip of a few bytes between two threads; 0 when there is no loopback.
double MeasureWake() {
  Pair pair;
  if (!ConnectOnLoopback(pair)) return 0;
  constexpr int kRounds = 2000;
  std::array<char, 64> bytes{};
  std::jthread echo([far = pair.far] {
    std::array<char, 64> back{};
    for (int i = 0; i < kRounds && ::recv(far, back.data(), back.size(), MSG_WAITALL) == std::ssize(back); ++i) {
      if (::send(far, back.data(), back.size(), MSG_NOSIGNAL) < 0) break;
    }
  });
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (::send(pair.near, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 ||
        ::recv(pair.near, bytes.data(), bytes.size(), MSG_WAITALL) != std::ssize(bytes)) {
      ::shutdown(pair.near, SHUT_RDWR);
      return 0;
    }
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(times, times.begin() + kRounds / 2);
  return times[kRounds / 2] / 2;
}

// Long messages one way between two threads, each copied once more at both ends, as a link does; the median of some, in
// GB/s; 0 when there is no loopback.
double MeasureLoopback() {
  Pair pair;
  if (!ConnectOnLoopback(pair)) return 0;
  constexpr int kRounds = 9;
  constexpr std::size_t kMessage = 8u << 20;
  std::jthread sink([far = pair.far] {
    std::vector<char> piece(256u << 10), message(kMessage);
    for (int i = 0; i < kRounds; ++i) {
      for (std::size_t at = 0; at < kMessage;) {
        const ssize_t n = ::recv(far, piece.data(), std::min(piece.size(), kMessage - at), 0);
        if (n <= 0) return;
        std::copy_n(piece.data(), n, message.data() + at);
        at += static_cast<std::size_t>(n);
      }
      if (::send(far, message.data(), 1, MSG_NOSIGNAL) != 1) return;
    }
  });
  const std::vector<char> rows(kMessage, 1);
  std::vector<char> message(kMessage);
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::ranges::copy(rows, message.begin());
    std::size_t at = 0;
    while (at < kMessage) {
      const ssize_t n = ::send(pair.near, message.data() + at, kMessage - at, MSG_NOSIGNAL);
      if (n <= 0) break;
      at += static_cast<std::size_t>(n);
    }
    char answer = 0;
    if (at < kMessage || ::recv(pair.near, &answer, 1, MSG_WAITALL) != 1) {
      ::shutdown(pair.near, SHUT_RDWR);
      return 0;
    }
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(times, times.begin() + kRounds / 2);
  return kMessage / times[kRounds / 2] / 1e9;
}

Result<std::unique_ptr<Device>> Cpu(std::uint32_t n_threads) {
  static NullLog log;
  return Device::Open({.name = "cpu", .n_threads = static_cast<int>(n_threads), .backend_path = ""}, log);
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

// A worker's speed with a prompt's batch, in bytes of slices times pairs: of the most common shape of experts.
Result<double> WorkerBatchGbs(const ModelFile& model, const ModelSizes& sizes, Device& cpu, std::uint32_t n_batch) {
  std::map<ExpertShape, std::uint32_t> shapes;
  for (const MoeLayer& layer : model.moe_layers()) {
    ASSIGN_OR_RETURN(const ExpertShape shape, ShapeOf(layer));
    ++shapes[shape];
  }
  const auto common = std::ranges::max_element(shapes, {}, [](const auto& entry) { return entry.second; });
  if (common == shapes.end()) return 0;
  std::uint32_t n_experts = 1, n_used = 1;
  for (const LayerSizes& layer : sizes.layers) {
    n_experts = std::max(n_experts, layer.n_experts);
    n_used = std::max(n_used, layer.n_used);
  }
  const auto a_pair =
      CalibrateWorkerBatch(common->first, n_experts, n_used, sizes.ExpertBytes(), cpu, kSeconds / 2, n_batch);
  if (!a_pair) return a_pair.error().code == FaultCode::kRefused ? Result<double>(0) : std::unexpected(a_pair.error());
  return static_cast<double>(common->first.bytes()) / *a_pair / 1e9;
}

}  // namespace

Result<void> CalibrateMachine(const ModelFile& model, const ModelSizes& sizes, std::uint32_t n_batch, Machine& machine,
                              std::vector<std::string>& assumptions) {
  const std::vector<MatrixKind> kinds = KindsOf(model, sizes);
  const std::uint64_t most_bytes = std::min(kMostBytes, AvailableMemory() / 4);
  const LayerShape shape = LayerShapeOf(model, sizes);
  {
    ASSIGN_OR_RETURN(const auto cpu, Cpu(0));
    ASSIGN_OR_RETURN(const Calibration all, Calibrate(kinds, shape, *cpu, kSeconds, most_bytes));
    machine.dense_gbs = all.dense_gbs;
    machine.expert_gbs = all.expert_gbs;
    machine.attention_gbs = all.attention_gbs;
    machine.attention_seconds = all.attention_seconds;
    machine.router_seconds = all.router_seconds;
    machine.step_seconds = all.step_seconds;
    machine.graph_seconds = all.graph_seconds;
    if (n_batch > 0) {
      ASSIGN_OR_RETURN(const BatchCalibration batch, CalibrateBatch(kinds, shape, *cpu, 2 * kSeconds, n_batch));
      machine.batch = {.n_rows = n_batch,
                       .dense_gbs = batch.dense_gbs,
                       .expert_gbs = batch.expert_gbs,
                       .attention_seconds = batch.attention_seconds,
                       .router_seconds = batch.router_seconds,
                       .step_seconds = batch.step_seconds,
                       .delta_net_seconds = batch.delta_net_seconds};
    }
  }
  machine.wake_seconds = MeasureWake();
  machine.loopback_gbs = MeasureLoopback();
  timespec slice{};
  if (::sched_rr_get_interval(0, &slice) == 0)
    machine.slice_seconds = static_cast<double>(slice.tv_sec) + 1e-9 * static_cast<double>(slice.tv_nsec);
  machine.token_seconds = kTokenSeconds;
  assumptions.push_back(
      std::format("CPU on this model's shapes, measured now: matrices {:.1f}, experts {:.1f}, K and V {:.1f} GB/s",
                  machine.dense_gbs, machine.expert_gbs, machine.attention_gbs));
  assumptions.push_back("  beside them " + StepCostsText(machine));
  if (n_batch > 0) {
    std::string delta_net;
    if (machine.batch.delta_net_seconds > 0)
      delta_net = std::format(", its delta net {:.2f} ms", 1e3 * machine.batch.delta_net_seconds);
    assumptions.push_back(std::format(
        "  a batch of {}: matrices {:.0f}, experts {:.0f} GB/s of weights times rows; a layer's attention {:.2f} ms, "
        "its "
        "router {:.2f} ms{}, another step {:.2f} ms; over loopback {:.2f} GB/s",
        n_batch, machine.batch.dense_gbs, machine.batch.expert_gbs, 1e3 * machine.batch.attention_seconds,
        1e3 * machine.batch.router_seconds, delta_net, 1e3 * machine.batch.step_seconds, machine.loopback_gbs));
  }
  struct OfThreads {
    double read_gbs, batch_gbs;
  };
  std::map<std::uint32_t, OfThreads> by_threads;
  if (n_batch > 0 && std::ranges::any_of(machine.nodes, &Node::here)) {
    ASSIGN_OR_RETURN(const auto cpu, Cpu(0));
    ASSIGN_OR_RETURN(machine.batch.worker_gbs, WorkerBatchGbs(model, sizes, *cpu, n_batch));
    by_threads[0] = by_threads[machine.n_cores] = {machine.expert_gbs, machine.batch.worker_gbs};
  }
  for (Node& node : machine.nodes) {
    if (!node.here) continue;
    if (!by_threads.contains(node.threads)) {
      ASSIGN_OR_RETURN(const auto cpu, Cpu(node.threads));
      OfThreads& measured = by_threads[node.threads];
      ASSIGN_OR_RETURN(measured.read_gbs, CalibrateExperts(kinds, *cpu, kSeconds / 4, most_bytes));
      if (n_batch > 0) {
        ASSIGN_OR_RETURN(measured.batch_gbs, WorkerBatchGbs(model, sizes, *cpu, n_batch));
      }
    }
    if (node.read_gbs == 0) node.read_gbs = by_threads[node.threads].read_gbs;
    node.batch_gbs = by_threads[node.threads].batch_gbs;
  }
  return {};
}

}  // namespace linkcpp
