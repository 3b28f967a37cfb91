#include "coordinator/host_command.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

namespace linkcpp {
namespace {

constexpr const char* kBufferType = "LinkCPP";  // the plug-in's, see docs/plugin.md
// OpenMP threads of host and worker starve each other on few cores; a short spin was measured best (docs/plugin.md).
constexpr const char* kSpinCount = "1000";

std::optional<std::string_view> Variable(std::span<const std::string> environment, std::string_view name) {
  for (const std::string& entry : environment) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return std::string_view(entry).substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

bool IsZero(std::string_view number) {
  return number.empty() || number.find_first_not_of('0') == std::string_view::npos;
}

// The value after the last of `names` in the arguments: the last one counts for llama-server too.
std::optional<std::string_view> Argument(std::span<const std::string> arguments,
                                         std::initializer_list<std::string_view> names) {
  std::optional<std::string_view> value;
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (std::ranges::contains(names, arguments[i])) value = arguments[i + 1];
  }
  return value;
}

// The user has said where experts go.
bool PlacesExperts(const HostOptions& options, std::span<const std::string> environment) {
  const auto argument = Argument(options.user_arguments, {"-ot", "--override-tensor"});
  const auto variable = Variable(environment, "LLAMA_ARG_OVERRIDE_TENSOR");
  return (argument && argument->contains("exps")) || (variable && variable->contains("exps"));
}

}  // namespace

bool UsesGpu(const HostOptions& options, std::span<const std::string> environment) {
  auto devices = Argument(options.user_arguments, {"-dev", "--device"});
  if (!devices) devices = Variable(environment, "LLAMA_ARG_DEVICE");
  if (devices && *devices == "none") return false;
  auto layers = Argument(options.user_arguments, {"-ngl", "--gpu-layers", "--n-gpu-layers"});
  if (!layers) layers = Variable(environment, "LLAMA_ARG_N_GPU_LAYERS");
  if (!layers || *layers == "auto") return options.has_gpu;
  return !IsZero(*layers);
}

bool ListsGpu(std::span<const std::string> lines) {
  const auto head =
      std::ranges::find_if(lines, [](const std::string& line) { return line.contains("Available devices"); });
  return head != lines.end() && std::any_of(head + 1, lines.end(), [](const std::string& line) {
           return line.starts_with("  ") && line.contains(": ");
         });
}

HostCommand MakeHostCommand(const HostOptions& options, std::span<const std::string> environment) {
  HostCommand command;
  command.arguments = {
      options.binary, "-m", options.model, "--host", options.api_host, "--port", std::to_string(options.api_port),
      "--no-warmup"};
  if (UsesGpu(options, environment) && !PlacesExperts(options, environment) && !options.experts_are_planned) {
    command.arguments.insert(command.arguments.end(), {"-ot", std::string("exps=") + kBufferType});
  }
  command.arguments.insert(command.arguments.end(), options.user_arguments.begin(), options.user_arguments.end());

  auto& set = command.environment;
  set["GGML_BACKEND_PATH"] = options.plugin;
  set["LINKCPP_COORDINATOR"] = options.coordinator;
  set["LINKCPP_TOKEN"] = options.token;
  set["LINKCPP_DATA_LISTEN"] = options.data_listen;
  set["LINKCPP_LOCAL"] = options.local;
  if (options.wait_s >= 0) set["LINKCPP_WAIT_S"] = std::to_string(options.wait_s);
  if (!options.preload.empty()) {
    const auto before = Variable(environment, "LD_PRELOAD");
    set["LD_PRELOAD"] = before && !before->empty() ? options.preload + ":" + std::string(*before) : options.preload;
  }
  const bool user_tunes_threads = std::ranges::any_of(
      environment, [](const std::string& entry) { return entry.starts_with("OMP_") || entry.starts_with("GOMP_"); });
  if (!user_tunes_threads) set["GOMP_SPINCOUNT"] = kSpinCount;
  return command;
}

}  // namespace linkcpp
