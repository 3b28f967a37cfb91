#include "kernel/openmp_spin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

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

void RestartWithOpenMpSpin() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) return;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  RestartWithOpenMpSpin(argv.data());
}

}  // namespace linkcpp
