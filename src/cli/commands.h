// One function per subcommand of `linkcpp`. Each adds its options to the app and sets a callback that returns the exit
// status through `status`: 0 done, 1 failed, 2 wrong usage (cli/usage.h has the rule). A new subcommand is one file,
// one line here, one in main.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"

namespace linkcpp {

struct CommandContext {
  int status = 0;
  std::string program = "linkcpp";  // argv[0]
};

// Prints "linkcpp: <text>" on standard error (a JSON object on standard output when `json`) and sets the status to 1.
void ReportFault(CommandContext& context, const Fault& fault, bool json = false);
// The same with status 2: the model or an option can not be used, and nothing was computed.
void ReportUsage(CommandContext& context, const Fault& fault, bool json = false);

void AddJoinCommand(CLI::App& app, CommandContext& context);
void AddOracleCommand(CLI::App& app, CommandContext& context);
void AddSynthCommand(CLI::App& app, CommandContext& context);
void AddManifestCommand(CLI::App& app, CommandContext& context);
void AddShardCommand(CLI::App& app, CommandContext& context);
void AddServeCommand(CLI::App& app, CommandContext& context);
void AddTokenCommand(CLI::App& app, CommandContext& context);
void AddStatusCommand(CLI::App& app, CommandContext& context);
void AddPlanCommand(CLI::App& app, CommandContext& context);
void AddMatrixCommand(CLI::App& app, CommandContext& context);
void AddVerifyCommand(CLI::App& app, CommandContext& context);
void AddVerifyDecode(CLI::App& verify, CommandContext& context);  // below `verify`

}  // namespace linkcpp
