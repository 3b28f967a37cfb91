#include "matrix/run_job.h"

#include <chrono>
#include <unordered_map>

namespace linkcpp {
namespace {

ExpertSlabs Borrow(const SlabBytes& slot) {
  ExpertSlabs slabs;
  for (std::size_t p = 0; p < slot.size(); ++p) slabs.projections[p] = {slot[p][0], slot[p][1], slot[p][2]};
  return slabs;
}

// One passage over the pairs: y[i] answers pairs[i]. A dispatch carries each of its rows once, as a host's does.
Result<std::vector<float>> Run(const MatrixTask& task, const Passage& passage, ExpertStack& stack) {
  std::vector<float> y(task.pairs.size() * task.n_out);
  std::vector<float> part;
  std::size_t at = 0;
  for (const std::uint32_t size : passage.sizes) {
    std::vector<SlotPair> pairs;
    std::vector<float> x;
    std::unordered_map<std::uint32_t, std::uint32_t> place;
    for (std::size_t i = at; i < at + size; ++i) {
      const SlotPair& pair = task.pairs[passage.order[i]];
      const auto [found, is_new] = place.emplace(pair.row, static_cast<std::uint32_t>(place.size()));
      if (is_new) {
        const auto row = std::span(task.rows).subspan(std::size_t{pair.row} * task.n_in, task.n_in);
        x.insert(x.end(), row.begin(), row.end());
      }
      pairs.push_back({found->second, pair.slot});
    }
    part.resize(std::size_t{size} * task.n_out);
    RETURN_IF_FAULT(stack.Run(task.recipe, x, static_cast<std::uint32_t>(place.size()), pairs, part));
    for (std::size_t i = 0; i < size; ++i, ++at) {
      std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(i * task.n_out), task.n_out,
                  y.begin() + static_cast<std::ptrdiff_t>(std::size_t{passage.order[at]} * task.n_out));
    }
  }
  return y;
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
  TaskAnswer answer;
  for (std::size_t p = 0; p < kPassages; ++p) {
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(answer.values[p], Run(task, task.passages[p], *stack));
    if (p == kByRow) {
      answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  }
  return answer;
}

}  // namespace

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
