#include "cli/matrix_swarm.h"

#include <algorithm>
#include <chrono>

#include "base/plain_text.h"
#include "cli/swarm_view.h"
#include "matrix/run_job.h"
#include "swarm/routing_table.h"

namespace linkcpp {
namespace {

using std::chrono::steady_clock;

std::string HoldingsText(const std::vector<LayerHoldings>& ready) {
  constexpr std::size_t kShown = 4;
  std::string text;
  std::size_t n = 0;
  for (const LayerHoldings& holdings : ready) {
    if (holdings.experts.empty() || ++n > kShown) continue;
    text += std::format("{}layer {}: {}", text.empty() ? "" : "; ", holdings.layer, PlainText(holdings.experts));
  }
  if (n > kShown) text += std::format("; and {} layers more", n - kShown);
  return text.empty() ? "nothing yet" : text;
}

WorkerContender Describe(const NodeStatus& node) {
  WorkerContender worker{.contender = {}, .node = node, .holds = {}};
  worker.node.name = PlainText(node.name.empty() ? node.node_id : node.name);
  Contender& contender = worker.contender;
  contender.id = worker.node.name;
  contender.name = "worker " + worker.node.name;
  contender.kind = node.kernel_class.contains("/CPU/") ? KernelKind::kCpu : KernelKind::kGpu;
  auto holds = SpellOut(node.ready);
  if (!node.admitted) {
    contender.missing = "not admitted to the swarm: " + PlainText(node.refusal);
  } else if (!holds.has_value()) {
    contender.missing = "what it says it holds cannot be read: " + PlainText(holds.error().text);
  } else if (std::erase_if(*holds, [](const auto& layer) { return layer.second.empty(); }); holds->empty()) {
    contender.missing = std::format("it holds nothing yet ({})", PlainText(node.state));
  }
  if (contender.missing.empty()) worker.holds = std::move(*holds);
  return worker;
}

WorkerContender Nobody(const std::string& name, const StatusReply& status) {
  WorkerContender worker{.contender = {}, .node = {}, .holds = {}};
  worker.contender.id = name;
  worker.contender.name = "worker " + name;
  std::string there;
  for (const NodeStatus& node : status.nodes) there += (there.empty() ? "" : ", ") + PlainText(node.name);
  worker.contender.missing =
      std::format("no worker of the swarm is called that; there are: {}", there.empty() ? "none" : there);
  return worker;
}

}  // namespace

Result<std::vector<WorkerContender>> FindWorkers(const HttpEndpoint& coordinator, const ModelFile& model,
                                                 const std::vector<std::string>& names,
                                                 const std::vector<std::string>& taken) {
  SwarmView view(coordinator);
  ASSIGN_OR_RETURN(const StatusReply status, view.Status());
  RETURN_IF_FAULT(view.RequireModel(model));
  const auto means = [](const std::string& name, const NodeStatus& node) {
    return !name.empty() && (node.node_id.starts_with(name) || node.name == name);
  };
  std::vector<WorkerContender> workers;
  for (const NodeStatus& node : status.nodes) {
    if (names.empty() || std::ranges::any_of(names, [&](const std::string& name) { return means(name, node); })) {
      workers.push_back(Describe(node));
    }
  }
  for (WorkerContender& worker : workers) {
    const auto same = [&](const WorkerContender& other) { return other.node.name == worker.node.name; };
    if (std::ranges::contains(taken, worker.node.name) || std::ranges::count_if(workers, same) > 1) {
      worker.contender.id = worker.node.node_id;
      worker.contender.name += std::format(" ({})", worker.node.node_id.substr(0, 6));
    }
  }
  for (const std::string& name : names) {
    if (std::ranges::none_of(status.nodes, [&](const NodeStatus& node) { return means(name, node); })) {
      workers.push_back(Nobody(name, status));
    }
  }
  return workers;
}

Result<MatrixAnswer> RunJobOnWorker(const MatrixInput& input, const WorkerContender& worker, WorkerProbe& probe,
                                    int timeout_s) {
  const auto start = steady_clock::now();
  ASSIGN_OR_RETURN(const ProbedWorker probed, probe.Await(worker.node));
  MatrixAnswer answer{.kernel_class = PlainText(probed.kernel_class),
                      .device = PlainText(worker.node.device),
                      .features = {},
                      .tasks = {}};
  answer.tasks.resize(input.job.tasks.size());
  std::size_t n_present = 0;
  for (const MatrixGroup& group : input.groups) {
    for (const JudgedTask& judged : group.tasks) {
      const MatrixTask& task = input.job.tasks[judged.task];
      TaskAnswer& own = answer.tasks[judged.task];
      for (const SlotPair& pair : task.pairs) {
        own.absent.push_back(!probed.Holds(judged.layer, judged.names[pair.slot]));
        n_present += own.absent.back() ? 0 : 1;
      }
      const ComputeDispatch ask = [&](std::span<const float> x, std::uint32_t, std::span<const SlotPair> pairs,
                                      std::span<float> y) -> Result<void> {
        if (steady_clock::now() - start > std::chrono::seconds(timeout_s)) {
          return Fail(FaultCode::kGone, "not done after {} s", timeout_s);
        }
        std::vector<Pair> named;
        for (const SlotPair& pair : pairs) named.push_back({pair.row, judged.names[pair.slot]});
        return probe.Compute(probed, judged.layer, task.recipe, x, task.n_in, named, y, task.n_out);
      };
      for (std::size_t p = 0; p < kPassages && own.fault.empty(); ++p) {
        const auto begin = steady_clock::now();
        auto values = RunPassage(task, task.passages[p], own.absent, ask);
        if (!values.has_value()) {
          const Fault& fault = values.error();
          if (fault.code != FaultCode::kRefused) return Fail(fault.code, "{}", PlainText(fault.text));
          own.fault = PlainText(fault.text);
          continue;
        }
        own.values[p] = std::move(*values);
        if (p == kByRow) own.seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
      }
    }
  }
  if (n_present == 0) {
    return Fail(FaultCode::kRefused, "it holds none of the experts that are computed; it holds {}",
                HoldingsText(worker.node.ready));
  }
  return answer;
}

}  // namespace linkcpp
