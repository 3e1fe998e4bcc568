#include "levada/cli/help.h"

#include <fmt/format.h>

#include <algorithm>

namespace levada::cli {
namespace {

constexpr const char* first_group = "Options";

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const auto text = CLI::Formatter::make_option_opts(option);
    return text.substr(0, std::min(text.find(" Needs:"), text.find(" Excludes:")));
  }
};

}  // namespace

void show_first(CLI::App& command, const std::vector<std::string>& names) {
  for (auto* option : command.get_options()) {
    const bool is_help = option == command.get_help_ptr() || option == command.get_help_all_ptr();
    if (!is_help && option->get_group() == first_group) option->group("More options");
  }
  for (const auto& name : names) command.get_option(name)->group(first_group);
}

std::string short_help(CLI::App& command, const std::string& program) {
  int hidden = 0;
  for (auto* option : command.get_options()) {
    if (!option->nonpositional() || option->get_group().empty() || option->get_group() == first_group) continue;
    option->group("");
    ++hidden;
  }
  if (hidden == 0) {
    command.set_help_all_flag();
  } else {
    command.footer(fmt::format("{}\n\n{} {} --help-all shows {} more options.", command.get_footer(), program,
                               command.get_name(), hidden));
  }
  return full_help(command, program);
}

std::string full_help(const CLI::App& command, const std::string& program) {
  auto help = command.help(program);
  // CLI11 also leaves blank lines between hidden groups.
  for (auto at = help.find("\n\n\n"); at != std::string::npos; at = help.find("\n\n\n", at)) help.erase(at, 1);
  return help;
}

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  return std::make_shared<HelpFormatter>();
}

}  // namespace levada::cli
