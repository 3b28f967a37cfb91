// linkcpp token: make, list and revoke the tokens with which workers and backbones join.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <format>
#include <glaze/json.hpp>
#include <memory>
#include <print>

#include "base/plain_text.h"
#include "base/write_json.h"
#include "cli/beside.h"
#include "cli/commands.h"
#include "coordinator/kept.h"
#include "coordinator/state_folder.h"
#include "coordinator/token_store.h"
#include "wire/control.h"

namespace linkcpp {
namespace {

struct Options {
  std::string state;
  std::string name;
  std::string id;
  bool json = false;
};

// ---- what --json prints

struct NewReport {
  std::string id, name, token;
};
struct ListReport {
  std::vector<TokenInfo> tokens;
};

std::string DateText(std::int64_t unix_s) {
  return std::format("{:%F %R} UTC", std::chrono::sys_seconds(std::chrono::seconds(unix_s)));
}

Result<std::unique_ptr<TokenStore>> OpenStore(const Options& options) {
  ASSIGN_OR_RETURN(const std::string folder, OpenStateFolder(options.state));
  return TokenStore::Open(folder + "/" + kTokenStoreFile);
}

// Makes nothing: nullptr if there is no store yet. `where` is then the folder that would have it.
Result<std::unique_ptr<TokenStore>> FindStore(const Options& options, std::string& where) {
  where = options.state;
  if (where.empty()) {
    ASSIGN_OR_RETURN(where, DefaultStateFolder());
  }
  if (!std::filesystem::exists(where + "/" + kTokenStoreFile)) return nullptr;
  return OpenStore(options);
}

Result<void> New(const Options& options) {
  ASSIGN_OR_RETURN(const auto store, OpenStore(options));
  ASSIGN_OR_RETURN(const auto fresh, store->New(options.name));
  if (options.json) {
    std::println("{}", WriteJson<JsonLayout::kIndented>(NewReport{fresh.info.id, fresh.info.name, fresh.token}));
    return {};
  }
  std::println("id     {}\nname   {}\ntoken  {}", fresh.info.id, fresh.info.name, fresh.token);
  std::println(stderr,
               "The token is shown this once only. A worker takes it from its environment:\n"
               "  LINKCPP_TOKEN=… {}linkcpp join URL",
               RunPrefix());
  return {};
}

Result<void> List(const Options& options) {
  std::string where;
  ASSIGN_OR_RETURN(const auto store, FindStore(options, where));
  std::vector<TokenInfo> tokens;
  if (store == nullptr) {
    std::println(stderr, "there are no tokens in {}: `linkcpp serve` or `linkcpp token new` makes the first", where);
  } else {
    ASSIGN_OR_RETURN(tokens, store->List());
  }
  if (options.json) {
    std::println("{}", WriteJson<JsonLayout::kIndented>(ListReport{std::move(tokens)}));
    return {};
  }
  if (tokens.empty()) return {};
  std::println("{:<10}{:<22}{:<22}{}", "ID", "MADE", "REVOKED", "NAME");
  for (const TokenInfo& token : tokens) {
    std::println("{:<10}{:<22}{:<22}{}", token.id, DateText(token.created_unix_s),
                 token.revoked_unix_s == 0 ? "-" : DateText(token.revoked_unix_s), PlainText(token.name));
  }
  return {};
}

Result<void> Revoke(const Options& options) {
  std::string where;
  ASSIGN_OR_RETURN(const auto store, FindStore(options, where));
  if (store == nullptr) return Fail(FaultCode::kRefused, "there is no token {}: {} has none", options.id, where);
  ASSIGN_OR_RETURN(const TokenInfo token, store->Revoke(options.id));
  if (options.json) {
    std::println("{}", WriteJson<JsonLayout::kIndented>(token));
  } else {
    std::println("revoked {} ({})", token.id, PlainText(token.name));
  }
  return {};
}

}  // namespace

void AddTokenCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("token", "make, list and revoke the tokens that workers join with");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, const char* example, Result<void> (*act)(const Options&)) {
    CLI::App* sub = command->add_subcommand(name, what);
    sub->add_option("--state", options->state, "the coordinator's folder (default ~/.local/state/linkcpp)");
    sub->add_flag("--json", options->json, "print the result as JSON");
    sub->footer(std::format("example:\n  linkcpp token {}", example));
    sub->callback([options, &context, act] {
      if (const auto outcome = act(*options); !outcome) ReportFault(context, outcome.error(), options->json);
    });
    return sub;
  };
  add("new", "make a token; it is shown once", "new --name laptop", New)
      ->add_option("--name", options->name, "whose it is, for the list")
      ->default_str("")
      ->check(CLI::Validator(
          [](std::string& name) {
            if (name.size() > kMaxNameBytes) return std::format("longer than {} bytes", kMaxNameBytes);
            return std::string(PlainText(name) == name ? "" : "has characters that are no text");
          },
          ""));
  add("list", "the tokens there are, without the secrets", "list --json", List);
  add("revoke", "make a token stop working, at once", "revoke 1f2e3d4c", Revoke)
      ->add_option("id", options->id, "its id, from `linkcpp token list`")
      ->required();
  command->footer("example:\n  linkcpp token new --name laptop\n  linkcpp token revoke 1f2e3d4c");
}

}  // namespace linkcpp
