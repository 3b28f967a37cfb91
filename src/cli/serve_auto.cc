#include "cli/serve_auto.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <format>
#include <optional>
#include <string_view>

#include "base/byte_size.h"
#include "cli/ask_layout.h"
#include "cli/plan_machine.h"
#include "gguf/model.h"
#include "planner/plan.h"

namespace linkcpp {
namespace {

constexpr std::uint32_t kLeastContext = 4096;

// llama-server's names of the options a plan sets.
using Names = std::array<std::string_view, 3>;
constexpr std::array kOptions{Names{"-c", "--ctx-size", ""},       Names{"-np", "--parallel", ""},
                              Names{"-ub", "--ubatch-size", ""},   Names{"-ngl", "--gpu-layers", "--n-gpu-layers"},
                              Names{"-ts", "--tensor-split", ""},  Names{"-ot", "--override-tensor", ""},
                              Names{"-fa", "--flash-attn", ""},    Names{"-ctk", "--cache-type-k", ""},
                              Names{"-ctv", "--cache-type-v", ""}, Names{"-fit", "--fit", ""},
                              Names{"--no-repack", "-nr", ""},     Names{"-dev", "--device", ""},
                              Names{"-b", "--batch-size", ""}};

const Names* NamesOf(std::string_view word) {
  if (word.empty()) return nullptr;
  const auto found =
      std::ranges::find_if(kOptions, [&](const Names& names) { return std::ranges::contains(names, word); });
  return found == kOptions.end() ? nullptr : &*found;
}

// The value after the last of an option's names; nullopt: the user did not set it.
std::optional<std::string> Value(std::span<const std::string> words, std::string_view name) {
  const Names* names = NamesOf(name);
  std::optional<std::string> value;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (names != nullptr && NamesOf(words[i]) == names) value = words[i + 1];
  }
  return value;
}

Result<std::uint32_t> Number(std::string_view name, const std::optional<std::string>& text, std::uint32_t otherwise) {
  if (!text) return otherwise;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size()) {
    return Fail(FaultCode::kRefused, "{} {}: not a number that --auto could plan with", name, *text);
  }
  return number;
}

}  // namespace

std::vector<std::string> WithoutOverridden(std::span<const std::string> planned,
                                           std::span<const std::string> user_arguments) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < planned.size(); ++i) {
    const Names* names = NamesOf(planned[i]);
    const bool has_value = i + 1 < planned.size() && NamesOf(planned[i + 1]) == nullptr;
    const bool overridden = names != nullptr && std::ranges::any_of(user_arguments, [&](const std::string& word) {
                              return NamesOf(word.substr(0, word.find('='))) == names;
                            });
    if (!overridden) kept.push_back(planned[i]);
    if (has_value) {
      ++i;
      if (!overridden) kept.push_back(planned[i]);
    }
  }
  return kept;
}

Result<AutoPlan> PlanForServe(const std::string& model_path, const std::string& nodes,
                              std::span<const std::string> user_arguments) {
  ASSIGN_OR_RETURN(const ModelFile model, ModelFile::Open(model_path));
  ASSIGN_OR_RETURN(const ModelSizes sizes, MeasureModel(model));
  PlanWish wish{.run = {}, .model_path = model_path};
  ASSIGN_OR_RETURN(wish.run.context, Number("-c", Value(user_arguments, "-c"), 0));
  ASSIGN_OR_RETURN(wish.run.n_parallel, Number("-np", Value(user_arguments, "-np"), 1));
  ASSIGN_OR_RETURN(wish.run.n_batch, Number("-ub", Value(user_arguments, "-ub"), wish.run.n_batch));
  wish.run.n_parallel = std::clamp(wish.run.n_parallel, 1u, 256u);
  if (const auto kv = Value(user_arguments, "-ctk")) wish.run.kv = KvTypeFromName(*kv).value_or(KvType::kF16);
  const bool own_context = wish.run.context == 0;

  MachineWish machine_wish;
  machine_wish.nodes = nodes;
  std::vector<std::string> assumptions;
  ASSIGN_OR_RETURN(Machine machine, ReadMachine(machine_wish, model, sizes, assumptions));
  if (const auto devices = Value(user_arguments, "-dev")) {
    const auto is_other = [&](const FastDevice& device) {
      return !std::format(",{},", *devices).contains(std::format(",{},", device.name));
    };
    machine.has_other_devices = std::erase_if(machine.devices, is_other) > 0 || machine.has_other_devices;
  }
  if (own_context) wish.run.context = sizes.context_length;
  wish.ask = MakeLayoutAsker(model);
  ASSIGN_OR_RETURN(Plan plan, MakePlan(sizes, machine, wish));
  while (!plan.placement.feasible && own_context && wish.run.context / 2 >= kLeastContext) {
    wish.run.context /= 2;
    ASSIGN_OR_RETURN(plan, MakePlan(sizes, machine, wish));
  }
  if (!plan.placement.feasible) {
    std::string change;
    if (!plan.changes.empty() && plan.changes.front().enough) change = "; enough would be " + plan.changes.front().what;
    AutoPlan none;
    none.missing =
        std::format("--auto: {} does not fit this machine: {} are missing{} (`linkcpp plan -m {}` says more)",
                    sizes.name, BinarySizeText(plan.placement.missing_bytes), change, model_path);
    return none;
  }

  AutoPlan result;
  result.arguments = WithoutOverridden(plan.wiring.arguments, user_arguments);
  // serve sets the rest of the plug-in's environment itself. What it computes here must have room here.
  const std::uint64_t local_mib = (plan.placement.ram.experts + (1ull << 20) - 1) >> 20;
  if (local_mib > 0) result.environment.emplace_back("LINKCPP_LOCAL_MEMORY", std::format("{}M", local_mib));
  std::string places;
  for (const Tier tier : {Tier::kVram, Tier::kRam, Tier::kSwarm, Tier::kDisk}) {
    const std::uint64_t bytes = plan.placement.ExpertBytes(sizes, tier);
    if (bytes > 0)
      places += std::format("{}{} in {}", places.empty() ? "" : ", ", BinarySizeText(bytes), TierName(tier));
  }
  result.summary = std::format("context {}, experts {}; decode about {:.1f} tok/s", ContextCells(sizes, wish.run),
                               places, plan.prediction.decode.tokens_per_second);
  return result;
}

}  // namespace linkcpp
