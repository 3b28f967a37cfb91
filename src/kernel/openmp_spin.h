// How long the threads of ggml's CPU backend spin between graph nodes before they sleep.
//
// ggml is built with OpenMP, and GNU's runtime spins for milliseconds after each parallel region by default. On a
// machine whose cores are shared, with the backbone or with anything else, that starves everyone; not spinning at all
// costs a wake-up per node. A short bounded spin is best there (figures in bench/kernel_bench.cc). The runtime reads
// GOMP_SPINCOUNT once, when it is loaded, and a program that links ggml loads it before main.
#pragma once

namespace linkcpp {

inline constexpr int kDefaultSpinCount = 1000;

enum class SpinLimit {
  kAsIs,     // the environment has GOMP_SPINCOUNT or OMP_WAIT_POLICY, or count is negative: that stands
  kSet,      // the environment has it now, and the runtime will read it
  kTooLate,  // the runtime has been loaded without
};

// Before other threads run: it changes the environment.
SpinLimit LimitOpenMpSpin(int count);

// Where LimitOpenMpSpin would be too late: starts this program once more in its own place (same process id, same
// arguments) with the limit in its environment. First thing in a program's main. Returns if there is nothing to do, or
// if it can not be done. Before anything is printed or other threads run.
void RestartWithOpenMpSpin(char** argv, int count = kDefaultSpinCount);
void RestartWithOpenMpSpin();  // the same where main's arguments are out of reach

}  // namespace linkcpp
