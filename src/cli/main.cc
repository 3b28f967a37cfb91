// linkcpp: the command-line program. Reading this file shows all of its commands.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <print>

#include "cli/commands.h"

namespace linkcpp {

void ReportFault(CommandContext& context, const Fault& fault, bool json) {
  context.status = 1;
  std::println(stderr, "linkcpp: {}", fault.text);
  if (json) {
    std::string escaped;
    for (const char c : fault.text) {
      if (c == '"' || c == '\\') escaped += '\\';
      escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    std::println(R"({{"error": {{"code": "{}", "message": "{}"}}}})", FaultCodeName(fault.code), escaped);
  }
}

void ReportWrongUsage(CommandContext& context, const Fault& fault, bool json) {
  ReportFault(context, fault, json);
  context.status = 2;
}

namespace {

int Main(int argc, char** argv) {
  CLI::App app("linkcpp: run a Mixture-of-Experts model on machines none of which could hold it", "linkcpp");
  app.require_subcommand(1);
  app.set_version_flag("--version", "linkcpp " LINKCPP_VERSION);
  CommandContext context;
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

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    return status == 0 ? 0 : 2;
  }
  return context.status;
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
