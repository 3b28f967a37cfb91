// linkcpp: the command-line program. Reading this file shows all of its commands.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <print>

#include "base/plain_text.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/usage.h"
#include "wire/control.h"

namespace linkcpp {

void ReportFault(CommandContext& context, const Fault& fault, bool json) {
  context.status = 1;
  std::println(stderr, "linkcpp: {}", PlainLines(fault.text));
  if (json) std::println("{}", ErrorJson(fault.code, fault.text));
}

void ReportUsage(CommandContext& context, const Fault& fault, bool json) {
  ReportFault(context, fault, json);
  context.status = 2;
}

namespace {

int Main(int argc, char** argv) {
  CLI::App app("linkcpp: run a Mixture-of-Experts model on machines none of which could hold it", "linkcpp");
  app.require_subcommand(1);
  app.set_version_flag("--version", "linkcpp " LINKCPP_VERSION);
  CommandContext context;
  if (argc > 0) context.program = argv[0];
  // ---- subcommands: one line each
  AddJoinCommand(app, context);
  AddServeCommand(app, context);
  AddTokenCommand(app, context);
  AddStatusCommand(app, context);
  AddShardCommand(app, context);
  AddManifestCommand(app, context);
  AddSynthCommand(app, context);
  AddOracleCommand(app, context);
  AddPlanCommand(app, context);
  AddVerifyCommand(app, context);
  AddMatrixCommand(app, context);
  CheckModelOptions(app);
  const int status = RunCommandLine(app, argc, argv, context.status);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::println(stderr, "linkcpp: standard output can not be written: {}", std::strerror(errno));
    return std::max(status, 1);
  }
  return status;
}

}  // namespace
}  // namespace linkcpp

int main(int argc, char** argv) {
  try {
    return linkcpp::Main(argc, argv);
  } catch (const std::exception& error) {
    std::println(stderr, "linkcpp: unexpected failure: {}", error.what());
    return 1;
  }
}
