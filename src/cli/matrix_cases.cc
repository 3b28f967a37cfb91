#include "cli/matrix_cases.h"

#include <algorithm>
#include <set>

#include "base/child.h"
#include "cli/expert_bytes.h"
#include "gguf/shard.h"
#include "oracle/layer.h"

namespace linkcpp {
namespace {

constexpr int kCaptureTimeoutS = 300;
constexpr std::uint32_t kMostPerDispatch = 24;

// What the layer's experts are given while the stock library decodes the text token by token.
Result<std::vector<std::vector<float>>> DecodedRows(const ModelFile& model, const LayerPlan& plan, std::uint32_t layer,
                                                    const CaseOptions& options,
                                                    const std::function<bool()>& keep_going) {
  const std::string file = std::format("{}/rows-{}.f32", options.scratch, layer);
  const ChildCommand command{{options.capture_program, model.paths()[0], options.text, std::to_string(layer),
                              std::to_string(options.n_rows), file},
                             {{"GGML_BACKEND_PATH", ""}, {"GOMP_SPINCOUNT", "1000"}},
                             kCaptureTimeoutS};
  const auto done = RunChild(command, keep_going);
  if (!keep_going()) return Fail(FaultCode::kGone, "interrupted");  // a Ctrl-C ends the child too
  if (!done.has_value()) {
    return Fail(FaultCode::kLocal,
                "{}: rows of real decoding are taken by capture_rows, which is built with the tests; --rows-from "
                "gaussian or a file does without",
                done.error().text);
  }
  if (done->status != 0) return Fail(FaultCode::kLocal, "no rows of real decoding: {}", done->LastWords());
  return ReadRows(file, plan.n_in, options.n_rows);
}

Result<std::vector<std::vector<float>>> RowsFor(const ModelFile& model, const LayerPlan& plan, std::uint32_t layer,
                                                const CaseOptions& options, const std::function<bool()>& keep_going) {
  if (options.rows_from == "decode") return DecodedRows(model, plan, layer, options, keep_going);
  if (options.rows_from == "gaussian" || options.rows_from == "embeddings") {
    const RowSource source = options.rows_from == "gaussian" ? RowSource::kGaussian : RowSource::kEmbeddings;
    return MakeRows(model, plan, source, options.n_rows, options.seed);
  }
  return ReadRows(options.rows_from, plan.n_in, options.n_rows);
}

std::string RowsText(const CaseOptions& options) {
  if (options.rows_from == "decode") return std::format("{} rows of real decoding", options.n_rows);
  if (options.rows_from == "gaussian") return std::format("{} rows of normal numbers", options.n_rows);
  if (options.rows_from == "embeddings") return std::format("{} token embeddings", options.n_rows);
  return std::format("{} rows of {}", options.n_rows, options.rows_from);
}

Passage ByRow(std::span<const SlotPair> pairs) {
  Passage passage;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (i == 0 || pairs[i].row != pairs[i - 1].row) passage.sizes.push_back(0);
    ++passage.sizes.back();
    passage.order.push_back(static_cast<std::uint32_t>(i));
  }
  return passage;
}

// Dispatches of random size. No slot gets as many as kManyRows in one of them: that side of the line has bits of its
// own (expert_stack.h).
Passage Shuffled(std::span<const SlotPair> pairs, std::size_t n_slots, std::uint64_t seed) {
  Rng rng(seed);
  Passage passage;
  for (std::size_t i = 0; i < pairs.size(); ++i) passage.order.push_back(static_cast<std::uint32_t>(i));
  for (std::size_t i = pairs.size(); i > 1; --i) std::swap(passage.order[i - 1], passage.order[rng.Below(i)]);
  std::vector<std::uint32_t> in_dispatch(n_slots);
  std::uint64_t wanted = 0;
  for (const std::uint32_t pair : passage.order) {
    std::uint32_t& of_slot = in_dispatch[pairs[pair].slot];
    if (passage.sizes.empty() || passage.sizes.back() >= wanted || of_slot + 1 >= kManyRows) {
      passage.sizes.push_back(0);
      std::ranges::fill(in_dispatch, 0);
      wanted = 1 + rng.Below(kMostPerDispatch);
    }
    ++passage.sizes.back();
    ++of_slot;
  }
  return passage;
}

class TypeNames {
 public:
  void Add(const ExpertShape& shape) {
    for (std::size_t p = 0; p < names_.size(); ++p) {
      if (shape.projections[p]) names_[p].insert(WeightTypeName(shape.projections[p]->type));
    }
  }
  std::string Text() const {
    std::string text;
    for (std::size_t p = 0; p < names_.size(); ++p) {
      if (names_[p].empty()) continue;
      std::string types;
      for (const std::string& name : names_[p]) types += (types.empty() ? "" : " or ") + name;
      text += std::format("{}{} {}", text.empty() ? "" : ", ", ProjectionName(static_cast<Projection>(p)), types);
    }
    return text;
  }

 private:
  std::array<std::set<std::string>, kProjections> names_;
};

Result<void> AddLayer(MatrixInput& input, MatrixGroup& group, TypeNames& types, const ModelFile& model,
                      std::uint32_t layer, const CaseOptions& options, const std::function<bool()>& keep_going) {
  ASSIGN_OR_RETURN(const LayerPlan plan, PlanLayer(model, layer));
  ASSIGN_OR_RETURN(const auto rows, RowsFor(model, plan, layer, options, keep_going));
  std::vector<std::vector<Choice>> chosen(rows.size());
  const bool routed = options.experts.empty();
  if (routed) {
    ASSIGN_OR_RETURN(const Router router, LoadRouter(model, plan));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      ASSIGN_OR_RETURN(chosen[r], Route(router, std::vector<double>(rows[r].begin(), rows[r].end())));
      std::ranges::sort(chosen[r], {}, &Choice::expert);  // the order in which the oracle sums
    }
  } else {
    ASSIGN_OR_RETURN(const auto experts, ParseRanges(options.experts, plan.layer->n_experts));
    for (auto& choices : chosen) {
      for (const std::uint16_t expert : experts) choices.push_back({expert, 0});
    }
  }
  std::set<std::uint32_t> touched;
  for (const auto& choices : chosen) {
    for (const Choice& choice : choices) touched.insert(choice.expert);
  }
  std::vector<std::uint32_t> besides;  // every row through these too, outside the router's sums
  for (const HeldExperts& holder : options.holders) {
    const auto held = holder.find(static_cast<std::uint16_t>(layer));
    if (!routed || held == holder.end() || held->second.empty()) continue;
    const bool has_some = std::ranges::any_of(held->second, [&](std::uint16_t e) { return touched.contains(e); });
    if (has_some || held->second.front() >= plan.layer->n_experts) continue;
    besides.push_back(held->second.front());
    touched.insert(besides.back());
  }
  const std::vector<std::uint32_t> experts(touched.begin(), touched.end());
  const auto slot_of = [&experts](std::uint32_t expert) {
    return static_cast<std::uint32_t>(std::ranges::lower_bound(experts, expert) - experts.begin());
  };

  MatrixTask task{.recipe = plan.recipe,
                  .shape = {},
                  .n_in = plan.n_in,
                  .n_out = plan.n_out,
                  .slots = {},
                  .rows = {},
                  .pairs = {},
                  .passages = {}};
  JudgedTask judged{.task = static_cast<std::uint32_t>(input.job.tasks.size()),
                    .layer = plan.layer->layer,
                    .names = {},
                    .experts = {},
                    .sums = {}};
  for (const std::uint32_t expert : experts) {
    ASSIGN_OR_RETURN(ExpertBytes bytes, LoadExpertBytes(model, plan, expert));
    task.shape = bytes.shape;
    task.slots.push_back(std::move(bytes.parts));
    judged.names.emplace_back(static_cast<std::uint16_t>(expert));
    ASSIGN_OR_RETURN(judged.experts.emplace_back(), LoadOracleExpert(model, plan, expert));
  }
  for (std::uint32_t r = 0; r < rows.size(); ++r) {
    task.rows.insert(task.rows.end(), rows[r].begin(), rows[r].end());
    for (const Choice& choice : chosen[r]) {
      if (routed) judged.sums.push_back({r, static_cast<std::uint32_t>(task.pairs.size()), choice.weight});
      task.pairs.push_back({r, slot_of(choice.expert)});
    }
    for (const std::uint32_t expert : besides) task.pairs.push_back({r, slot_of(expert)});
  }
  task.passages[kByRow] = ByRow(task.pairs);
  task.passages[kShuffled] = Shuffled(task.pairs, task.slots.size(), options.seed + layer);
  task.passages[kOneBatch] = task.passages[kByRow];
  task.passages[kOneBatch].sizes = {static_cast<std::uint32_t>(task.pairs.size())};
  types.Add(task.shape);
  input.job.tasks.push_back(std::move(task));
  group.tasks.push_back(std::move(judged));
  return {};
}

// What tells layers apart for a kernel: the types of their projections.
std::string TypeMix(const MoeLayer& layer) {
  std::string mix;
  for (const ExpertTensor& tensor : layer.tensors) {
    if (tensor.kind != SlabKind::kWeight) continue;
    mix += std::format("{}:{} ", static_cast<int>(tensor.projection), tensor.tensor->type);
  }
  return mix;
}

}  // namespace

std::vector<std::uint32_t> LayersFor(const ModelFile& model, const std::vector<HeldExperts>& holders) {
  std::set<std::pair<std::size_t, std::string>> wanted;  // (holder, mix) that no chosen layer has yet
  const bool nobody = std::ranges::all_of(holders, &HeldExperts::empty);
  const auto in_layer = [&](const MoeLayer& layer) {
    std::set<std::pair<std::size_t, std::string>> there;
    if (nobody) there.emplace(0, TypeMix(layer));
    for (std::size_t h = 0; h < holders.size(); ++h) {
      const auto held = holders[h].find(layer.layer.value);
      if (held != holders[h].end() && !held->second.empty()) there.emplace(h, TypeMix(layer));
    }
    return there;
  };
  std::vector<std::uint32_t> all, chosen;
  for (const MoeLayer& layer : model.moe_layers()) {
    all.push_back(layer.layer.value);
    wanted.merge(in_layer(layer));
  }
  if (holders.empty()) return all;
  while (!wanted.empty()) {
    std::size_t most = 0;
    const MoeLayer* best = nullptr;
    for (const MoeLayer& layer : model.moe_layers()) {
      const auto there = in_layer(layer);
      const auto n = static_cast<std::size_t>(
          std::ranges::count_if(there, [&](const auto& want) { return wanted.contains(want); }));
      if (n > most) {
        most = n;
        best = &layer;
      }
    }
    for (const auto& met : in_layer(*best)) wanted.erase(met);
    chosen.push_back(best->layer.value);
  }
  std::ranges::sort(chosen);
  return chosen;
}

Result<void> AddModel(MatrixInput& input, const std::string& name, const ModelFile& model, const CaseOptions& options,
                      const std::function<bool()>& keep_going) {
  std::vector<std::uint32_t> layers = options.layers;
  if (layers.empty()) {
    RETURN_IF_FAULT(model.RequireExperts());
    layers = LayersFor(model, options.holders);
  }
  MatrixGroup group{.name = name, .types = {}, .rows = RowsText(options), .tasks = {}};
  if (layers.size() == 1) {
    group.name += std::format(", layer {}", layers[0]);
  } else if (!options.holders.empty()) {
    std::string numbers;
    for (const std::uint32_t layer : layers) numbers += std::format("{}{}", numbers.empty() ? "" : ", ", layer);
    group.name += std::format(", layers {}", numbers);
  } else {
    group.name += std::format(", {} layers", layers.size());
  }
  TypeNames types;
  for (const std::uint32_t layer : layers) {
    RETURN_IF_FAULT(AddLayer(input, group, types, model, layer, options, keep_going));
  }
  group.types = types.Text();
  input.groups.push_back(std::move(group));
  return {};
}

}  // namespace linkcpp
