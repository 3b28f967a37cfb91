// A worker: joins a coordinator, downloads and verifies the slices it is told to hold, and answers dispatches from
// backbones. Dials out only. Needs libggml, not libllama.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "kernel/device.h"
#include "net/http_client.h"

namespace linkcpp {

struct WorkerOptions {
  HttpEndpoint coordinator;
  std::string name;                // "": the host name
  std::string model;               // "": the coordinator's only one
  std::uint64_t memory_bytes = 0;  // 0: a sane share of what is free
  std::string layers, experts;     // ranges, chosen by hand; "": the coordinator chooses
  std::string cache_dir;           // content-addressed slabs; "": the user's cache folder
  std::string software;            // "linkcpp 0.1.0", for `linkcpp status`
  DeviceOptions device;
};

// What a progress bar shows. Called a few times a second from the worker's control thread.
struct WorkerProgress {
  std::string state;           // "joining", "downloading", "ready", "idle": nothing to hold, "reconnecting", "leaving"
  std::string model, node_id;  // once joined
  std::string error;           // what is wrong at the moment; "": nothing
  std::uint64_t downloaded_bytes = 0;  // since the start
  std::uint64_t wanted_bytes = 0;      // still to download
  std::uint64_t slices_ready = 0, slices_wanted = 0;
  std::uint64_t memory_used_bytes = 0, memory_bytes = 0;
  std::uint64_t pairs_computed = 0, dispatches = 0;
  int backbones = 0;  // connected
};

class Worker {
 public:
  // kLocal: no such device, the cache folder can not be written, more memory than there is. Opens the device.
  static Result<std::unique_ptr<Worker>> Create(const WorkerOptions& options, LogSink& log,
                                                std::function<void(const WorkerProgress&)> on_progress);
  virtual ~Worker() = default;

  // Runs until Stop(). Returns a fault only for what retrying can not mend (wrong token, no such model). Call once.
  virtual Result<void> Run() = 0;
  // Leaves cleanly: finishes what is in flight, says goodbye. Any thread; async-signal-safe.
  virtual void Stop() = 0;
};

}  // namespace linkcpp
