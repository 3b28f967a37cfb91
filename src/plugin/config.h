// The plug-in's configuration: environment variables only, because the host is stock and has no options of ours.
// docs/plugin.md has the table.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"

namespace linkcpp {

struct PluginConfig {
  std::string coordinator;                     // LINKCPP_COORDINATOR; "": no swarm, everything is computed here
  std::string token;                           // LINKCPP_TOKEN, or the content of LINKCPP_TOKEN_FILE
  std::string data_listen = "127.0.0.1:0";     // LINKCPP_DATA_LISTEN
  std::string data_advertise;                  // LINKCPP_DATA_ADVERTISE
  std::string model;                           // LINKCPP_MODEL: the file, when the host does not map it
  bool allow_local = true;                     // LINKCPP_LOCAL=allow|deny
  std::uint64_t local_memory_bytes = 0;        // LINKCPP_LOCAL_MEMORY; 0: a quarter of what is free, 1 GiB at most
  int n_threads = 0;                           // LINKCPP_THREADS, for what is computed here; 0: one per core
  double wait_seconds = 10;                    // LINKCPP_WAIT_S: at the first use, how long to wait for full coverage
  std::chrono::milliseconds deadline{10'000};  // LINKCPP_DEADLINE_MS
  std::chrono::milliseconds hedge_after{0};    // LINKCPP_HEDGE_MS; 0: adaptive
  bool canaries = true;           // LINKCPP_CANARIES=on|off: workers answer canary rows before they are asked
  double spot_share = 0.005;      // LINKCPP_SPOT_CHECKS: of live pairs, checked again
  double check_cpu_share = 0.02;  // LINKCPP_CHECK_CPU: of one core, at most, for checks while serving
  bool trace = false;             // LINKCPP_TRACE=1: say once per layer and recipe how it is computed
};

// `lookup` returns the value of a variable (std::getenv in the plug-in, a map in tests).
// kLocal: a value that is not what its variable takes; the text names both.
Result<PluginConfig> ReadConfig(const std::function<std::optional<std::string>(const char* name)>& lookup);

}  // namespace linkcpp
