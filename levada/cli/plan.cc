#include "levada/base/error.h"
#include "levada/cli/cluster.h"
#include "levada/cli/command.h"
#include "levada/cli/exchange_spec.h"
#include "levada/cli/job.h"
#include "levada/cli/small_file.h"
#include "levada/exchange/planner.h"

namespace levada::cli {
namespace {

struct PlanArguments {
  JobArguments job;
  ClusterArguments cluster;
  std::string exchange;
  bool json = false;
};

ExchangePlan plan_of_file(const std::string& path) {
  constexpr std::int64_t most_mib = 1024;
  const auto text = read_small_file("exchange", path, most_mib);
  try {
    const auto spec = ExchangeSpec::from_json(text);
    return plan_exchange(spec.ownership, spec.request, spec.options);
  } catch (const InvalidArgument& error) {
    refuse_file("exchange", path, error.what());
  }
}

int show_plan(const PlanArguments& arguments) {
  if (!arguments.exchange.empty()) {
    const auto plan = plan_of_file(arguments.exchange);
    print(arguments.json ? plan.to_json(true) + "\n" : plan.to_table());
    return 0;
  }
  if (arguments.cluster.hosts) {
    const auto comparison = compare_readers(arguments.job, arguments.cluster);
    print(arguments.json ? comparison.to_json() + "\n" : comparison.to_table());
    return 0;
  }
  const auto plan = parse_job(arguments.job).plan();
  print((arguments.json ? plan.to_json() + "\n" : plan.to_table()));
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Invocation& invocation) {
  auto arguments = std::make_shared<PlanArguments>();
  auto* command = app.add_subcommand(
      "plan", "Show what a feed, or an exchange, would move on a mesh of any size, without starting it");
  add_job_options(*command, arguments->job);
  add_cluster_options(*command, arguments->cluster);
  const auto of_a_feed = command->get_options([](const CLI::Option* option) { return option->get_name() != "--help"; });
  auto* exchange =
      command
          ->add_option("--exchange", arguments->exchange,
                       "Plan an exchange of samples instead: a JSON file of holders, destinations and keys")
          ->type_name("FILE");
  for (auto* option : of_a_feed) exchange->excludes(option);
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(
      "Examples: what four ranks would be sent a step, and which ranks should read on 64 hosts\n"
      "  levada plan --mesh dp=2,tp=2 --batch 8 --seq 1024\n"
      "  levada plan --hosts 64x8 --link 100Gb/s --mesh dp=64,tp=8");
  command->callback([arguments, &invocation] { invocation.action = [arguments] { return show_plan(*arguments); }; });
}

}  // namespace levada::cli
