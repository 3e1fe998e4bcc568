#include "bench/operations.h"

#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/cli/error_reporter.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/launch/launch.h"

namespace levada::bench {
namespace {

constexpr int max_ranks = 64;

void check(const BenchRanks& ranks) {
  if (ranks.ranks < 1 || ranks.ranks > max_ranks) {
    throw InvalidArgument(fmt::format("--ranks is {}; give 1 to {}", ranks.ranks, max_ranks));
  }
  launch::check_engine(ranks.engine);
}

}  // namespace

void add_rank_options(CLI::App& command, BenchRanks& ranks) {
  cli::add_option(command, "--ranks", ranks.ranks, "N", "Ranks, started on this machine");
  cli::add_option(command, "--engine", ranks.engine, "NAME", "shm (processes) or inproc (threads)");
  command.add_flag("--json", ranks.json, "Print one JSON object");
}

int run_ranks(const BenchRanks& ranks, const cli::Invocation& invocation,
              const std::function<void(const std::shared_ptr<Engine>&)>& body) {
  check(ranks);
  if (launch::detect()) {
    return cli::run_as_rank(ranks.engine, launch::JoinOptions().timeout, [&](const std::shared_ptr<Engine>& engine) {
      body(engine);
      return 0;
    });
  }
  if (ranks.engine == "inproc") {
    inproc::run_ranks(ranks.ranks, body);
    return 0;
  }
  const auto result = launch::run_local(ranks.ranks, invocation.arguments, invocation.ranks);
  if (!result.message.empty()) cli::print_error(result.message);
  return result.exit_status;
}

}  // namespace levada::bench

int main(int argc, char** argv) {
  return levada::cli::run_program(
      argc, argv, {}, {"levada_bench", "Measures an operation on this machine; bench/README.md has the formulas."},
      [](CLI::App& app, levada::cli::Invocation& invocation) {
        app.footer("Example:\n  levada_bench scatter --ranks 4 --bytes 13107200 --source arena --json");
        levada::bench::add_fan_out(app, invocation);
        levada::bench::add_reduce(app, invocation);
        levada::bench::add_exchange(app, invocation);
        levada::bench::add_dispatch(app, invocation);
      });
}
