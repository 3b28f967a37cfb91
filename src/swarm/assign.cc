#include "swarm/assign.h"

#include <algorithm>
#include <utility>

namespace linkcpp {
namespace {

// Pairs of one expert stay together up to this many: a holder reads the expert's weights once for all of them.
constexpr std::size_t kTogether = 64;

}  // namespace

std::vector<Assignment> AssignPairs(std::vector<PairGroup> groups,
                                    const std::function<double(WorkerNumber worker, std::uint32_t n_pairs)>& finish_us,
                                    double frame_us) {
  std::ranges::sort(groups, [](const PairGroup& a, const PairGroup& b) {
    if (a.candidates.size() != b.candidates.size()) return a.candidates.size() < b.candidates.size();
    if (a.pairs.size() != b.pairs.size()) return a.pairs.size() > b.pairs.size();
    return a.expert < b.expert;
  });
  std::vector<Assignment> chosen;  // few: a linear look-up is quicker than a map
  const auto find = [&](WorkerNumber worker) {
    return std::ranges::find(chosen, worker, &Assignment::worker);
  };
  double slowest_us = 0;
  for (const PairGroup& group : groups) {
    std::span<const std::uint32_t> rest = group.pairs;
    while (!rest.empty()) {
      const bool alone = group.candidates.size() == 1;
      const std::span<const std::uint32_t> part = rest.first(alone ? rest.size() : std::min(rest.size(), kTogether));
      rest = rest.subspan(part.size());
      WorkerNumber best = group.candidates.front();
      if (!alone) {
        // What the whole layer would take; then, of equals, what this worker would.
        std::pair<double, double> best_us;
        bool first = true;
        for (const WorkerNumber worker : group.candidates) {
          const auto has = find(worker);
          const std::size_t had = has == chosen.end() ? 0 : has->pairs.size();
          const double mine = finish_us(worker, static_cast<std::uint32_t>(had + part.size()));
          const std::pair<double, double> us(std::max(slowest_us, mine) + (had == 0 ? frame_us : 0), mine);
          if (first || us < best_us) {
            best = worker;
            best_us = us;
            first = false;
          }
        }
      }
      auto entry = find(best);
      if (entry == chosen.end()) entry = chosen.insert(chosen.end(), Assignment{best, {}});
      entry->pairs.insert(entry->pairs.end(), part.begin(), part.end());
      slowest_us = std::max(slowest_us, finish_us(best, static_cast<std::uint32_t>(entry->pairs.size())));
    }
  }
  std::ranges::sort(chosen, {}, &Assignment::worker);
  for (Assignment& assignment : chosen) std::ranges::sort(assignment.pairs);
  return chosen;
}

}  // namespace linkcpp
