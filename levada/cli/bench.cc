#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "bench/fan_out.h"
#include "levada/base/error.h"
#include "levada/cli/command.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/launch/launch.h"
#include "levada/report/table.h"

namespace levada::cli {
namespace {

struct BenchArguments {
  int ranks = 4;
  std::string source = "arena";
  std::string access = "read_only";
  std::string engine = "shm";
  bench::FanOutOptions options;
  bool json = false;
};

constexpr int most_ranks = 64;

void check(BenchArguments& arguments) {
  if (arguments.ranks < 1 || arguments.ranks > most_ranks) {
    throw InvalidArgument(fmt::format("--ranks is {}; give 1 to {}", arguments.ranks, most_ranks));
  }
  if (arguments.engine != "shm" && arguments.engine != "inproc") {
    throw InvalidArgument(fmt::format("there is no engine {} in this build; there are {}", arguments.engine,
                                      fmt::join(launch::engines(), ", ")));
  }
  if (arguments.source != "arena" && arguments.source != "host") {
    throw InvalidArgument(fmt::format("--source is {}; it must be arena or host", arguments.source));
  }
  if (arguments.access != "read_only" && arguments.access != "copy") {
    throw InvalidArgument(fmt::format("--access is {}; it must be read_only or copy", arguments.access));
  }
  arguments.options.source = arguments.source == "arena" ? bench::BatchSource::arena : bench::BatchSource::host;
  arguments.options.access = arguments.access == "copy" ? Access::copy : Access::read_only;
  bench::check(arguments.options);
}

std::string to_json(const bench::FanOut& operation, const BenchArguments& arguments,
                    const bench::FanOutResult& result) {
  nlohmann::ordered_json json = {
      {"op", operation.name},
      {"engine", arguments.engine},
      {"ranks", arguments.ranks},
      {"bytes", arguments.options.bytes},
      {"fields", arguments.options.fields},
      {"source", arguments.source},
      {"access", arguments.access},
      {"rounds", arguments.options.rounds},
      {"median_us", result.median_us},
      {"p99_us", result.p99_us},
      {"read_us", result.read_us},
      {"cycle_us", result.cycle_us},
      {"delivered_gb_s", result.delivered_gb_s},
      {"memcpy_gb_s", result.memcpy_gb_s},
      {"copies_per_byte", result.copies_per_byte},
  };
  return json.dump() + "\n";
}

std::string to_text(const bench::FanOut& operation, const BenchArguments& arguments,
                    const bench::FanOutResult& result) {
  using Align = report::Table::Align;
  report::Table table({{"until all ranks"}, {"us", Align::right}});
  table.add_row({"have access, median", fmt::format("{:.1f}", result.median_us)});
  table.add_row({"have access, 99th percentile", fmt::format("{:.1f}", result.p99_us)});
  table.add_row({"have read every byte", fmt::format("{:.1f}", result.read_us)});
  table.add_row({"have given it back", fmt::format("{:.1f}", result.cycle_us)});
  return fmt::format(
      "{} of {} to each of {} ranks over {}, in {} fields, source {}, access {}, {} rounds\n\n{}\n"
      "delivered {:.1f} GB/s; one memcpy of the distinct bytes runs at {:.1f} GB/s; {:.2f} copies a byte\n",
      operation.name, format_bytes(arguments.options.bytes), arguments.ranks, arguments.engine,
      arguments.options.fields, arguments.source, arguments.access, arguments.options.rounds,
      table.to_string(output_style()), result.delivered_gb_s, result.memcpy_gb_s, result.copies_per_byte);
}

void bench_rank(const std::shared_ptr<Engine>& engine, const bench::FanOut& operation,
                const BenchArguments& arguments) {
  const auto result = bench::measure(engine, operation, arguments.options);
  if (engine->info().rank != 0) return;
  print(arguments.json ? to_json(operation, arguments, result) : to_text(operation, arguments, result));
}

int run_bench(BenchArguments arguments, const bench::FanOut& operation, const Chosen& chosen) {
  check(arguments);
  if (launch::detect([](const char* name) -> const char* { return std::getenv(name); })) {
    const auto engine = launch::join({.engine = arguments.engine});
    arguments.ranks = engine->info().size;
    bench_rank(engine, operation, arguments);
    return 0;
  }
  if (arguments.engine == "inproc") {
    inproc::run_ranks(arguments.ranks,
                      [&](const std::shared_ptr<Engine>& engine) { bench_rank(engine, operation, arguments); });
    return 0;
  }
  const auto result = launch::run_local(arguments.ranks, chosen.arguments, chosen.ranks);
  if (!result.message.empty()) complain(result.message);
  return result.exit_status;
}

void add_operation(CLI::App& bench, Chosen& chosen, const bench::FanOut& operation, const std::string& what) {
  auto arguments = std::make_shared<BenchArguments>();
  auto* command = bench.add_subcommand(std::string(operation.name), what);
  const auto option = [&](const char* name, auto& value, const char* type, const char* description) {
    command->add_option(name, value, description)->type_name(type)->capture_default_str();
  };
  option("--ranks", arguments->ranks, "N", "Ranks, started on this machine");
  option("--bytes", arguments->options.bytes, "N", "That each rank receives in a round");
  option("--fields", arguments->options.fields, "N", "Tensors they are divided into");
  option("--source", arguments->source, "WHERE", "arena: the batch is made in engine memory; host: in ordinary memory");
  option("--access", arguments->access, "HOW", "read_only (no copy) or copy");
  option("--engine", arguments->engine, "NAME", "shm (processes) or inproc (threads)");
  option("--rounds", arguments->options.rounds, "N", "Rounds that count");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(fmt::format("Example\n  levada bench {} --ranks 4 --bytes 13107200 --source arena", operation.name));
  command->callback([arguments, operation, &chosen] {
    chosen.action = [arguments, operation, &chosen] { return run_bench(*arguments, operation, chosen); };
  });
}

}  // namespace

void add_bench(CLI::App& app, Chosen& chosen) {
  auto* bench =
      app.add_subcommand("bench", "Measure an operation on this machine; bench/PERFORMANCE.md has the formulas");
  bench->require_subcommand(1);
  bench->footer("Example\n  levada bench scatter --ranks 4 --bytes 13107200 --source arena --json");
  add_operation(*bench, chosen, bench::scatter, "One rank gives each rank a batch of its own");
  add_operation(*bench, chosen, bench::broadcast, "One rank gives all ranks the same batch");
}

}  // namespace levada::cli
