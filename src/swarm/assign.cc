#include "swarm/assign.h"

#include <algorithm>
#include <span>
#include <utility>

namespace linkcpp {
namespace {

// Pairs of one expert stay together up to this many: a holder reads the expert's weights once for all of them.
constexpr std::size_t kTogether = 64;

// How many of `left` pairs of one expert to take when `most` are wanted: all of them, or so many that what is taken and
// what is left both have kManyPairs at least.
std::size_t Piece(std::size_t left, std::size_t most) {
  most = std::max(most, kManyPairs);
  return left < most + kManyPairs ? left : most;
}

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
  const auto find = [&](WorkerNumber worker) { return std::ranges::find(chosen, worker, &Assignment::worker); };
  double slowest_us = 0;
  for (const PairGroup& group : groups) {
    std::span<const std::uint32_t> rest = group.pairs;
    while (!rest.empty()) {
      const bool alone = group.candidates.size() == 1;
      const std::span<const std::uint32_t> part = rest.first(alone ? rest.size() : Piece(rest.size(), kTogether));
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

std::vector<std::vector<std::uint32_t>> CutIntoFrames(std::vector<std::uint32_t> pairs,
                                                      const std::function<ExpertId(std::uint32_t pair)>& expert_of,
                                                      std::size_t most, bool one_each) {
  std::vector<std::vector<std::uint32_t>> frames;
  if (!one_each && pairs.size() <= most) {
    frames.push_back(std::move(pairs));
    return frames;
  }
  std::ranges::stable_sort(pairs, {}, expert_of);
  std::span<const std::uint32_t> rest = pairs;
  while (!rest.empty()) {
    const ExpertId expert = expert_of(rest.front());
    const auto end = std::ranges::find_if(rest, [&](std::uint32_t pair) { return expert_of(pair) != expert; });
    std::span<const std::uint32_t> group = rest.first(static_cast<std::size_t>(end - rest.begin()));
    rest = rest.subspan(group.size());
    if (!one_each && !frames.empty() && frames.back().size() + group.size() <= most) {
      frames.back().insert(frames.back().end(), group.begin(), group.end());
      continue;
    }
    while (!group.empty()) {
      const std::size_t size = Piece(group.size(), most);
      frames.emplace_back(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(size));
      group = group.subspan(size);
    }
  }
  return frames;
}

}  // namespace linkcpp
