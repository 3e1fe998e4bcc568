#include <fmt/format.h>

#include "bench/dispatch.h"
#include "bench/operations.h"
#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/report/style.h"

namespace levada::bench {
namespace {

struct DispatchArguments {
  BenchRanks ranks;
  DispatchOptions options;
};

std::string to_json(const EngineInfo& info, const DispatchOptions& options, const DispatchResult& result) {
  nlohmann::ordered_json json = {
      {"op", "dispatch"},
      {"engine", info.name},
      {"workers", options.workers},
      {"item_bytes", options.item_bytes},
      {"shuffle", options.shuffle},
      {"items", result.items},
      {"items_per_s", result.items_per_s},
      {"wakeups_per_item", result.wakeups_per_item},
      {"copies_per_byte", result.copies_per_byte},
  };
  return json_text(json) + "\n";
}

std::string to_text(const EngineInfo& info, const DispatchOptions& options, const DispatchResult& result) {
  TextTable table({"of items", ""});
  table.add({"a second", fmt::format("{:.0f}", result.items_per_s)});
  table.add({"wakeups an item", fmt::format("{:.4f}", result.wakeups_per_item)});
  table.add({"copies a byte", fmt::format("{:.2f}", result.copies_per_byte)});
  return fmt::format("dispatch of items of {} to {} workers and back over {}, {} items\n\n{}",
                     format_bytes(options.item_bytes), options.workers, info.name, result.items,
                     report::to_string(table, {false, true}, cli::output_style()));
}

int run_dispatch(DispatchArguments arguments, const cli::Invocation& invocation) {
  check(arguments.options);
  arguments.ranks.ranks = ranks_of(arguments.options);
  return run_ranks(arguments.ranks, invocation, [&](const std::shared_ptr<Engine>& engine) {
    const auto result = measure(engine, arguments.options);
    const EngineInfo& info = engine->info();
    if (info.rank != 0) return;
    cli::print(arguments.ranks.json ? to_json(info, arguments.options, result)
                                    : to_text(info, arguments.options, result));
  });
}

}  // namespace

void add_dispatch(CLI::App& bench, cli::Invocation& invocation) {
  auto arguments = std::make_shared<DispatchArguments>();
  auto* command = bench.add_subcommand(
      "dispatch", "One process makes items and deals them to workers, who give them back in order");
  cli::add_option(*command, "--workers", arguments->options.workers, "N", "Processes that items are dealt to");
  cli::add_option(*command, "--item-bytes", arguments->options.item_bytes, "N",
                  "Of an item: a tensor, or an int up to 8");
  cli::add_option(*command, "--seconds", arguments->options.seconds, "X", "That count");
  cli::add_option(*command, "--prefetch", arguments->options.prefetch, "N",
                  "Messages that wait for a worker, and for the consumer");
  cli::add_option(*command, "--shuffle", arguments->options.shuffle, "N",
                  "Items in a shuffle buffer before the dispatch");
  cli::add_option(*command, "--engine", arguments->ranks.engine, "NAME", "shm (processes) or inproc (threads)");
  command->add_flag("--record", arguments->options.record, "Keep what each process does when, as for a trace");
  command->add_flag("--json", arguments->ranks.json, "Print one JSON object");
  command->footer("Example\n  levada_bench dispatch --workers 2 --item-bytes 65536 --json");
  command->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation] { return run_dispatch(*arguments, invocation); };
  });
}

}  // namespace levada::bench
