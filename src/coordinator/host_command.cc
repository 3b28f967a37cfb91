#include "coordinator/host_command.h"

#include <algorithm>
#include <optional>

namespace linkcpp {
namespace {

constexpr const char* kBufferType = "LinkCPP";  // the plug-in's, see docs/plugin.md
// OpenMP threads of host and worker starve each other on few cores; a short spin was measured best (docs/plugin.md).
constexpr const char* kSpinCount = "10000";

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

bool PlacesExperts(std::span<const std::string> arguments) {
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    if ((arguments[i] == "-ot" || arguments[i] == "--override-tensor") && arguments[i + 1].contains("exps"))
      return true;
  }
  return false;
}

}  // namespace

bool AsksForGpu(std::span<const std::string> arguments, std::span<const std::string> environment) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "-ngl" || name == "--gpu-layers" || name == "--n-gpu-layers") {
      return i + 1 < arguments.size() && !IsZero(arguments[i + 1]);
    }
  }
  const auto from_environment = Variable(environment, "LLAMA_ARG_N_GPU_LAYERS");
  return from_environment && !IsZero(*from_environment);
}

HostCommand MakeHostCommand(const HostOptions& options, std::span<const std::string> environment) {
  HostCommand command;
  command.arguments = {
      options.binary, "-m", options.model, "--host", options.api_host, "--port", std::to_string(options.api_port),
      "--no-warmup"};
  if (AsksForGpu(options.user_arguments, environment) && !PlacesExperts(options.user_arguments)) {
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
