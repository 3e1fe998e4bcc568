// What the subcommands have in common. A subcommand is a file with an add_...() that declares its options and leaves,
// once they are parsed, what it does in an Invocation.
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

/// One call of the command. `action` is what the subcommand does that its arguments name: returns the exit status,
/// throws levada::Error.
struct Invocation {
  std::function<int()> action;
  std::vector<std::string> arguments;     ///< the whole command line after the program's name, without `program`
  std::vector<std::string> program = {};  ///< what `run` is to run, with its arguments
  launch::LocalOptions ranks = {};        ///< how this very command is started as a rank
  Extensions extensions = {};
};

/// How many ranks the command starts on one machine at most.
inline constexpr int max_local_ranks = 256;

void add_feed(CLI::App& app, Invocation& invocation);
void add_run(CLI::App& app, Invocation& invocation);
void add_plan(CLI::App& app, Invocation& invocation);
void add_doctor(CLI::App& app, Invocation& invocation);
void add_convert(CLI::App& app, Invocation& invocation);
void add_inspect(CLI::App& app, Invocation& invocation);
void add_cache(CLI::App& app, Invocation& invocation);

/// Removes from the arguments of `run` the program that it is to run, with its arguments, and returns it. A `--` before
/// it is removed, too.
std::vector<std::string> take_program(std::vector<std::string>& arguments);

struct Program {
  std::string name;  ///< "levada"
  std::string about;
};
using AddSubcommands = std::function<void(CLI::App& app, Invocation& invocation)>;

/// Runs a program of subcommands, and returns its exit status. A program other than `levada` joins a launched job
/// whichever its subcommand.
int run_program(int argc, const char* const* argv, Extensions extensions, const Program& program,
                const AddSubcommands& add);

/// Refuses what is no whole number in the range of Value. CLI11 takes a leading 0 for an octal number, and gives the
/// nearest number for one out of range.
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

/// An option with a value, whose default the help shows.
template <typename Value>
void add_option(CLI::App& command, const char* name, Value& value, const char* type, const char* text) {
  auto* option = command.add_option(name, value, text)->type_name(type)->capture_default_str();
  if constexpr (std::is_integral_v<Value>) option->transform(decimal<Value>());
}

/// The same of a whole number that need not be given; the help shows no default.
template <typename Number>
void add_number(CLI::App& command, const char* name, Number& value, const char* type, const char* text) {
  using Value = std::decay_t<decltype(*std::optional(value))>;
  command.add_option(name, value, text)->type_name(type)->transform(decimal<Value>());
}

/// Thrown if the reader of standard output has closed it: the command ends quietly.
struct OutputClosed {};

/// Writes all of `text` to standard output. Throws EngineError if it cannot be written, OutputClosed if its reader has
/// closed it.
void print(std::string_view text);
/// A file that an option names to be written.
struct OutputFile {
  std::string_view option;
  std::string path;
  std::string may_replace = {};  ///< that input
};
/// Throws InvalidArgument, naming the option, where a file cannot be written, is there and not a regular file (a
/// device, a pipe), or is the same as another one or as one of `inputs`, which is called only where a file is there.
/// Leaves no file.
void check_outputs(
    const std::vector<OutputFile>& outputs,
    const std::function<std::vector<std::string>()>& inputs = [] { return std::vector<std::string>(); });
/// How standard output is marked up.
report::Style output_style();

}  // namespace levada::cli
