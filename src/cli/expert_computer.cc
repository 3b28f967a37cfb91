#include "cli/expert_computer.h"

#include <format>
#include <utility>
#include <vector>

#include "cli/expert_bytes.h"
#include "cli/swarm_view.h"

namespace linkcpp {
namespace {

class OnDevice final : public ExpertComputer {
 public:
  OnDevice(const ModelFile& model, const LayerPlan& plan, std::unique_ptr<Device> device)
      : model_(model), plan_(plan), device_(std::move(device)) {}

  std::string name() const override {
    return std::format("{} ({})", device_->info().name, device_->info().description);
  }
  std::string kernel_class() const override { return device_->kernel_class(); }
  bool is_gpu() const override { return device_->info().is_gpu; }

  Result<void> Compute(std::uint16_t expert, std::span<const float> x, std::span<float> y) override {
    const auto n = static_cast<std::uint32_t>(x.size() / plan_.n_in);
    std::vector<SlotPair> pairs;
    for (std::uint32_t row = 0; row < n; ++row) pairs.push_back({row, 0});
    ASSIGN_OR_RETURN(const ExpertBytes bytes, LoadExpertBytes(model_, plan_, expert));
    if (stack_ == nullptr) {
      ASSIGN_OR_RETURN(stack_, ExpertStack::Create(bytes.shape, 1, *device_));
      RETURN_IF_FAULT(stack_->Check(plan_.recipe));
    }
    RETURN_IF_FAULT(stack_->Load(0, bytes.slabs()));
    return stack_->Run(plan_.recipe, x, n, pairs, y);
  }

 private:
  const ModelFile& model_;
  const LayerPlan& plan_;
  const std::unique_ptr<Device> device_;
  std::unique_ptr<ExpertStack> stack_;
};

class OnWorker final : public ExpertComputer {
 public:
  OnWorker(const LayerPlan& plan, std::unique_ptr<WorkerProbe> probe, NodeStatus node, ProbedWorker worker)
      : plan_(plan), probe_(std::move(probe)), node_(std::move(node)), worker_(std::move(worker)) {}

  std::string name() const override {
    return std::format("worker {} ({}), {}", node_.name, node_.node_id, node_.device);
  }
  std::string kernel_class() const override { return worker_.kernel_class; }
  bool is_gpu() const override { return worker_.is_gpu; }
  Result<void> Compute(std::uint16_t expert, std::span<const float> x, std::span<float> y) override {
    std::vector<Pair> pairs;
    for (std::uint32_t row = 0; row < x.size() / plan_.n_in; ++row) pairs.push_back({row, ExpertId(expert)});
    return probe_->Compute(worker_, plan_.layer->layer, plan_.recipe, x, plan_.n_in, pairs, y, plan_.n_out);
  }

 private:
  const LayerPlan& plan_;
  const std::unique_ptr<WorkerProbe> probe_;
  const NodeStatus node_;
  const ProbedWorker worker_;
};

}  // namespace

Result<std::unique_ptr<ExpertComputer>> ComputeOnDevice(const ModelFile& model, const LayerPlan& plan,
                                                        const DeviceOptions& options, LogSink& log) {
  ASSIGN_OR_RETURN(auto device, Device::Open(options, log));
  return std::make_unique<OnDevice>(model, plan, std::move(device));
}

Result<std::unique_ptr<ExpertComputer>> ComputeOnWorker(const ModelFile& model, const LayerPlan& plan,
                                                        const WorkerProbeOptions& options, const std::string& node,
                                                        const std::vector<std::uint16_t>& experts, LogSink& log) {
  const LayerId layer = plan.layer->layer;
  SwarmView view(options.coordinator);
  ASSIGN_OR_RETURN(const StatusReply status, view.Status());
  RETURN_IF_FAULT(view.RequireModel(model));
  ASSIGN_OR_RETURN(NodeStatus chosen, ChooseNode(status, node, layer, experts));
  ASSIGN_OR_RETURN(auto probe, WorkerProbe::Attach(options, model, log));
  ASSIGN_OR_RETURN(ProbedWorker worker, probe->Await(chosen));
  for (const std::uint16_t expert : experts) {
    if (worker.Holds(layer, ExpertId(expert))) continue;
    return Fail(FaultCode::kRefused, "worker {} does not hold expert {} of layer {}; there it holds {}", chosen.name,
                expert, layer.value, HeldText(chosen, layer));
  }
  return std::make_unique<OnWorker>(plan, std::move(probe), std::move(chosen), std::move(worker));
}

}  // namespace linkcpp
