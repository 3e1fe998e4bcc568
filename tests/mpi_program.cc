// mpi_program CASE: the program that mpi_start_test starts with mpirun.
#include <sched.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levada/engine/choice.h"
#include "levada/engine/collect.h"
#include "levada/engine/mpi/mpi.h"

namespace {

using levada::Engine;

levada::Deadline limit() {
  return levada::Deadline::after(std::chrono::seconds(60));
}

void init(int level) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, level, &provided);
}

/// Prints the error that `body` throws, on one line.
template <typename Body>
void print_refusal(const Body& body) {
  try {
    body();
  } catch (const levada::Error& error) {
    std::printf("%s: %s\n", std::string(error.name()).c_str(), error.what());
    std::fflush(stdout);
  }
}

void make_communicator() {
  const levada::mpi::Communicator communicator(MPI_COMM_WORLD, {.engine = "mpi"});
}

void leave_one_after_the_other(std::shared_ptr<Engine> engine) {
  const int rank = engine->info().rank;
  std::vector<std::shared_ptr<Engine>> groups;
  for (int first = 0; first <= rank; ++first) {
    std::vector<int> ranks;
    for (int each = first; each < engine->info().size; ++each) ranks.push_back(each);
    groups.push_back(engine->subgroup(ranks, "rest"));
  }
  engine.reset();
  for (int round = 0; round <= rank; ++round) {
    for (int i = 0; i < 100; ++i) levada::agree(*groups[static_cast<std::size_t>(round)], {}, limit(), "test");
  }
}

void lose_the_last(const std::shared_ptr<Engine>& engine) {
  levada::agree(*engine, {}, limit(), "test");
  if (engine->info().rank == engine->info().size - 1) ::raise(SIGKILL);
  engine->wait({}, limit());
}

/// Moves every rank but the first to a new network namespace, as if it were on another host.
void print_hosts() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0 && ::unshare(CLONE_NEWNET) != 0) std::puts("not root");
  levada::mpi::Communicator communicator(MPI_COMM_WORLD, {.engine = "mpi"});
  const auto engine = communicator.make_engine();
  levada::agree(*engine, {}, limit(), "test");
  if (rank != 0) return;
  std::string line = "hosts";
  for (const int host : engine->info().host_of) line += " " + std::to_string(host);
  std::puts(line.c_str());
}

void use_engine(const std::string& name) {
  std::shared_ptr<Engine> engine;
  levada::mpi::Communicator communicator(MPI_COMM_WORLD, {.engine = "mpi"});
  engine = communicator.make_engine();
  if (name == "leave") leave_one_after_the_other(std::move(engine));
  if (name == "kill") lose_the_last(engine);
  // Otherwise it outlives its communicator.
}

/// Calls join() in a program that does not use MPI otherwise, or that has initialized it.
void join_job() {
  const levada::mpi::Job job = levada::mpi::join();
  levada::agree(*job.engine(), {}, limit(), "test");
  if (job.engine()->info().rank == 0) std::puts(levada::describe_engine(job.engine()->info()).c_str());
}

void print_state() {
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  std::puts(is_finalized != 0 ? "finalized" : "initialized");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "uninitialized") {
    print_refusal(make_communicator);
    return 0;
  }
  if (name == "join") {
    join_job();
    print_state();
    return 0;
  }
  init(name == "funneled" || name == "join_funneled" ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE);
  if (name == "hosts") print_refusal(print_hosts);
  else if (name == "alone" || name == "funneled") print_refusal(make_communicator);
  else if (name == "join_initialized" || name == "join_funneled") join_job(), print_state();
  else if (name != "finalized") use_engine(name);
  MPI_Finalize();
  if (name == "finalized") print_refusal(make_communicator);
  std::puts("finalized");
  return 0;
}
