// linkcpp-layout: what the installed llama.cpp would allocate for a model, where. `linkcpp plan` asks it, in a process
// of its own since libllama may abort.
//
//   linkcpp-layout REQUEST     a LayoutRequest (planner/layout.h) as JSON; "-": from standard input
//
// Prints what is laid out (LaidOut, JSON) and exits with 0; or says on standard error why not, and exits with 1.
// Answers are kept in the user's cache folder: the same libraries say the same of the same header.
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <print>
#include <string>
#include <vector>

#include "base/kept_file.h"
#include "base/spawn.h"
#include "gguf/manifest.h"
#include "layout/lay_out.h"

namespace {

linkcpp::Result<void> Run(const std::string& text) {
  ASSIGN_OR_RETURN(const linkcpp::LayoutRequest request, linkcpp::ParseLayoutRequest(text));
  const std::string cache = linkcpp::DefaultCacheDir(), folder = cache.empty() ? "" : cache + "/layout";
  const std::string question = linkcpp::LayoutQuestion(request);
  if (!question.empty()) {
    if (const auto kept = linkcpp::FindKept(folder, question); kept && linkcpp::ParseLaidOut(*kept)) {
      std::println("{}", *kept);
      return {};
    }
  }
  ASSIGN_OR_RETURN(const std::vector<linkcpp::LaidOut> laid_out, linkcpp::LayOut(request));
  const std::string answer = linkcpp::ToJson(laid_out);
  if (!question.empty()) linkcpp::Keep(folder, question, answer);
  std::println("{}", answer);
  return {};
}

}  // namespace

int main(int argc, char** argv) try {
  linkcpp::EndWithParent();
  if (argc != 2) {
    std::println(stderr, "usage: linkcpp-layout REQUEST|-   (`linkcpp plan` runs it)");
    return 2;
  }
  std::string text = argv[1];
  if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  if (const auto done = Run(text); !done) {
    std::println(stderr, "linkcpp-layout: {}", done.error().text);
    return 1;
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "linkcpp-layout: %s\n", error.what());
  return 1;
}
