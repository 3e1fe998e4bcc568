#include <fmt/format.h>

#include "bench/operations.h"
#include "bench/reduce_scatter.h"
#include "levada/base/json.h"
#include "levada/report/style.h"

namespace levada::bench {
namespace {

struct ReduceArguments {
  BenchRanks ranks;
  std::string sizes = "256x4KiB";
  std::string source = "host";
  ReduceOptions options;
};

void check(ReduceArguments& arguments) {
  arguments.options.source = parse_source(arguments.source);
  arguments.options.shards = parse_sizes(arguments.sizes);
  check(arguments.options);
}

std::string to_json(const EngineInfo& info, const ReduceArguments& arguments, const ReduceResult& result) {
  const nlohmann::ordered_json json = {
      {"op", "reduce-scatter"},
      {"engine", info.name},
      {"ranks", info.size},
      {"inputs", arguments.options.shards.size()},
      {"bytes", result.bytes},
      {"source", arguments.source},
      {"capacity_mb", arguments.options.capacity_mb},
      {"rounds", arguments.options.rounds},
      {"median_us", result.median_us},
      {"p99_us", result.p99_us},
      {"one_large_us", result.one_large_us},
      {"ratio_to_one_large", result.median_us / result.one_large_us},
      {"input_gb_s", result.input_gb_s()},
      {"memcpy_gb_s", result.memcpy_gb_s},
      {"sum_gb_s", result.sum_gb_s},
      {"flushes", result.flushes},
  };
  return json_text(json) + "\n";
}

std::string to_text(const EngineInfo& info, const ReduceArguments& arguments, const ReduceResult& result) {
  TextTable table({"until all ranks have their sums", "us"});
  table.add({"median", fmt::format("{:.1f}", result.median_us)});
  table.add({"99th percentile", fmt::format("{:.1f}", result.p99_us)});
  table.add({"the same bytes as one input, median", fmt::format("{:.1f}", result.one_large_us)});
  return fmt::format(
      "reduce-scatter of {} inputs, {} on each of {} ranks over {}, source {}, buckets of {} MiB, {} rounds\n\n{}\n"
      "{:.1f} GB/s of a rank's inputs in {:g} launches; one memcpy of them runs at {:.1f} GB/s, one sum of the pieces "
      "at "
      "{:.1f} GB/s\n",
      arguments.options.shards.size(), format_bytes(result.bytes), info.size, info.name, arguments.source,
      arguments.options.capacity_mb, arguments.options.rounds,
      report::to_string(table, {false, true}, cli::output_style()), result.input_gb_s(), result.flushes,
      result.memcpy_gb_s, result.sum_gb_s);
}

int run_reduce(ReduceArguments arguments, const cli::Invocation& invocation) {
  check(arguments);
  return run_ranks(arguments.ranks, invocation, [&](const std::shared_ptr<Engine>& engine) {
    const auto result = measure(engine, arguments.options);
    const EngineInfo& info = engine->info();
    if (info.rank == 0)
      cli::print(arguments.ranks.json ? to_json(info, arguments, result) : to_text(info, arguments, result));
  });
}

}  // namespace

void add_reduce(CLI::App& bench, cli::Invocation& invocation) {
  auto arguments = std::make_shared<ReduceArguments>();
  auto* command = bench.add_subcommand("reduce-scatter", "Sums of all ranks' tensors, a part of each on each rank");
  cli::add_option(*command, "--sizes", arguments->sizes, "SIZES",
                  "Bytes of each input's piece for one rank: 256x4KiB, or a file of them");
  cli::add_option(*command, "--cap-mb", arguments->options.capacity_mb, "MIB",
                  "Of a bucket, all ranks' pieces together; 0: no buckets");
  cli::add_option(*command, "--source", arguments->source, "WHERE",
                  "arena: inputs are made in engine memory; host: in ordinary memory");
  cli::add_option(*command, "--rounds", arguments->options.rounds, "N", "Rounds that count");
  add_rank_options(*command, arguments->ranks);
  command->footer("Example\n  levada_bench reduce-scatter --ranks 4 --sizes 64x256KiB --source arena");
  command->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation] { return run_reduce(*arguments, invocation); };
  });
}

}  // namespace levada::bench
