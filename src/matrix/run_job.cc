#include "matrix/run_job.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

namespace linkcpp {
namespace {

ExpertSlabs Borrow(const SlabBytes& slot) {
  ExpertSlabs slabs;
  for (std::size_t p = 0; p < slot.size(); ++p) slabs.projections[p] = {slot[p][0], slot[p][1], slot[p][2]};
  return slabs;
}

Result<TaskAnswer> RunTask(const MatrixTask& task, Device& device) {
  ASSIGN_OR_RETURN(const auto stack,
                   ExpertStack::Create(task.shape, static_cast<std::uint32_t>(task.slots.size()), device));
  ASSIGN_OR_RETURN(const ExpertStack::Lengths lengths, stack->Check(task.recipe));
  if (lengths.n_in != task.n_in || lengths.n_out != task.n_out) {
    return Fail(FaultCode::kRefused, "the recipe makes rows of {} from rows of {}, the job says {} from {}",
                lengths.n_out, lengths.n_in, task.n_out, task.n_in);
  }
  for (std::size_t slot = 0; slot < task.slots.size(); ++slot) {
    RETURN_IF_FAULT(stack->Load(static_cast<std::uint32_t>(slot), Borrow(task.slots[slot])));
  }
  const auto run = [&](std::span<const float> x, std::uint32_t n_rows, std::span<const SlotPair> pairs,
                       std::span<float> y) { return stack->Run(task.recipe, x, n_rows, pairs, y); };
  TaskAnswer answer;
  for (std::size_t p = 0; p < kPassages; ++p) {
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(answer.values[p], RunPassage(task, task.passages[p], {}, run));
    if (p == kByRow) {
      answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  }
  return answer;
}

}  // namespace

Result<std::vector<float>> RunPassage(const MatrixTask& task, const Passage& passage, const std::vector<bool>& absent,
                                      const ComputeDispatch& compute) {
  std::vector<float> y(task.pairs.size() * task.n_out);
  std::vector<float> part;
  std::size_t at = 0;
  for (const std::uint32_t size : passage.sizes) {
    std::vector<std::uint32_t> asked;  // indices of task.pairs
    std::vector<SlotPair> pairs;
    std::vector<float> x;
    std::unordered_map<std::uint32_t, std::uint32_t> place;
    for (const std::uint32_t index : std::span(passage.order).subspan(at, size)) {
      if (!absent.empty() && absent[index]) continue;
      const SlotPair& pair = task.pairs[index];
      const auto [found, is_new] = place.emplace(pair.row, static_cast<std::uint32_t>(place.size()));
      if (is_new) {
        const auto row = std::span(task.rows).subspan(std::size_t{pair.row} * task.n_in, task.n_in);
        x.insert(x.end(), row.begin(), row.end());
      }
      asked.push_back(index);
      pairs.push_back({found->second, pair.slot});
    }
    at += size;
    if (pairs.empty()) continue;
    part.resize(pairs.size() * task.n_out);
    RETURN_IF_FAULT(compute(x, static_cast<std::uint32_t>(place.size()), pairs, part));
    for (std::size_t i = 0; i < asked.size(); ++i) {
      std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(i * task.n_out), task.n_out,
                  y.begin() + static_cast<std::ptrdiff_t>(std::size_t{asked[i]} * task.n_out));
    }
  }
  return y;
}

MatrixAnswer RunJob(const MatrixJob& job, Device& device) {
  MatrixAnswer answer{.kernel_class = device.kernel_class(),
                      .device = std::format("{} ({})", device.info().name, device.info().description),
                      .features = device.info().features,
                      .tasks = {}};
  for (const MatrixTask& task : job.tasks) {
    auto done = RunTask(task, device);
    answer.tasks.push_back(done ? std::move(*done) : TaskAnswer{.fault = done.error().text, .values = {}});
  }
  return answer;
}

}  // namespace linkcpp
