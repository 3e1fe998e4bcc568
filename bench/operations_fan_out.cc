#include "bench/fan_out.h"

#include <fmt/format.h>

#include "bench/operations.h"
#include "levada/base/json.h"
#include "levada/report/style.h"

namespace levada::bench {
namespace {

struct FanOutArguments {
  BenchRanks ranks;
  std::string source = "arena";
  std::string access = "read_only";
  FanOutOptions options;
};

void check(FanOutArguments& arguments) {
  arguments.options.source = parse_source(arguments.source);
  arguments.options.access = parse_access(arguments.access, "--access");
  check(arguments.options);
}

std::string to_json(const FanOut& operation, const EngineInfo& info, const FanOutArguments& arguments,
                    const FanOutResult& result) {
  nlohmann::ordered_json json = {
      {"op", operation.name},
      {"engine", info.name},
      {"ranks", info.size},
      {"bytes", arguments.options.bytes},
      {"fields", arguments.options.fields},
      {"source", arguments.source},
      {"access", arguments.access},
      {"writes", arguments.options.write_percent},
      {"rounds", arguments.options.rounds},
      {"median_us", result.median_us},
      {"p99_us", result.p99_us},
      {"write_us", result.write_us},
      {"read_us", result.read_us},
      {"cycle_us", result.cycle_us},
      {"delivered_gb_s", result.delivered_gb_s},
      {"memcpy_gb_s", result.memcpy_gb_s},
      {"copies_per_byte", result.copies_per_byte},
  };
  return json_text(json) + "\n";
}

std::string to_text(const FanOut& operation, const EngineInfo& info, const FanOutArguments& arguments,
                    const FanOutResult& result) {
  TextTable table({"until all ranks", "us"});
  table.add({"have access, median", fmt::format("{:.1f}", result.median_us)});
  table.add({"have access, 99th percentile", fmt::format("{:.1f}", result.p99_us)});
  if (arguments.options.write_percent > 0) {
    table.add({"have written, median", fmt::format("{:.1f}", result.write_us)});
  }
  table.add({"have read every byte", fmt::format("{:.1f}", result.read_us)});
  table.add({"have given it back", fmt::format("{:.1f}", result.cycle_us)});
  return fmt::format(
      "{} of {} to each of {} ranks over {}, in {} fields, source {}, access {}, {} rounds\n\n{}\n"
      "delivered {:.1f} GB/s; one memcpy of the distinct bytes runs at {:.1f} GB/s; {:.2f} copies a byte\n",
      operation.name, format_bytes(arguments.options.bytes), info.size, info.name, arguments.options.fields,
      arguments.source, arguments.access, arguments.options.rounds,
      report::to_string(table, {false, true}, cli::output_style()), result.delivered_gb_s, result.memcpy_gb_s,
      result.copies_per_byte);
}

int run_fan_out(FanOutArguments arguments, const FanOut& operation, const cli::Invocation& invocation) {
  check(arguments);
  return run_ranks(arguments.ranks, invocation, [&](const std::shared_ptr<Engine>& engine) {
    const auto result = measure(engine, operation, arguments.options);
    const EngineInfo& info = engine->info();
    if (info.rank != 0) return;
    cli::print(arguments.ranks.json ? to_json(operation, info, arguments, result)
                                    : to_text(operation, info, arguments, result));
  });
}

void add_operation(CLI::App& bench, cli::Invocation& invocation, const FanOut& operation, const std::string& what) {
  auto arguments = std::make_shared<FanOutArguments>();
  auto* command = bench.add_subcommand(std::string(operation.name), what);
  cli::add_option(*command, "--bytes", arguments->options.bytes, "N", "That each rank receives in a round");
  cli::add_option(*command, "--fields", arguments->options.fields, "N", "Tensors they are divided into");
  cli::add_option(*command, "--source", arguments->source, "WHERE",
                  "arena: the batch is made in engine memory; host: in ordinary memory");
  cli::add_option(*command, "--access", arguments->access, "HOW",
                  "read_only (no copy), private (may be written) or copy");
  cli::add_option(*command, "--writes", arguments->options.write_percent, "PERCENT",
                  "Share of its pages that each rank overwrites in a round");
  cli::add_option(*command, "--rounds", arguments->options.rounds, "N", "Rounds that count");
  add_rank_options(*command, arguments->ranks);
  command->footer(fmt::format("Example\n  levada_bench {} --ranks 4 --bytes 13107200 --source arena", operation.name));
  command->callback([arguments, operation, &invocation] {
    invocation.action = [arguments, operation, &invocation] { return run_fan_out(*arguments, operation, invocation); };
  });
}

}  // namespace

void add_fan_out(CLI::App& bench, cli::Invocation& invocation) {
  add_operation(bench, invocation, scatter, "One rank gives each rank a batch of its own");
  add_operation(bench, invocation, broadcast, "One rank gives all ranks the same batch");
}

}  // namespace levada::bench
