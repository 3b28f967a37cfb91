// linkcpp-layout: what the installed llama.cpp would allocate for a model, where. `linkcpp plan` asks it, in a process
// of its own since libllama may abort.
//
//   linkcpp-layout REQUEST     a LayoutRequest (planner/layout.h) as JSON; "-": from standard input
//
// Prints what is laid out (LaidOut, JSON) and exits with 0; or says on standard error why not, and exits with 1.
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <print>
#include <string>
#include <vector>

#include "layout/lay_out.h"

namespace {

linkcpp::Result<void> Run(const std::string& text) {
  ASSIGN_OR_RETURN(const linkcpp::LayoutRequest request, linkcpp::ParseLayoutRequest(text));
  ASSIGN_OR_RETURN(const std::vector<linkcpp::LaidOut> laid_out, linkcpp::LayOut(request));
  std::println("{}", linkcpp::ToJson(laid_out));
  return {};
}

}  // namespace

int main(int argc, char** argv) try {
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
