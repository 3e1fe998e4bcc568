// The parts that all subcommands share. A subcommand is a file with an add_...() that declares its options and, once
// they are parsed, stores its action in an Invocation.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "levada/cli/cli.h"
#include "levada/cli/error_reporter.h"
#include "levada/launch/launch.h"
#include "levada/report/style.h"

namespace levada::cli {

/// One call of the command. `action` runs the subcommand that the arguments select, and returns the exit status or
/// throws levada::Error.
struct Invocation {
  std::function<int()> action;
  std::vector<std::string> arguments;     ///< the command line after the program's name, without `program`
  std::vector<std::string> program = {};  ///< the program that `run` starts, with its arguments
  launch::LocalOptions ranks = {};        ///< how this command is started as a rank
  Extensions extensions = {};
};

/// Maximum number of ranks that the command starts on one machine.
inline constexpr int max_local_ranks = 256;

void add_feed(CLI::App& app, Invocation& invocation);
void add_run(CLI::App& app, Invocation& invocation);
void add_plan(CLI::App& app, Invocation& invocation);
void add_doctor(CLI::App& app, Invocation& invocation);
void add_convert(CLI::App& app, Invocation& invocation);
void add_inspect(CLI::App& app, Invocation& invocation);
void add_cache(CLI::App& app, Invocation& invocation);

/// Removes and returns the program that `run` starts, with its arguments. Also removes a `--` before it.
std::vector<std::string> take_program(std::vector<std::string>& arguments);

struct Program {
  std::string name;  ///< "levada"
  std::string about;
};
using AddSubcommands = std::function<void(CLI::App& app, Invocation& invocation)>;

/// Runs a program of subcommands and returns its exit status. In a program other than `levada`, every subcommand joins
/// a launched job.
int run_program(int argc, const char* const* argv, Extensions extensions, const Program& program,
                const AddSubcommands& add);

/// Rejects a text that is not an integer in the range of Value. CLI11 itself would read a leading 0 as octal and clamp
/// a number that is out of range.
template <typename Value>
CLI::Validator decimal() {
  const auto normalize = [](std::string& text) -> std::string {
    Value value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) return text + " is out of range";
    if (error != std::errc() || end != text.data() + text.size()) {
      return text + (std::is_unsigned_v<Value> ? " is not a whole number from 0 on" : " is not a whole number");
    }
    text = std::to_string(value);
    return {};
  };
  return {[normalize](std::string& text) { return text.empty() ? std::string() : normalize(text); }, ""};
}

/// Adds an option with a value, whose default the help shows.
template <typename Value>
void add_option(CLI::App& command, const char* name, Value& value, const char* type, const char* text) {
  auto* option = command.add_option(name, value, text)->type_name(type)->capture_default_str();
  if constexpr (std::is_integral_v<Value>) option->transform(decimal<Value>());
}

/// Adds an optional integer option, whose default the help does not show.
template <typename Number>
void add_number(CLI::App& command, const char* name, Number& value, const char* type, const char* text) {
  using Value = std::decay_t<decltype(*std::optional(value))>;
  command.add_option(name, value, text)->type_name(type)->transform(decimal<Value>());
}

/// Thrown when the reader of standard output has closed it. The command then exits silently.
struct OutputClosed {};

/// Writes all of `text` to standard output. Throws EngineError if it cannot be written, OutputClosed if its reader has
/// closed it.
void print(std::string_view text);
/// An output file that an option names.
struct OutputFile {
  std::string_view option;
  std::string path;
  std::string may_replace = {};  ///< an input that it may replace
};
/// Validates the output files. Throws InvalidArgument that names the option if a file cannot be written, exists but is
/// not a regular file (a device, a pipe), or is the same file as another output or one of `inputs`. Calls `inputs` only
/// if an output file exists. Creates no file.
void check_outputs(
    const std::vector<OutputFile>& outputs,
    const std::function<std::vector<std::string>()>& inputs = [] { return std::vector<std::string>(); });
/// Returns the style for standard output.
report::Style output_style();

}  // namespace levada::cli
