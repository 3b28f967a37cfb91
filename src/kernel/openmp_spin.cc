#include "kernel/openmp_spin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace linkcpp {
namespace {

constexpr const char* kSpin = "GOMP_SPINCOUNT";

bool RuntimeIsLoaded() {
  void* runtime = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (runtime != nullptr) dlclose(runtime);
  return runtime != nullptr;
}

}  // namespace

SpinLimit LimitOpenMpSpin(int count) {
  if (count < 0 || std::getenv(kSpin) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return SpinLimit::kAsIs;
  if (RuntimeIsLoaded()) return SpinLimit::kTooLate;
  setenv(kSpin, std::to_string(count).c_str(), 1);
  return SpinLimit::kSet;
}

void RestartWithOpenMpSpin(char** argv, int count) {
  if (LimitOpenMpSpin(count) != SpinLimit::kTooLate) return;
  setenv(kSpin, std::to_string(count).c_str(), 1);  // so the program that starts now finds it and goes on
  execv("/proc/self/exe", argv);
  unsetenv(kSpin);
}

}  // namespace linkcpp
