#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/cli/command.h"
#include "levada/cli/error_reporter.h"
#include "levada/launch/launch.h"

namespace levada::cli {
namespace {

namespace fs = std::filesystem;

constexpr auto grace = std::chrono::seconds(5);  ///< enough for ranks to save their work, such as a checkpoint

struct RunArguments {
  std::optional<int> ranks = {};
  bool is_module = false;
  std::vector<std::string> help_only = {};
};

bool can_run(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

/// Finds a program on PATH, as a shell does.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (can_run(name)) return name;
    throw InvalidArgument(fmt::format("{} is not an executable file", printable(name)));
  }
  const char* path = std::getenv("PATH");
  std::string_view folders = path != nullptr ? path : "/usr/bin:/bin";
  for (;;) {
    const auto end = folders.find(':');
    const auto found = fs::path(folders.substr(0, end)) / name;
    if (can_run(found)) return found.is_absolute() ? found.string() : (fs::path(".") / found).string();
    if (end == std::string_view::npos) break;
    folders.remove_prefix(end + 1);
  }
  throw InvalidArgument(
      fmt::format("cannot find the program {} on PATH{}", printable(name),
                  can_run(name) ? fmt::format("; write ./{} to run the one in this folder", name) : ""));
}

/// Returns whether Python runs the program: it is a script or a folder with a __main__.py.
bool is_for_python(const std::string& program) {
  std::error_code error;
  return program.ends_with(".py") || fs::is_directory(program, error);
}

/// Returns the command line of a rank, beginning with the program.
std::vector<std::string> command_of(const RunArguments& arguments, const Invocation& invocation) {
  auto command = invocation.program;
  if (!arguments.is_module && !is_for_python(command.front())) {
    command.front() = find_program(command.front());
    return command;
  }
  std::error_code error;
  if (!arguments.is_module && !fs::exists(command.front(), error)) {
    throw InvalidArgument(fmt::format("the file {} does not exist", printable(command.front())));
  }
  if (arguments.is_module) command.insert(command.begin(), "-m");
  const auto& python = invocation.extensions.python;
  command.insert(command.begin(), python.empty() ? find_program("python3") : python);
  return command;
}

int run_ranks(const RunArguments& arguments, const Invocation& invocation) {
  if (!arguments.ranks) {
    throw InvalidArgument(
        "-n, the number of ranks, is missing; pass it before PROGRAM, as in levada run -n 4 train.py");
  }
  const int ranks = *arguments.ranks;
  if (ranks < 1 || ranks > max_local_ranks) {
    throw InvalidArgument(
        fmt::format("-n is {}; it must be from 1 to {}; see levada run --help", ranks, max_local_ranks));
  }
  if (invocation.program.empty() || invocation.program.front().empty()) {
    throw InvalidArgument("no PROGRAM is named; see levada run --help");
  }
  const auto command = command_of(arguments, invocation);
  const auto result =
      launch::run_local(ranks, {command.begin() + 1, command.end()},
                        {.program = command.front(), .grace = grace, .signal_grace = grace, .any_program = true});
  if (!result.message.empty()) print_error(result.message);
  return result.exit_status;
}

}  // namespace

std::vector<std::string> take_program(std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front() != "run") return {};
  auto at = arguments.begin() + 1;
  while (at != arguments.end() && at->starts_with("-") && *at != "--") {
    const bool takes_next = *at == "-n" || *at == "--ranks";
    at += takes_next && at + 1 != arguments.end() ? 2 : 1;
  }
  std::vector<std::string> program(at != arguments.end() && *at == "--" ? at + 1 : at, arguments.end());
  arguments.erase(at, arguments.end());
  return program;
}

void add_run(CLI::App& app, Invocation& invocation) {
  auto arguments = std::make_shared<RunArguments>();
  auto* command = app.add_subcommand(
      "run", "Start the ranks of any program on this machine, with the environment variables that torchrun sets");
  command->add_option("-n,--ranks", arguments->ranks, "Number of ranks (required)")
      ->type_name("N")
      ->transform(decimal<int>());
  command->add_flag("-m,--module", arguments->is_module, "Run a Python module instead of PROGRAM, as python -m does");
  command
      ->add_option("PROGRAM", arguments->help_only,
                   "Python script (.py) or program on PATH, followed by its own arguments")
      ->type_name("");
  command->footer(
      "Examples:\n  levada run -n 4 train.py --epochs 3\n  levada run -n 4 -m package.train\n"
      "  levada run -n 2 python -X dev train.py");
  command->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation] { return run_ranks(*arguments, invocation); };
  });
}

}  // namespace levada::cli
