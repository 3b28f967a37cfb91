// linkcpp join: this machine becomes a worker. The same program as linkcpp-expert-worker.
#include "cli/commands.h"
#include "cli/worker_program.h"

namespace linkcpp {

void AddJoinCommand(CLI::App& app, CommandContext& context) {
  auto* command =
      app.add_subcommand("join", "Give this machine's memory to a swarm: hold expert slices and compute them");
  AddWorkerProgram(*command, context.status);
}

}  // namespace linkcpp
