#include "levada/cli/command.h"
#include "levada/cli/job.h"

namespace levada::cli {
namespace {

struct PlanArguments {
  JobArguments job;
  bool json = false;
};

int show_plan(const PlanArguments& arguments) {
  const auto plan = parse_job(arguments.job).plan();
  print((arguments.json ? plan.to_json() + "\n" : plan.to_table()));
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<PlanArguments>();
  auto* command = app.add_subcommand("plan", "Show what a feed would move on a mesh of any size, without starting it");
  add_job_options(*command, arguments->job);
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer("Example: what four ranks would be sent a step\n  levada plan --mesh dp=2,tp=2 --batch 8 --seq 1024");
  command->callback([arguments, &chosen] { chosen.action = [arguments] { return show_plan(*arguments); }; });
}

}  // namespace levada::cli
