// How a process finds out which rank of which job it is, and how a command starts the ranks of this host itself.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/engine.h"
#include "levada/launch/supervision.h"

namespace levada::launch {

/// Names of the engines in this build.
std::vector<std::string> engines();
/// Throws InvalidArgument for another name, with these names, and with what joins over MPI or c10d where it names that.
void check_engine(std::string_view name);

/// What the environment says of this process's place in a job.
struct Environment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::optional<int> local_size = {};  ///< ranks on this host; empty where no variable says so
  std::string said_by;                 ///< the variables of rank and size: "RANK and WORLD_SIZE"
  std::string local_size_said_by;      ///< the variable of local_size: "LOCAL_WORLD_SIZE"
  std::string rendezvous;  ///< names the job on this host: where its ranks meet; empty where no variable does
  bool operator==(const Environment&) const = default;
};

/// Reads LEVADA_*, torchrun's, SLURM's, Open MPI's and PMI's variables, the first complete set in this order; empty
/// outside a job. Where RANK and WORLD_SIZE stand alone, what they leave open is read from the variables of a launcher
/// that gives the same rank and size. `get` returns a variable's value or null. Throws InvalidArgument for a set that
/// contradicts itself, naming the variables.
std::optional<Environment> detect(const std::function<const char*(const char*)>& get = [](const char* name) {
  return std::getenv(name);
});

struct JoinOptions {
  std::string engine = "auto";  ///< "shm", "inproc" (a world of one) or "auto"
  Duration timeout = std::chrono::minutes(30);
  std::function<void(const std::string&)> remind = {};  ///< as shm::Options::remind
  std::function<void(const std::string&)> report = {};  ///< as shm::Options::report
  std::stop_token stop = {};                            ///< as shm::Options::stop
};

/// This process's engine in the job that the environment describes, or a world of one outside any. Collective; once a
/// process in a job that run_local() started. Throws InvalidArgument for an engine that is not in this build or cannot
/// join such a job; Unsupported, at once, where the environment says that ranks are on other hosts, which this function
/// cannot reach; and what shm::join() does. Where the environment does not say how many ranks this host has, all are
/// looked for here.
std::shared_ptr<Engine> join(const JoinOptions& options = {});

struct LocalOptions {
  std::string program;                              ///< what to start; empty: this very program
  std::vector<std::string> leading = {};            ///< arguments of every rank before its own: of an interpreter
  Duration grace = std::chrono::milliseconds(500);  ///< what a rank's failure leaves the others to end by themselves
  Duration signal_grace = std::chrono::milliseconds(500);  ///< what a signal to this process leaves them
  Duration report_grace = {};  ///< if longer than grace: what a failure leaves them while rank 0, which reports, lives
  bool any_program = false;    ///< the ranks may be any program for torchrun, see run_local()
};

/// Starts `size` copies of a program with `arguments`, connected for join(), and waits for them. Rank 0's standard
/// output is this process's, the other ranks' goes where standard error goes, which is everybody's; they read nothing.
///
/// With `any_program` the ranks get torchrun's variables, with a free MASTER_PORT, in place of those of an outer job.
/// Rank 0 reads standard input. Standard output and error of all ranks are this process's, of several ranks by whole
/// lines: each rank's bytes stay in order and, unless they go to a terminal, which shows the rank before each line,
/// unchanged. A line of more than 64 KiB may be divided. A last line without an end is written after all ranks have
/// ended.
///
/// SIGINT, SIGTERM and SIGHUP reach all ranks, once; when one rank fails the others get a moment to end by themselves
/// and are then killed; when this process dies, by whatever signal, its ranks do. To be called while the process has
/// one thread. Throws EngineError where a rank cannot be started.
LocalResult run_local(int size, const std::vector<std::string>& arguments, const LocalOptions& options = {});

/// Opens /dev/null in place of closed standard descriptors, so that no other file takes their numbers. What is written
/// to standard output fails as before. To be called before this process opens anything.
void open_standard_descriptors();

/// In a rank of another launcher's job that fails before it calls join(): notifies the other ranks, whose join() then
/// throws an error of `kind` with `message`, which rank 0 shows to the user. Waits a few seconds for ranks that can
/// be notified. Returns false where this rank, or rank 0 itself, has to show it.
bool refuse_start(ErrorKind kind, const std::string& message) noexcept;

/// In a rank that run_local() started: reports why this rank is about to fail, so that run_local() returns one message
/// for all ranks. Returns false where nothing receives the report, and in a process that a rank has started, whose
/// failure the rank may tolerate; then this process shows the message itself.
bool report_failure(ErrorKind kind, std::string_view message) noexcept;

}  // namespace levada::launch
