#include "levada/cli/cli.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>

#include "levada/base/atomic_file.h"
#include "levada/base/error.h"
#include "levada/cli/command.h"
#include "levada/cli/error_reporter.h"
#include "levada/cli/help.h"
#include "levada/launch/launch.h"

namespace levada::cli {
namespace {

/// Ends the command immediately on a signal, without leaving a partial file. Outside a job, SIGINT, SIGTERM and SIGHUP
/// end it with the exit status that shells report. Signals that are ignored, as under nohup, stay ignored.
void end_on_signals(bool is_rank) {
  const auto handler_of = [](int signal) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    return action.sa_handler;
  };
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    AtomicFile::remove_partial_files();
    ::_exit(128 + signal);
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_rank && handler_of(signal) != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
  action.sa_handler = [](int signal) {
    AtomicFile::remove_partial_files();
    ::raise(signal);
  };
  action.sa_flags = SA_RESETHAND;
  for (const int signal : {SIGHUP, SIGQUIT, SIGINT, SIGTERM}) {
    if (handler_of(signal) == SIG_DFL) ::sigaction(signal, &action, nullptr);
  }
}

/// Makes all threads share one malloc arena if address space is limited. Otherwise malloc would fail to reserve the 64
/// MiB that it wants for each thread, and would map each block separately.
void share_memory_arena() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) ::mallopt(M_ARENA_MAX, 1);
}

std::string subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* each : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(each->get_name());
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns one sentence that describes the error in the arguments.
std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error,
                           const std::vector<std::string>& arguments) {
  const auto parsed = app.get_subcommands();
  if (parsed.empty() && !arguments.empty()) {
    if (arguments.front().starts_with("-"))
      return fmt::format("unknown option {}; see {} --help", arguments.front(), app.get_name());
    return fmt::format("unknown subcommand {}; the subcommands are {}", arguments.front(), subcommand_names(app));
  }
  std::string what = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const auto extras = app.remaining(true);
    const bool option = !extras.empty() && extras.front().starts_with("-");
    if (option) what = fmt::format("unknown option {}", extras.front());
    else if (!extras.empty()) what = fmt::format("unexpected argument {}", extras.front());
  }
  const auto command = app.get_name() + (parsed.empty() ? "" : " " + parsed.front()->get_name());
  return fmt::format("{}; see {} --help", what, command);
}

/// Reports a failure before the subcommand could join a launched job. Only feed, among `levada`'s subcommands, joins
/// one.
void report_early_error(const CLI::App& app, const std::vector<std::string>& arguments, ErrorKind kind,
                        const std::string& message) {
  const bool joins = app.get_name() != "levada" || (!arguments.empty() && arguments.front() == "feed");
  if (joins) report_failed_start(kind, message);
  else report_error(kind, message);
}

/// Returns the first option of the form --name=, for which CLI11 would take the next argument as the value.
const std::string* option_without_value(const std::vector<std::string>& arguments) {
  const auto found = std::find_if(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument.starts_with("--") && argument.find('=') == argument.size() - 1;
  });
  return found == arguments.end() ? nullptr : &*found;
}

/// Rejects empty values, as from "$UNSET": CLI11 would keep the default.
void reject_empty_values(CLI::App& app) {
  const auto check = [](const std::string& value) {
    return std::string(value.empty() ? "the value is empty; pass one, or omit the option" : "");
  };
  for (auto* option : app.get_options()) {
    if (option->get_items_expected_max() > 0) option->check(check);
  }
  for (auto* subcommand : app.get_subcommands({})) reject_empty_values(*subcommand);
}

/// Parses the arguments. Returns an exit status if the command is already done.
std::optional<int> parse(CLI::App& app, const Invocation& invocation) {
  if (invocation.arguments.empty()) {
    print(app.help());
    return bad_usage;
  }
  if (const auto* option = option_without_value(invocation.arguments)) {
    report_early_error(app, invocation.arguments, ErrorKind::invalid_argument,
                       fmt::format("{} has no value; write one after the =, or omit the option", *option));
    return bad_usage;
  }
  try {
    auto reversed = invocation.arguments;
    std::reverse(reversed.begin(), reversed.end());
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    const auto parsed = app.get_subcommands();
    print(parsed.empty() ? app.help() : short_help(*parsed.front(), app.get_name()));
    return 0;
  } catch (const CLI::CallForAllHelp&) {
    const auto parsed = app.get_subcommands();
    print(parsed.empty() ? app.help() : full_help(*parsed.front(), app.get_name()));
    return 0;
  } catch (const CLI::CallForVersion& version) {
    print(fmt::format("{}\n", version.what()));
    return 0;
  } catch (const CLI::ParseError& error) {
    report_early_error(app, invocation.arguments, ErrorKind::invalid_argument,
                       usage_sentence(app, error, invocation.arguments));
    return bad_usage;
  }
  return {};
}

int run_arguments(Invocation invocation, const Program& program, const AddSubcommands& add) {
  CLI::App app(program.about, program.name);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // a later option overrides
  app.formatter(help_formatter());
  app.set_help_flag("-h,--help", "Help");
  app.set_help_all_flag("--help-all", "Help with all options");
  if (program.name == "levada") invocation.program = take_program(invocation.arguments);
  add(app, invocation);
  reject_empty_values(app);
  if (const auto status = parse(app, invocation)) return *status;
  return status_of(invocation.action, [&](ErrorKind kind, const std::string& message, int) {
    report_early_error(app, invocation.arguments, kind, message);
  });
}

}  // namespace

int run_program(int argc, const char* const* argv, Extensions extensions, const Program& program,
                const AddSubcommands& add) {
  constexpr int output_closed = 128 + SIGPIPE;
  try {
    launch::open_standard_descriptors();
    share_memory_arena();
    std::signal(SIGXFSZ, SIG_IGN);  // reports a file that may not grow as a write error
    end_on_signals(in_job());
    launch::LocalOptions ranks;
    const auto& self = extensions.self;
    if (!self.empty()) ranks = {.program = self.front(), .leading = {self.begin() + 1, self.end()}};
    return run_arguments({.action = {},
                          .arguments = {argv + std::min(argc, 1), argv + argc},
                          .ranks = std::move(ranks),
                          .extensions = std::move(extensions)},
                         program, add);
  } catch (const OutputClosed&) {
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
    return output_closed;
  } catch (const std::exception& error) {
    print_error(error.what());
    return failed;
  }
}

int run(int argc, const char* const* argv, Extensions extensions) {
  const auto add = [](CLI::App& app, Invocation& invocation) {
    app.set_version_flag("--version", "levada " LEVADA_VERSION, "Version");
    app.footer(
        "Example:\n  levada feed corpus.jsonl --tokenizer model.model --mesh dp=2,tp=2 --batch 8 --seq 1024\n\n"
        "levada SUBCOMMAND --help shows the main options and an example; --help-all shows all options.");
    for (const auto& subcommand : {add_feed, add_run, add_plan, add_convert, add_inspect, add_cache, add_doctor}) {
      subcommand(app, invocation);
    }
  };
  return run_program(argc, argv, std::move(extensions),
                     {"levada", "Levada: one reader loads; each rank receives exactly the bytes it needs, once."}, add);
}

}  // namespace levada::cli
