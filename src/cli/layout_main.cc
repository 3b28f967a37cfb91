// linkcpp-layout: what the installed llama.cpp would allocate for a model, where. `linkcpp plan` asks it, in a process
// of its own since libllama may abort.
//
//   linkcpp-layout REQUEST     a LayoutRequest (planner/layout.h) as JSON
//   linkcpp-layout -           one on each line of standard input, all of the same devices
//
// Prints what is laid out (LaidOut, JSON) on a line and exits with 0; or says on standard error why not, and exits with
// 1. With "-" it prints {"refused": "why"} instead and goes on.
// Answers are kept in the user's cache folder: the same libraries say the same of the same header.
#include <cstdio>
#include <exception>
#include <iostream>
#include <print>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/kept_file.h"
#include "base/spawn.h"
#include "gguf/manifest.h"
#include "layout/lay_out.h"

namespace {

linkcpp::Result<std::string> Answer(const std::string& text) {
  ASSIGN_OR_RETURN(const linkcpp::LayoutRequest request, linkcpp::ParseLayoutRequest(text));
  const std::string cache = linkcpp::DefaultCacheDir(), folder = cache.empty() ? "" : cache + "/layout";
  const std::string question = linkcpp::LayoutQuestion(request);
  if (!question.empty()) {
    if (auto kept = linkcpp::FindKept(folder, question); kept && linkcpp::ParseLaidOut(*kept)) return *std::move(kept);
  }
  ASSIGN_OR_RETURN(const std::vector<linkcpp::LaidOut> laid_out, linkcpp::LayOut(request));
  std::string answer = linkcpp::ToJson(laid_out);
  if (!question.empty()) linkcpp::Keep(folder, question, answer);
  return answer;
}

void AnswerAll() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = Answer(line);
    std::println("{}", answer ? *answer : linkcpp::RefusalJson(answer.error().text));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  linkcpp::EndWithParent();
  if (argc != 2) {
    std::println(stderr, "usage: linkcpp-layout REQUEST|-   (`linkcpp plan` runs it)");
    return 2;
  }
  if (std::string_view(argv[1]) == "-") {
    AnswerAll();
    return 0;
  }
  const auto answer = Answer(argv[1]);
  if (!answer) {
    std::println(stderr, "linkcpp-layout: {}", answer.error().text);
    return 1;
  }
  std::println("{}", *answer);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "linkcpp-layout: %s\n", error.what());
  return 1;
}
