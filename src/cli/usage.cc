#include "cli/usage.h"

#include <algorithm>
#include <cctype>
#include <format>
#include <print>
#include <span>

#include "net/tcp.h"
#include "wire/control.h"

namespace linkcpp {
namespace {

std::string NameOf(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : NameOf(*parent) + " " + command.get_name();
}

// `linkcpp token list`: the last of those that were recognised.
const CLI::App& Deepest(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : Deepest(*parsed.front());
}

std::vector<std::string> CommandsOf(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

std::vector<std::string> OptionsOf(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
    for (const std::string& name : option->get_snames()) names.push_back(name);
  }
  return names;
}

std::string Listed(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

bool IsOption(std::string_view word) {
  return word.size() > 1 && word[0] == '-' && std::isdigit(static_cast<unsigned char>(word[1])) == 0;
}

std::string UnknownOption(const CLI::App& command, std::string_view word) {
  const std::string_view typed = word.substr(0, word.find('='));
  std::string text = std::format("{} has no option {}", NameOf(command), typed);
  const std::string near = Nearest(typed.substr(typed.find_first_not_of('-')), OptionsOf(command));
  if (!near.empty()) text += std::format("; did you mean {}{}?", near.size() == 1 ? "-" : "--", near);
  return text;
}

std::string UnknownCommand(const CLI::App& command, std::string_view word) {
  const auto names = CommandsOf(command);
  const std::string near = Nearest(word, names);
  return std::format("{} has no command '{}'; {}", NameOf(command), word,
                     near.empty() ? "there are: " + Listed(names) : "did you mean " + near + "?");
}

// What was wrong; `own` is what the parser says of it.
std::string Explain(const CLI::App& app, const CLI::App& command, const CLI::ParseError& error) {
  const auto left = app.remaining(true);
  if (const auto option = std::ranges::find_if(left, IsOption); option != left.end() && *option != "--") {
    // Before a command was recognised, the command is what is wrong.
    if (command.get_require_subcommand_min() == 0) return UnknownOption(command, *option);
    if (option == left.begin()) return UnknownOption(command, *option);
  }
  const auto word = std::ranges::find_if_not(left, IsOption);
  if (command.get_require_subcommand_min() > 0) {
    if (word != left.end()) return UnknownCommand(command, *word);
    return std::format("{}: which command? There are: {}", NameOf(command), Listed(CommandsOf(command)));
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && word != left.end()) {
    return std::format("{} takes no '{}' there", NameOf(command), *word);
  }
  return std::format("{}: {}", NameOf(command), error.what());
}

}  // namespace

int RunCommandLine(CLI::App& app, int argc, char** argv, const int& status) {
  try {
    app.parse(argc, argv);
    return status;
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    const CLI::App& command = Deepest(app);
    const std::string text = Explain(app, command, error);
    std::println(stderr, "{}", text);
    // A value that is refused with a reason needs no list of options.
    const bool refused = dynamic_cast<const CLI::ValidationError*>(&error) != nullptr && text.ends_with(error.what());
    if (!refused) {
      std::println(stderr, "Run with --help for more information: {} --help", NameOf(command));
    }
    for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
      if (std::string_view(argv[i]) != "--json") continue;
      std::println("{}", ErrorJson(FaultCode::kRefused, text));
      break;
    }
    return 2;
  }
}

std::string Nearest(std::string_view typed, const std::vector<std::string>& candidates) {
  std::string lower(typed);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t n = lower.size(), m = candidate.size();
    std::vector<std::vector<std::size_t>> d(n + 1, std::vector<std::size_t>(m + 1));
    for (std::size_t i = 0; i <= n; ++i) d[i][0] = i;
    for (std::size_t j = 0; j <= m; ++j) d[0][j] = j;
    for (std::size_t i = 1; i <= n; ++i) {
      for (std::size_t j = 1; j <= m; ++j) {
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (lower[i - 1] != candidate[j - 1])});
        if (i > 1 && j > 1 && lower[i - 1] == candidate[j - 2] && lower[i - 2] == candidate[j - 1]) {
          d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
        }
      }
    }
    // A beginning of at least three letters is meant, however long the rest: --mem.
    const std::size_t distance = n >= 3 && candidate.starts_with(lower) ? 1 : d[n][m];
    if (distance < best_distance && distance < m) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

CLI::Validator IsHostPort(bool port_0) {
  return {[port_0](std::string& text) -> std::string {
            const auto address = ParseHostPort(text);
            if (!address) return address.error().text;
            return address->port == 0 && !port_0 ? "'" + text + "': which port?" : "";
          },
          ""};
}

}  // namespace linkcpp
