// A named thread inside somebody else's program: it leaves the program's signals to the program's own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <stop_token>
#include <thread>
#include <utility>

namespace linkcpp {

// `name`: a literal of at most 15 characters. `run` takes a std::stop_token.
template <class Run>
std::jthread StartQuietThread(const char* name, Run run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::jthread thread([name, run = std::move(run)](std::stop_token stop) {
    pthread_setname_np(pthread_self(), name);
    run(stop);
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace linkcpp
