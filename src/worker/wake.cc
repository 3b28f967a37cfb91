#include "worker/wake.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <thread>

namespace linkcpp {
namespace {

void Signal(int fd) {
  const int saved = errno;
  const std::uint64_t one = 1;
  if (fd >= 0) (void)!::write(fd, &one, sizeof one);
  errno = saved;
}

}  // namespace

Wake::Wake() : bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), stop_sign_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Wake::~Wake() {
  if (bell_ >= 0) ::close(bell_);
  if (stop_sign_ >= 0) ::close(stop_sign_);
}

void Wake::Ring() {
  Signal(bell_);
}

void Wake::Stop() {
  stopped_.store(true);
  Signal(stop_sign_);
}

void Wake::Wait(std::chrono::milliseconds most) {
  if (stopped()) return;
  if (bell_ < 0 || stop_sign_ < 0) {  // no descriptors left: slower, not deaf
    std::this_thread::sleep_for(std::min(most, std::chrono::milliseconds(50)));
    return;
  }
  pollfd ready[] = {{.fd = bell_, .events = POLLIN, .revents = 0}, {.fd = stop_sign_, .events = POLLIN, .revents = 0}};
  (void)::poll(ready, 2, static_cast<int>(most.count()));
  std::uint64_t count = 0;
  (void)!::read(bell_, &count, sizeof count);
}

bool Wake::WaitForStop(std::chrono::milliseconds most) const {
  if (stopped()) return true;
  if (stop_sign_ < 0) {
    std::this_thread::sleep_for(std::min(most, std::chrono::milliseconds(50)));
  } else {
    pollfd ready{.fd = stop_sign_, .events = POLLIN, .revents = 0};
    (void)::poll(&ready, 1, static_cast<int>(most.count()));
  }
  return stopped();
}

}  // namespace linkcpp
