// Small parts of starting a child: its pipe and its argument list. How it is started, waited for and ended is the
// caller's: base/child.h runs one to its end, coordinator/host_process.h keeps one.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace linkcpp {

// Both ends of a pipe that children do not inherit; closed with it.
struct ChildPipe {
  int read = -1, write = -1;

  ChildPipe() = default;
  ChildPipe(const ChildPipe&) = delete;
  ChildPipe& operator=(const ChildPipe&) = delete;
  ~ChildPipe() {
    CloseRead();
    CloseWrite();
  }
  bool Open() {  // false: errno says why
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  void CloseRead() {
    if (read >= 0) ::close(std::exchange(read, -1));
  }
  void CloseWrite() {
    if (write >= 0) ::close(std::exchange(write, -1));
  }
};

// For a program that only answers its parent: it ends with it, even when that is killed. Called first thing in main.
inline void EndWithParent() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// argv or envp for exec; borrows the texts.
inline std::vector<char*> ExecPointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace linkcpp
