// How llama-server is called so that it becomes our backbone: arguments and environment. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace linkcpp {

struct HostOptions {
  std::string binary;  // path of llama-server
  std::string model;   // path of the model
  std::string api_host;
  std::uint16_t api_port = 0;
  std::string plugin;       // path of libggml-linkcpp.so
  std::string preload;      // path of liblinkcpp-preload.so; "": none
  std::string coordinator;  // URL with fingerprint
  std::string token;
  std::string data_listen;
  std::string local;     // "allow" | "deny"
  int wait_s = -1;       // LINKCPP_WAIT_S: how long the plug-in waits for coverage; below 0: its own default
  bool has_gpu = false;  // llama-server lists a GPU: by default it puts layers there
  bool experts_are_planned = false;  // `user_arguments` say where all experts go; without an -ot all to the GPU
  std::vector<std::string> user_arguments;
};

struct HostCommand {
  std::vector<std::string> arguments;              // [0] is the program
  std::map<std::string, std::string> environment;  // set on top of our own
};

// `environment`: ours, "NAME=value" each.
HostCommand MakeHostCommand(const HostOptions& options, std::span<const std::string> environment);

// Whether llama-server will put layers on a GPU: as its arguments say, else LLAMA_ARG_N_GPU_LAYERS in the environment,
// else whether it has one. It offers our device the experts of CPU layers only, so such layers need "-ot exps=LinkCPP".
bool UsesGpu(const HostOptions& options, std::span<const std::string> environment);

// What `llama-server --list-devices` printed: is a GPU among it?
bool ListsGpu(std::span<const std::string> lines);

}  // namespace linkcpp
