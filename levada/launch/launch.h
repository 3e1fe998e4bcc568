// How a process finds out which rank of which job it is, and how a command starts the ranks of this host itself.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/engine/engine.h"

namespace levada::launch {

/// What the environment says of this process's place in a job.
struct Environment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string launcher;  ///< "levada", "torchrun", "slurm", "openmpi", "pmi"
  std::string meeting;   ///< names the job on this host: where its ranks meet
};

/// Reads LEVADA_*, torchrun's, SLURM's, Open MPI's and PMI's variables, the first complete set in this order; empty
/// outside a job. `get` gives a variable's value or null: std::getenv but for tests. Throws InvalidArgument for a set
/// that contradicts itself, naming the variables.
std::optional<Environment> detect(const std::function<const char*(const char*)>& get);

struct JoinOptions {
  std::string engine = "auto";  ///< "shm", "inproc" (a world of one) or "auto"
  Duration timeout = std::chrono::seconds(60);
};

/// This process's engine in the job that the environment tells of, or a world of one outside any. Collective. Throws
/// Unsupported where ranks are on several hosts, which no engine of this build can join; and what shm::join() does.
std::shared_ptr<Engine> join(const JoinOptions& options = {});

/// How a job of this host's own ended.
struct LocalResult {
  int exit_status = 0;              ///< 0 if all ranks ended well; else the first bad rank's status, 128+N for signal N
  std::optional<int> first_failed;  ///< the rank that failed first
  std::string message;              ///< "rank 2 was killed by signal 9 (Killed)"; empty if it ended by itself
};

/// Starts `size` copies of this program with `arguments`, connected for join(), and waits for them. Rank 0's standard
/// output is this process's; standard error is everybody's. SIGINT and SIGTERM reach all ranks; when one rank fails the
/// others get a moment to end by themselves and are then killed; when this process dies, by whatever signal, its ranks
/// do.
LocalResult run_local(int size, const std::vector<std::string>& arguments);

}  // namespace levada::launch
