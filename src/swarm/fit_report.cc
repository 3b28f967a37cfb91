#include "swarm/fit_report.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

namespace linkcpp {
namespace {

constexpr std::size_t kTextBytes = 200;  // what a coordinator keeps of a text

void Shorten(std::string& text) {
  if (text.size() <= kTextBytes) return;
  std::size_t end = kTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
  text.resize(end);
}

}  // namespace

FittedReport FitReport(BackboneReport report, std::size_t max_bytes) {
  const std::pair<std::string_view, std::function<void()>> steps[] = {
      {"long texts",
       [&] {
         for (NodeCheck& check : report.checks) {
           for (std::string* text : {&check.kernel_class, &check.kernel_model, &check.refusal}) Shorten(*text);
         }
       }},
      {"heat", [&] { report.heat.clear(); }},
      {"nodes that left", [&] { std::erase_if(report.links, [](const LinkReport& link) { return !link.connected; }); }},
      {"checks", [&] { report.checks.clear(); }},
      {"links", [&] { report.links.clear(); }},
  };
  FittedReport fitted{.json = ToJson(report), .dropped = {}};
  for (const auto& [what, drop] : steps) {
    if (fitted.json.size() <= max_bytes) break;
    drop();
    fitted.json = ToJson(report);
    fitted.dropped += (fitted.dropped.empty() ? "" : ", ") + std::string(what);
  }
  return fitted;
}

}  // namespace linkcpp
