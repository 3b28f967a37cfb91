#include "cli/plan_calibrate.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
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
#include "planner/step_costs.h"
#include "worker/byte_size.h"

namespace linkcpp {
namespace {

constexpr double kSeconds = 0.5;
constexpr std::uint64_t kMostBytes = 320ull << 20;  // many times what a core's own caches hold
constexpr std::uint64_t kCovered = 92;              // percent of a token's bytes whose kinds are measured
// llama.cpp's own work between two graphs of one token: 23 to 32 us on a Sapphire Rapids Xeon, three models (0.7.0).
constexpr double kTokenSeconds = 25e-6;

// Two-dimensional weights that every token is multiplied with, and the experts; alike ones together.
std::vector<MatrixKind> KindsOf(const ModelFile& model, const ModelSizes& sizes) {
  using Key = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  std::map<Key, MatrixKind> kinds;
  std::uint32_t n_used = 1;
  for (const LayerSizes& layer : sizes.layers) n_used = std::max(n_used, layer.n_used);
  for (const TensorInfo& tensor : model.tensors()) {
    const bool experts = tensor.ne[2] > 1;
    const bool looked_up = tensor.name == "token_embd.weight" && !sizes.tied_embeddings;
    if (tensor.ne[1] < 2 || tensor.ne[3] > 1 || looked_up || (experts && !ParseExpertTensorName(tensor.name))) continue;
    MatrixKind& kind = kinds[{tensor.type, tensor.ne[0], tensor.ne[1], experts ? tensor.ne[2] : 0}];
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

Result<std::unique_ptr<Device>> Cpu(std::uint32_t n_threads) {
  static NullLog log;
  return Device::Open({.name = "cpu", .n_threads = static_cast<int>(n_threads), .backend_path = ""}, log);
}

LayerShape ShapeOf(const ModelSizes& sizes) {
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
  return shape;
}

}  // namespace

Result<void> CalibrateMachine(const ModelFile& model, const ModelSizes& sizes, Machine& machine,
                              std::vector<std::string>& assumptions) {
  const std::vector<MatrixKind> kinds = KindsOf(model, sizes);
  const std::uint64_t most_bytes = std::min(kMostBytes, AvailableMemory() / 4);
  {
    ASSIGN_OR_RETURN(const auto cpu, Cpu(0));
    ASSIGN_OR_RETURN(const Calibration all, Calibrate(kinds, ShapeOf(sizes), *cpu, kSeconds, most_bytes));
    machine.dense_gbs = all.dense_gbs;
    machine.expert_gbs = all.expert_gbs;
    machine.attention_gbs = all.attention_gbs;
    machine.attention_seconds = all.attention_seconds;
    machine.router_seconds = all.router_seconds;
    machine.step_seconds = all.step_seconds;
    machine.graph_seconds = all.graph_seconds;
  }
  machine.wake_seconds = MeasureWake();
  machine.token_seconds = kTokenSeconds;
  assumptions.push_back(
      std::format("CPU on this model's shapes, measured now: matrices {:.1f}, experts {:.1f}, K and V {:.1f} GB/s",
                  machine.dense_gbs, machine.expert_gbs, machine.attention_gbs));
  assumptions.push_back("  beside them " + StepCostsText(machine));
  std::map<std::uint32_t, double> by_threads{{0, machine.expert_gbs},
                                             {std::max(1u, std::thread::hardware_concurrency()), machine.expert_gbs}};
  for (Node& node : machine.nodes) {
    if (!node.here || node.read_gbs > 0) continue;
    if (!by_threads.contains(node.threads)) {
      ASSIGN_OR_RETURN(const auto cpu, Cpu(node.threads));
      ASSIGN_OR_RETURN(by_threads[node.threads], CalibrateExperts(kinds, *cpu, kSeconds / 4, most_bytes));
    }
    node.read_gbs = by_threads[node.threads];
  }
  return {};
}

}  // namespace linkcpp
