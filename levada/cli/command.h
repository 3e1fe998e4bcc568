// What the subcommands have in common. A subcommand is a file with an add_...() that declares its options and leaves,
// once they are parsed, what it does in an Invocation.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/cli/cli.h"
#include "levada/cli/error_reporter.h"
#include "levada/launch/launch.h"
#include "levada/report/style.h"

namespace levada::cli {

/// One call of the command. `action` is what the subcommand does that its arguments name: returns the exit status,
/// throws levada::Error.
struct Invocation {
  std::function<int()> action;
  std::vector<std::string> arguments;  ///< the whole command line after the program's name
  launch::LocalOptions ranks = {};     ///< how this very command is started as a rank
  Extensions extensions = {};
};

void add_feed(CLI::App& app, Invocation& invocation);
void add_plan(CLI::App& app, Invocation& invocation);
void add_doctor(CLI::App& app, Invocation& invocation);
void add_convert(CLI::App& app, Invocation& invocation);
void add_inspect(CLI::App& app, Invocation& invocation);
void add_cache(CLI::App& app, Invocation& invocation);

struct Program {
  std::string name;  ///< "levada"
  std::string about;
};
using AddSubcommands = std::function<void(CLI::App& app, Invocation& invocation)>;

/// Runs a program of subcommands, and returns its exit status. A program other than `levada` joins a launched job
/// whichever its subcommand.
int run_program(int argc, const char* const* argv, Extensions extensions, const Program& program,
                const AddSubcommands& add);

/// An option with a value, whose default the help shows.
template <typename Value>
void add_option(CLI::App& command, const char* name, Value& value, const char* type, const char* text) {
  command.add_option(name, value, text)->type_name(type)->capture_default_str();
}

/// Thrown if the reader of standard output has closed it: the command ends quietly.
struct OutputClosed {};

/// Writes all of `text` to standard output. Throws EngineError if it cannot be written, OutputClosed if its reader has
/// closed it.
void print(std::string_view text);
/// Throws InvalidArgument, naming the option, where the file cannot be written. Leaves no file.
void check_writable(std::string_view option, const std::string& path);
/// How standard output is marked up.
report::Style output_style();

}  // namespace levada::cli
