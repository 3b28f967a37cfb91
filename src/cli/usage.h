// Running a command line: its exit status, and what is said when it can not be right: what was typed, and what is near.
//
// The rule for every command: 0 done; 1 it could not be done (port taken, peer away, token refused, disk full, the
// model has no such layer); 2 the command line can not be right whatever the world is like: an unknown command or
// option, a value that does not parse, a model file that is missing or none.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace linkcpp {

// Parses and runs the callbacks; `status` is what they set. On wrong usage one line on standard error, one with where
// help is, and with --json an error object on standard output.
int RunCommandLine(CLI::App& app, int argc, char** argv, const int& status);

// The candidate that `typed` is most like, if one is near enough to be meant; "": none is. A swap, a missing, a wrong
// and an additional letter each count one.
std::string Nearest(std::string_view typed, const std::vector<std::string>& candidates);

// For ->check(): "host:port". `port_0`: whether 0 is a port ("any").
CLI::Validator IsHostPort(bool port_0);

}  // namespace linkcpp
