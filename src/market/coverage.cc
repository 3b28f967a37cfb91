#include "market/coverage.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

namespace linkcpp {
namespace {

// a/b < c/d without division; memory sizes fit 64 bits, their products do not.
bool LessShare(std::uint64_t used_a, std::uint64_t of_a, std::uint64_t used_b, std::uint64_t of_b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<Wide>(used_a) * of_b < static_cast<Wide>(used_b) * of_a;
}

// Slices are numbered layer by layer, so that a set of them is a vector of flags.
class Assignment {
 public:
  Assignment(std::span<const LayerGeometry> layers, std::span<const NodeShare> nodes) : layers_(layers) {
    std::uint32_t n_slices = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      first_.push_back(n_slices);
      index_of_[layers[i].layer] = i;
      n_slices += layers[i].n_experts;
      most_experts_ = std::max(most_experts_, layers[i].n_experts);
      least_cost_ = std::min(least_cost_, Cost(i));
    }
    n_holders_.assign(n_slices, 0);
    n_ready_.assign(n_slices, 0);
    for (const NodeShare& share : nodes) nodes_.push_back(MakeNode(share, n_slices));
  }

  void Keep() {
    for (Node& node : nodes_) {
      for (const bool ready : {true, false}) {
        for (const SliceId slice : node.share->assigned) {
          const std::optional<Place> place = Find(slice);
          if (place && node.ready[place->slice] == ready && Takes(node, *place)) Add(node, *place);
        }
      }
    }
  }

  void Fill(bool by_hand) {
    for (std::uint32_t level = 0; level <= nodes_.size() && HasRoom(by_hand); ++level) {
      ForEachSlice([&](Place place) {
        if (n_holders_[place.slice] != level) return;
        Node* best = nullptr;
        for (Node& node : nodes_) {
          if (node.share->by_hand != by_hand || !Takes(node, place)) continue;
          if (best == nullptr || Before(node, *best, place.layer)) best = &node;
        }
        if (best != nullptr) Add(*best, place);
      });
    }
  }

  // Uncovered slices push out spare copies.
  void Rescue() {
    bool spares_left = true;
    ForEachSlice([&](Place place) {
      if (n_holders_[place.slice] != 0 || !spares_left) return;
      Node* best = nullptr;
      std::uint32_t most_holders = 0;
      spares_left = false;  // the usual end when the swarm is smaller than the model
      for (Node& node : nodes_) {
        std::uint64_t freed = node.share->memory_bytes - node.used;
        std::uint32_t holders = 0;
        ForEachSpare(node, [&](Place spare) {
          freed += Cost(spare.layer);
          holders = std::max(holders, n_holders_[spare.slice]);
        });
        spares_left |= holders > 0;
        if (!node.allowed[place.slice] || freed < Cost(place.layer)) continue;
        if (best == nullptr || holders > most_holders ||
            (holders == most_holders && Before(node, *best, place.layer))) {
          best = &node;
          most_holders = holders;
        }
      }
      if (best == nullptr) return;
      while (!Takes(*best, place)) {
        std::optional<Place> victim;
        ForEachSpare(*best, [&](Place spare) {
          if (!victim || Rank(*best, spare) > Rank(*best, *victim)) victim = spare;
        });
        if (!victim) return;  // cannot be: the spares were counted above
        Remove(*best, *victim);
      }
      Add(*best, place);
    });
  }

  std::vector<std::vector<SliceId>> Lists() const {
    std::vector<std::vector<SliceId>> lists(nodes_.size());
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      for (std::size_t i = 0; i < layers_.size(); ++i) {
        for (std::uint32_t expert = 0; expert < layers_[i].n_experts; ++expert) {
          if (nodes_[n].holds[first_[i] + expert]) {
            lists[n].push_back({layers_[i].layer, ExpertId(static_cast<std::uint16_t>(expert))});
          }
        }
      }
      std::ranges::sort(lists[n]);
    }
    return lists;
  }

 private:
  struct Place {
    std::size_t layer = 0;    // index into layers_
    std::uint32_t slice = 0;  // index into n_holders_
  };
  struct Node {
    const NodeShare* share = nullptr;
    std::vector<bool> holds, ready, allowed;
    std::vector<Place> held;  // those of `holds`
    std::vector<std::uint64_t> used_by_layer;
    std::uint64_t used = 0;
  };

  std::uint64_t Cost(std::size_t layer) const { return SliceCost(layers_[layer].slice_bytes); }

  std::optional<Place> Find(SliceId slice) const {
    const auto found = index_of_.find(slice.layer);
    if (found == index_of_.end() || slice.expert.value >= layers_[found->second].n_experts) return std::nullopt;
    return Place{found->second, first_[found->second] + slice.expert.value};
  }

  Node MakeNode(const NodeShare& share, std::uint32_t n_slices) const {
    Node node;
    node.share = &share;
    node.holds.resize(n_slices);
    node.ready.resize(n_slices);
    node.allowed.assign(n_slices, !share.by_hand);
    node.used_by_layer.resize(layers_.size());
    for (const SliceId slice : share.ready) {
      if (const auto place = Find(slice)) node.ready[place->slice] = true;
    }
    for (const SliceId slice : share.chosen) {
      if (const auto place = Find(slice); place && share.by_hand) node.allowed[place->slice] = true;
    }
    return node;
  }

  bool HasRoom(bool by_hand) const {
    return std::ranges::any_of(nodes_, [&](const Node& node) {
      return node.share->by_hand == by_hand && node.share->memory_bytes - node.used >= least_cost_;
    });
  }

  bool Takes(const Node& node, Place place) const {
    return node.allowed[place.slice] && !node.holds[place.slice] &&
           node.share->memory_bytes - node.used >= Cost(place.layer);
  }

  // The node that has given less of its memory to this layer comes first, then the emptier one.
  static bool Before(const Node& a, const Node& b, std::size_t layer) {
    const std::uint64_t of_a = a.share->memory_bytes, of_b = b.share->memory_bytes;
    const std::uint64_t in_a = a.used_by_layer[layer], in_b = b.used_by_layer[layer];
    if (LessShare(in_a, of_a, in_b, of_b)) return true;
    if (LessShare(in_b, of_b, in_a, of_a)) return false;
    if (LessShare(a.used, of_a, b.used, of_b)) return true;
    if (LessShare(b.used, of_b, a.used, of_a)) return false;
    return a.share->id < b.share->id;
  }

  void Add(Node& node, Place place) {
    node.holds[place.slice] = true;
    node.held.push_back(place);
    node.used += Cost(place.layer);
    node.used_by_layer[place.layer] += Cost(place.layer);
    ++n_holders_[place.slice];
    if (node.ready[place.slice]) ++n_ready_[place.slice];
  }

  void Remove(Node& node, Place place) {
    node.holds[place.slice] = false;
    std::erase_if(node.held, [&](Place held) { return held.slice == place.slice; });
    node.used -= Cost(place.layer);
    node.used_by_layer[place.layer] -= Cost(place.layer);
    --n_holders_[place.slice];
    if (node.ready[place.slice]) --n_ready_[place.slice];
  }

  // Expert by expert, so that the first slices handed out are of every layer.
  template <class Visit>
  void ForEachSlice(Visit visit) const {
    for (std::uint32_t expert = 0; expert < most_experts_; ++expert) {
      for (std::size_t i = 0; i < layers_.size(); ++i) {
        if (expert < layers_[i].n_experts) visit(Place{i, first_[i] + expert});
      }
    }
  }

  // What `node` could give up without leaving a slice that is served now unserved.
  template <class Visit>
  void ForEachSpare(const Node& node, Visit visit) const {
    for (const Place place : node.held) {
      if (n_holders_[place.slice] < 2) continue;
      if (node.ready[place.slice] && n_ready_[place.slice] < 2) continue;
      visit(place);
    }
  }

  // Best to give up: what most others hold, what is not loaded yet, and then the last in order.
  std::tuple<std::uint32_t, bool, std::uint32_t> Rank(const Node& node, Place place) const {
    return {n_holders_[place.slice], !node.ready[place.slice], place.slice};
  }

  std::span<const LayerGeometry> layers_;
  std::vector<std::uint32_t> first_;  // by layer index
  std::map<LayerId, std::size_t> index_of_;
  std::vector<std::uint32_t> n_holders_, n_ready_;  // by slice
  std::vector<Node> nodes_;
  std::uint32_t most_experts_ = 0;
  std::uint64_t least_cost_ = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace

std::vector<std::vector<SliceId>> AssignSlices(std::span<const LayerGeometry> layers,
                                               std::span<const NodeShare> nodes) {
  Assignment assignment(layers, nodes);
  assignment.Keep();
  assignment.Fill(/*by_hand=*/true);
  assignment.Fill(/*by_hand=*/false);
  assignment.Rescue();
  return assignment.Lists();
}

}  // namespace linkcpp
