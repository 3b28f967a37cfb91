// linkcpp status: who is there, what is covered, and what goes over the links.
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <print>

#include "cli/commands.h"
#include "cli/swarm_view.h"
#include "coordinator/kept.h"
#include "coordinator/state_folder.h"
#include "coordinator/status_text.h"
#include "net/http_client.h"
#include "wire/control.h"

namespace linkcpp {
namespace {

struct Options {
  std::string url;
  std::string state;
  bool json = false;
};

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// --url and the environment, and what is missing there from the last `serve` of this user.
Result<HttpEndpoint> Endpoint(const Options& options) {
  std::string url = options.url.empty() ? FromEnvironment("LINKCPP_COORDINATOR") : options.url;
  std::string token = FromEnvironment("LINKCPP_TOKEN");
  if (url.empty() || token.empty()) {
    std::string folder = options.state;
    if (folder.empty()) {
      ASSIGN_OR_RETURN(folder, DefaultStateFolder());
    }
    ASSIGN_OR_RETURN(const std::optional<ServeRecord> record, LoadServeRecord(folder));
    if (!record && url.empty()) {
      return Fail(FaultCode::kLocal,
                  "no `linkcpp serve` has run here: say where with --url (or LINKCPP_COORDINATOR) and LINKCPP_TOKEN");
    }
    // A token goes only to the coordinator it is of.
    if (record && (url.empty() || url == record->url.substr(0, record->url.find('#')))) url = record->url;
    if (record && token.empty() && url == record->url) token = record->token;
  }
  if (token.empty()) return Fail(FaultCode::kRefused, "no token for {}: set LINKCPP_TOKEN", url);
  return ParseEndpoint(url, token);
}

// What is wrong with what was typed or set, whoever listens where.
Result<void> CheckUsage(const Options& options) {
  const std::string url = options.url.empty() ? FromEnvironment("LINKCPP_COORDINATOR") : options.url;
  const std::string token = FromEnvironment("LINKCPP_TOKEN");
  if (url.empty()) return {};
  ASSIGN_OR_RETURN(const HttpEndpoint endpoint, ParseEndpoint(url, token));
  return {};
}

TextStyle TerminalStyle() {
  TextStyle style;
  if (::isatty(STDOUT_FILENO) == 0) return style;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) style.width = size.ws_col;
  style.color = FromEnvironment("NO_COLOR").empty() && FromEnvironment("TERM") != "dumb";
  return style;
}

Result<std::string> Ask(const HttpEndpoint& endpoint, const Options& options) {
  SwarmView swarm(endpoint);
  ASSIGN_OR_RETURN(const std::string json, swarm.StatusJson());
  if (options.json) return json + "\n";
  ASSIGN_OR_RETURN(const StatusReply status, FromJson<StatusReply>(json));
  return StatusText(status, TerminalStyle());
}

}  // namespace

void AddStatusCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("status", "nodes, holdings, coverage and traffic of a running coordinator");
  command->add_option("--url", options->url, "the coordinator (default: LINKCPP_COORDINATOR, or the last serve here)");
  command->add_option("--state", options->state, "the coordinator's folder (default ~/.local/state/linkcpp)");
  command->add_flag("--json", options->json, "print the answer of /api/status");
  command->footer("example:\n  linkcpp status\n  LINKCPP_TOKEN=… linkcpp status --url http://127.0.0.1:8090");
  command->callback([options, &context] {
    if (const auto usable = CheckUsage(*options); !usable) {
      return ReportUsage(context, usable.error(), options->json);
    }
    const auto endpoint = Endpoint(*options);
    if (!endpoint && endpoint.error().code == FaultCode::kRefused)  // as for plan --swarm: a token is part of asking
      return ReportUsage(context, endpoint.error(), options->json);
    if (!endpoint) return ReportFault(context, endpoint.error(), options->json);
    const auto text = Ask(*endpoint, *options);
    if (!text) return ReportFault(context, text.error(), options->json);
    std::print("{}", *text);
  });
}

}  // namespace linkcpp
