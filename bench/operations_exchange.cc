#include <fmt/format.h>

#include "bench/exchange.h"
#include "bench/operations.h"
#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/report/style.h"

namespace levada::bench {
namespace {

struct ExchangeArguments {
  BenchRanks ranks;
  ExchangeBenchOptions options;
  bool plan_only = false;
};

std::string to_json(const EngineInfo& info, const ExchangeArguments& arguments, const ExchangeBenchResult& result) {
  const nlohmann::ordered_json json = {
      {"op", "exchange"},
      {"engine", info.name},
      {"ranks", info.size},
      {"from", arguments.options.from},
      {"to", arguments.options.to},
      {"samples", arguments.options.samples},
      {"payload_bytes", result.payload_bytes},
      {"moved_bytes", result.moved_bytes},
      {"lower_bound_bytes", result.lower_bound_bytes},
      {"wire_bytes", result.wire_bytes},
      {"messages", result.messages},
      {"rounds", arguments.options.rounds},
      {"plan_ms", result.plan_ms},
      {"median_us", result.median_us},
      {"p99_us", result.p99_us},
      {"repeated_us", result.repeated_us},
      {"agree_us", result.agree_us},
      {"move_us", result.move_us},
      {"memcpy_us", result.memcpy_us},
  };
  return json_text(json) + "\n";
}

std::string to_text(const EngineInfo& info, const ExchangeArguments& arguments, const ExchangeBenchResult& result) {
  TextTable table({"until all ranks have their samples", "us"});
  table.add({"median", fmt::format("{:.1f}", result.median_us)});
  table.add({"99th percentile", fmt::format("{:.1f}", result.p99_us)});
  table.add({"of it agreeing on who has what, on rank 0", fmt::format("{:.1f}", result.agree_us)});
  table.add({"of it planning, on rank 0", fmt::format("{:.1f}", result.plan_ms * 1e3)});
  table.add({"of it moving, on rank 0", fmt::format("{:.1f}", result.move_us)});
  table.add({"a round that repeats the one before", fmt::format("{:.1f}", result.repeated_us)});
  table.add({"one memcpy of the moved bytes", fmt::format("{:.1f}", result.memcpy_us)});
  return fmt::format(
      "exchange of {} samples, {}, from {} to {} on {} ranks over {}, {} rounds\n\n{}\n"
      "moved {} in {} messages, where {} is the least there can be; {} were sent in all\n",
      arguments.options.samples, format_bytes(result.payload_bytes), arguments.options.from, arguments.options.to,
      info.size, info.name, arguments.options.rounds, report::to_string(table, {false, true}, cli::output_style()),
      format_bytes(result.moved_bytes), result.messages, format_bytes(result.lower_bound_bytes),
      format_bytes(result.wire_bytes));
}

int plan_only(const ExchangeArguments& arguments) {
  const auto result = measure_plan(arguments.options);
  const int ranks = ranks_of(arguments.options);
  if (arguments.ranks.json) {
    const nlohmann::ordered_json json = {
        {"op", "exchange-plan"},
        {"ranks", ranks},
        {"from", arguments.options.from},
        {"to", arguments.options.to},
        {"samples", arguments.options.samples},
        {"payload_bytes", result.payload_bytes},
        {"moved_bytes", result.moved_bytes},
        {"lower_bound_bytes", result.lower_bound_bytes},
        {"multicasts", result.multicasts},
        {"rounds", arguments.options.rounds},
        {"plan_ms", result.median_ms},
        {"p99_ms", result.p99_ms},
        {"peak_bytes", result.peak_bytes},
    };
    cli::print(json_text(json) + "\n");
  } else {
    cli::print(fmt::format(
        "plan of an exchange of {} samples, {}, from {} to {} on {} ranks: {:.2f} ms ({:.2f} ms at the 99th "
        "percentile of {}), {} multicasts, {} of memory\n",
        arguments.options.samples, format_bytes(result.payload_bytes), arguments.options.from, arguments.options.to,
        ranks, result.median_ms, result.p99_ms, arguments.options.rounds, result.multicasts,
        format_bytes(result.peak_bytes)));
  }
  return 0;
}

int run_exchange(const ExchangeArguments& arguments, const cli::Invocation& invocation) {
  check(arguments.options);
  if (arguments.plan_only) return plan_only(arguments);
  if (ranks_of(arguments.options) > arguments.ranks.ranks) {
    throw InvalidArgument(
        fmt::format("--ranks is {}, but the meshes take {}", arguments.ranks.ranks, ranks_of(arguments.options)));
  }
  return run_ranks(arguments.ranks, invocation, [&](const std::shared_ptr<Engine>& engine) {
    const auto result = measure(engine, arguments.options);
    const EngineInfo& info = engine->info();
    if (info.rank != 0) return;
    cli::print(arguments.ranks.json ? to_json(info, arguments, result) : to_text(info, arguments, result));
  });
}

}  // namespace

void add_exchange(CLI::App& bench, cli::Invocation& invocation) {
  auto arguments = std::make_shared<ExchangeArguments>();
  auto* command =
      bench.add_subcommand("exchange", "Samples move from the mesh that has them to the mesh that needs them");
  cli::add_option(*command, "--from", arguments->options.from, "MESH", "Whose data-parallel heads have the samples");
  cli::add_option(*command, "--to", arguments->options.to, "MESH", "Whose ranks need them; both begin with rank 0");
  cli::add_option(*command, "--samples", arguments->options.samples, "N", "Samples of three keys, of ragged lengths");
  cli::add_option(*command, "--bytes", arguments->options.bytes, "N", "Of all samples, about");
  cli::add_option(*command, "--rounds", arguments->options.rounds, "N", "Rounds that count");
  command->add_flag("--plan-only", arguments->plan_only, "Plan, for meshes of any size, without starting ranks");
  add_rank_options(*command, arguments->ranks);
  command->footer("Example\n  levada_bench exchange --ranks 8 --from dp=8 --to dp=4,tp=2 --samples 256 --json");
  command->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation] { return run_exchange(*arguments, invocation); };
  });
}

}  // namespace levada::bench
