#include "cli/model_option.h"

#include <string>

#include "gguf/model.h"

namespace linkcpp {
namespace {

std::string WhyNotAModel(std::string& path) {
  const auto model = ModelFile::Open(path);
  if (!model) return model.error().text;
  const auto experts = model->RequireExperts();
  return experts ? "" : experts.error().text;
}

}  // namespace

void CheckModelOptions(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->check_sname("m") && option->check_lname("model")) option->check(CLI::Validator(WhyNotAModel, ""));
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) CheckModelOptions(*command);
}

CLI::Validator IsGguf() {
  return {[](std::string& path) -> std::string {
            const auto file = ModelFile::Open(path);
            return file ? "" : file.error().text;
          },
          ""};
}

}  // namespace linkcpp
