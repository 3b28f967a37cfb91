// Options that name a model file: what is missing, or is no model with experts, is wrong usage in every command.
#pragma once

#include <CLI/CLI.hpp>

namespace linkcpp {

// Gives every `-m,--model` of the app and its subcommands a check that opens the file: its headers, all splits.
void CheckModelOptions(CLI::App& app);

// For ->check() of another option: a GGUF file whose headers can be read.
CLI::Validator IsGguf();

}  // namespace linkcpp
