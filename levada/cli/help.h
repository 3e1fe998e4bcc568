// Short and full help. A subcommand may have fifty options, so --help shows only those that most users need; --help-all
// shows all of them.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace levada::cli {

/// Selects the options that --help shows. Must be called after all options have been added.
void show_first(CLI::App& command, const std::vector<std::string>& names);

/// Returns the text of --help; `program` is the name before the subcommand's. The command cannot be used afterwards.
std::string short_help(CLI::App& command, const std::string& program);
/// Returns the text of --help-all.
std::string full_help(const CLI::App& command, const std::string& program);

/// Formats help without the options that exclude or require each other; error messages name them.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace levada::cli
