#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/cli/cluster.h"
#include "levada/cli/command.h"
#include "levada/cli/data_options.h"
#include "levada/cli/exchange_spec.h"
#include "levada/cli/file_list.h"
#include "levada/cli/help.h"
#include "levada/cli/small_file.h"
#include "levada/exchange/planner.h"
#include "levada/feed/context_parts.h"
#include "levada/feed/step_source.h"
#include "levada/report/balance_report.h"
#include "levada/report/context_report.h"
#include "levada/report/numbers.h"
#include "levada/report/progress.h"

namespace levada::cli {
namespace {

struct PlanArguments {
  DataArguments data;
  ClusterArguments cluster;
  std::string exchange;
  bool json = false;
};

ExchangePlan plan_of_file(const std::string& path) {
  constexpr std::int64_t max_mib = 1024;
  const auto text = read_small_file("exchange", path, max_mib);
  try {
    const auto spec = ExchangeSpec::from_json(text);
    return plan_exchange(spec.directory, spec.request, spec.host_of);
  } catch (const InvalidArgument& error) {
    throw_unusable_file("exchange", path, error.what());
  }
}

/// Predicts the balance of the data's steps from lengths; reads no sample.
report::BalanceReport predict(DataArguments arguments) {
  check_data_options(arguments);
  const auto by = balance_of(arguments);
  if (!by) throw InvalidArgument("a plan of data shows how its steps are balanced: add --balance or --max-tokens");
  append_file_lists(arguments.paths, arguments.files_from);
  const auto job = parse_job(arguments.job);
  const auto tail = parse_tail(arguments.tail, "--tail");
  StepSource steps(
      std::make_shared<Corpus>(open_data(arguments, job, tail, true)),
      {.ranks = job.mesh.data_size(), .balance = *by, .step_samples = samples_per_step(job, arguments), .tail = tail});
  report::ProgressLine line("planning", true);
  for (std::int64_t step = 0; step < arguments.steps.value_or(INT64_MAX) && steps.plan_next(); ++step) {
    if (line.is_due()) line.update(static_cast<std::uint64_t>(step), {}, report::counted(step, "step"));
  }
  return {.by = *by, .ranks = job.mesh.data_size(), .series = steps.balance()};
}

/// Predicts the times of the data's steps with the mesh's cp and with --max-cp; reads no sample.
report::ContextReport predict_context(DataArguments arguments) {
  check_data_options(arguments);
  append_file_lists(arguments.paths, arguments.files_from);
  const auto job = parse_job(arguments.job);
  const auto tail = parse_tail(arguments.tail, "--tail");
  auto corpus = open_data(arguments, job, tail, true);
  check_sequences(corpus, arguments.max_cp);
  const int cp = job.mesh.axis_size("cp");
  report::ContextReport report{.by = *balance_of(arguments), .ranks = job.mesh.data_size() * cp, .cp_size = cp};
  const auto count = samples_per_step(job, arguments);
  report::ProgressLine line("planning", true);
  for (std::int64_t step = 0; step < arguments.steps.value_or(INT64_MAX); ++step) {
    const auto samples = corpus.sizes(step * count, count);
    if (samples.empty() || (std::cmp_less(samples.size(), count) && tail == Tail::drop)) break;
    report.add(samples);
    if (line.is_due()) line.update(static_cast<std::uint64_t>(step), {}, report::counted(step, "step"));
  }
  return report;
}

int show_plan(const PlanArguments& arguments) {
  const bool has_data = !arguments.data.paths.empty() || !arguments.data.files_from.empty();
  if (has_data && arguments.data.max_cp > 1) {
    const auto prediction = predict_context(arguments.data);
    print(arguments.json ? prediction.to_json() + "\n" : prediction.to_table(output_style()));
    return 0;
  }
  if (has_data) {
    const auto prediction = predict(arguments.data);
    print(arguments.json ? prediction.to_json() + "\n" : prediction.to_table(output_style()));
    return 0;
  }
  if (!arguments.exchange.empty()) {
    const auto plan = plan_of_file(arguments.exchange);
    print(arguments.json ? plan.to_json(true) + "\n" : plan.to_table());
    return 0;
  }
  if (arguments.cluster.hosts) {
    const auto comparison = compare_readers(arguments.data.job, arguments.cluster);
    print(arguments.json ? comparison.to_json() + "\n" : comparison.to_table());
    return 0;
  }
  const auto plan = parse_job(arguments.data.job).plan();
  print((arguments.json ? plan.to_json() + "\n" : plan.to_table()));
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Invocation& invocation) {
  auto arguments = std::make_shared<PlanArguments>();
  auto* command = app.add_subcommand("plan",
                                     "Show what a feed or an exchange would move on a mesh of any size, or how evenly "
                                     "the steps of some data would be balanced, without starting it");
  const auto options = [command] {
    return command->get_options([command](const CLI::Option* option) {
      return option != command->get_help_ptr() && option != command->get_help_all_ptr();
    });
  };
  add_job_options(*command, arguments->data.job);
  command->get_option("--mesh")->description(
      "Named axes of ranks, the last varying fastest [one rank; with --hosts all ranks as dp]");
  add_cluster_options(*command, arguments->cluster);
  const auto of_a_mesh = options();
  add_data_options(*command, arguments->data);
  auto of_data = options();
  std::erase_if(of_data, [&](const auto* option) { return std::ranges::find(of_a_mesh, option) != of_a_mesh.end(); });
  command->option_defaults()->group("Output");
  auto* exchange =
      command
          ->add_option("--exchange", arguments->exchange,
                       "Exchange of samples to plan instead: a JSON file of holders, destinations and keys")
          ->type_name("FILE");
  for (auto* option : of_a_mesh) exchange->excludes(option);
  for (auto* option : of_data) {
    exchange->excludes(option);
    option->excludes(command->get_option("--hosts"));
  }
  command->add_flag("--json", arguments->json, "One JSON object on standard output");
  show_first(*command, {"--mesh", "--batch", "--seq", "--hosts", "--link", "--balance", "--tokenizer"});
  command->footer(
      "Examples: what four ranks would receive per step, which ranks should read on 64 hosts, and what balancing "
      "gains\n"
      "  levada plan --mesh dp=2,tp=2 --batch 8 --seq 1024\n"
      "  levada plan --hosts 64x8 --link 100Gb/s --mesh dp=64,tp=8\n"
      "  levada plan corpus.jsonl --tokenizer bytes --mesh dp=8 --batch 32 --seq 8192 --pack documents --balance "
      "flops");
  command->callback([arguments, of_data, &invocation] {
    arguments->data.extensions = invocation.extensions;
    invocation.action = [arguments, of_data] {
      const bool has_data = !arguments->data.paths.empty() || !arguments->data.files_from.empty();
      for (const auto* option : of_data) {
        if (has_data || option->count() == 0) continue;
        throw InvalidArgument(fmt::format("{} applies to data: add a PATH", option->get_name()));
      }
      return show_plan(*arguments);
    };
  });
}

}  // namespace levada::cli
