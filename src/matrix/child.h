// Runs another program to its end, with a deadline, and keeps what it said.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace linkcpp {

struct ChildCommand {
  std::vector<std::string> argv;                                 // argv[0] is looked up on PATH unless it has a slash
  std::vector<std::pair<std::string, std::string>> environment;  // set; an empty value: removed
  int timeout_s = 120;
};

struct ChildOutcome {
  int status = 0;  // exit status; 128 + signal when one ended it, as in a shell
  bool timed_out = false;
  bool stopped = false;  // `keep_going` said no
  double seconds = 0;
  std::string out;  // standard output
  std::string err;  // standard error, at most the last 64 KiB

  // The last line of standard error that is not empty; and how it ended, unless by an exit status.
  std::string LastWords() const;
};

// Waits; `keep_going` is asked ten times a second, and false ends the child. kLocal: it can not be started.
Result<ChildOutcome> RunChild(const ChildCommand& command, const std::function<bool()>& keep_going);

}  // namespace linkcpp
