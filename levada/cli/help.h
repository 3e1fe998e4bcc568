// A subcommand with fifty options shows few of them in --help: those that most users need. --help-all shows all.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace levada::cli {

/// Makes these the options that --help shows. To be called after all options have been added.
void show_first(CLI::App& command, const std::vector<std::string>& names);

/// Returns what --help shows, `program` being the name before the command's. The command cannot be used afterwards.
std::string short_help(CLI::App& command, const std::string& program);
/// Returns what --help-all shows.
std::string full_help(const CLI::App& command, const std::string& program);

/// Formats help without the lists of options that exclude or need each other: errors name them.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace levada::cli
