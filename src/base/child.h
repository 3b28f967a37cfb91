// Other programs with a deadline: run to their end, keeping what they said, or kept to answer questions.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/spawn.h"

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

// A program that answers each line on its standard input with one on its standard output. Ended when this goes. One
// thread at a time.
class AnsweringChild {
 public:
  // kLocal: it can not be started.
  static Result<std::unique_ptr<AnsweringChild>> Start(ChildCommand command);
  ~AnsweringChild();
  AnsweringChild(const AnsweringChild&) = delete;
  AnsweringChild& operator=(const AnsweringChild&) = delete;

  // `question`: one line, without its end; so is the answer, of 4 MiB at most. kLocal: it ended (its last words), it
  // did not answer within the command's timeout_s, or `keep_going`, asked ten times a second, said no; it is ended
  // then.
  Result<std::string> Ask(std::string_view question, const std::function<bool()>& keep_going);
  // The signal that ended it while it was asked, not ours; 0: none.
  int signal() const { return ended_by_us_ || status_ <= 128 ? 0 : status_ - 128; }

 private:
  explicit AnsweringChild(ChildCommand command) : command_(std::move(command)) {}
  int End(int grace_ms);  // its status

  const ChildCommand command_;
  int pid_ = 0;  // 0: it has ended
  int status_ = 0;
  bool ended_by_us_ = false;
  int socket_ = -1;
  ChildPipe err_;
};

}  // namespace linkcpp
