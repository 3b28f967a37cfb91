// llama-server as our child: started, its output kept, stopped; it never outlives us.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "coordinator/host_command.h"

namespace linkcpp {

class HostProcess {
 public:
  // Its output goes to `log_path` (made anew). Call from a thread that lives as long as the program: the kernel kills
  // the child when that thread ends. kLocal: cannot be started.
  static Result<std::unique_ptr<HostProcess>> Start(const HostCommand& command, const std::string& log_path);
  virtual ~HostProcess() = default;  // kills it if it still runs, and waits for it

  virtual pid_t pid() const = 0;
  // nullopt while it runs; then how it ended: "with status 1", "by signal 9 (Killed)".
  virtual std::optional<std::string> Ended() = 0;
  virtual std::vector<std::string> LastLines() const = 0;  // of its output, up to 20
  virtual void Terminate() = 0;                            // asks it to stop (SIGTERM)
  virtual void Kill() = 0;                                 // SIGKILL
};

// `name` itself if it has a slash, else the first one in PATH. nullopt: not there, or not a program.
std::optional<std::string> FindProgram(const std::string& name);

}  // namespace linkcpp
