// Common parts of the operations of `levada_bench`: the ranks that are measured.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "levada/cli/command.h"
#include "levada/engine/engine.h"

namespace levada::bench {

struct BenchRanks {
  int ranks = 4;
  std::string engine = "shm";
  bool json = false;
};

/// Adds the options --ranks, --engine and --json.
void add_rank_options(CLI::App& command, BenchRanks& ranks);

/// Runs `body` on every rank of the job that this process belongs to, or else of a job started on this machine. Returns
/// the exit status. Throws InvalidArgument.
int run_ranks(const BenchRanks& ranks, const cli::Invocation& invocation,
              const std::function<void(const std::shared_ptr<Engine>&)>& body);

void add_fan_out(CLI::App& bench, cli::Invocation& invocation);
void add_reduce(CLI::App& bench, cli::Invocation& invocation);
void add_exchange(CLI::App& bench, cli::Invocation& invocation);
void add_dispatch(CLI::App& bench, cli::Invocation& invocation);

}  // namespace levada::bench
