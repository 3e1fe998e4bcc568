// Finds out which rank of which job a process is, and starts the ranks of this host.
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

/// Returns the names of the engines in this build.
std::vector<std::string> engines();
/// Throws InvalidArgument for any other name, listing these; for MPI or c10d, it adds how to join over them.
void check_engine(std::string_view name);

/// This process's place in a job, according to its environment.
struct Environment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::optional<int> local_size = {};  ///< ranks on this host; empty if no variable has it
  std::string said_by;                 ///< variables of rank and size: "RANK and WORLD_SIZE"
  std::string local_size_said_by;      ///< variable of local_size: "LOCAL_WORLD_SIZE"
  std::string rendezvous;  ///< identifies the job on this host, for its ranks to meet; empty if no variable does
  bool operator==(const Environment&) const = default;
};

/// Reads the variables of LEVADA_*, torchrun, SLURM, Open MPI and PMI, the first complete set in this order; returns
/// nothing outside a job. If only RANK and WORLD_SIZE are set, the rest is read from the variables of a launcher with
/// the same rank and size. `get` returns a variable's value or null. Throws InvalidArgument for a set that contradicts
/// itself, naming the variables.
std::optional<Environment> detect(const std::function<const char*(const char*)>& get = [](const char* name) {
  return std::getenv(name);
});

struct JoinOptions {
  std::string engine = "auto";  ///< "shm", "inproc" (a world of one) or "auto"
  Duration timeout = std::chrono::minutes(30);
  std::function<void(const std::string&)> remind = {};  ///< same as shm::Options::remind
  std::function<void(const std::string&)> report = {};  ///< same as shm::Options::report
  std::stop_token stop = {};                            ///< same as shm::Options::stop
};

/// Returns this process's engine in the job that the environment describes, or a world of one outside a job.
/// Collective; call once per process in a job that run_local() started. Throws InvalidArgument for an engine that is
/// not in this build or cannot join such a job; Unsupported, at once, if the environment says that ranks are on other
/// hosts, which this function cannot reach; and as shm::join() does. If the environment does not give the number of
/// ranks on this host, all of them are assumed to be on it.
std::shared_ptr<Engine> join(const JoinOptions& options = {});

struct LocalOptions {
  std::string program;                    ///< program to start; empty for this program itself
  std::vector<std::string> leading = {};  ///< arguments before each rank's own, such as those of an interpreter
  Duration grace = std::chrono::milliseconds(500);         ///< time for the others to end after a rank fails
  Duration signal_grace = std::chrono::milliseconds(500);  ///< time for the ranks to end after a signal to this process
  Duration report_grace = {};  ///< if longer than grace: time to end after a failure while rank 0, which reports, lives
  bool any_program = false;    ///< ranks may run any program written for torchrun, see run_local()
};

/// Starts `size` copies of a program with `arguments`, connected for join(), and waits for them. Rank 0's standard
/// output is this process's. The other ranks' standard output, like every rank's standard error, is this process's
/// standard error. Ranks have no standard input.
///
/// With `any_program`, the ranks get torchrun's variables, with a free MASTER_PORT, in place of those of an outer job.
/// Rank 0 reads standard input. All ranks write to this process's standard output and error; if there are several, by
/// whole lines. Each rank's bytes stay in order and unchanged, except that a terminal shows the rank before each line.
/// A line of more than 64 KiB may be split. A last line without an end is written after all ranks have ended.
///
/// All ranks receive SIGINT, SIGTERM and SIGHUP, once. If one rank fails, the others get a moment to end and are then
/// killed. If this process dies, by any signal, so do its ranks. Call while the process has one thread. Throws
/// EngineError if a rank cannot be started.
LocalResult run_local(int size, const std::vector<std::string>& arguments, const LocalOptions& options = {});

/// Opens /dev/null in place of closed standard descriptors, so that no other file takes their numbers. Writes to
/// standard output still fail as before. Call before this process opens anything.
void open_standard_descriptors();

/// Call in a rank of another launcher's job that fails before it calls join(). Notifies the other ranks, whose join()
/// then throws an error of `kind` with `message`, which rank 0 shows to the user. Waits a few seconds for ranks that
/// can be notified. Returns false if this rank, or rank 0 itself, must show the message.
bool refuse_start(ErrorKind kind, const std::string& message) noexcept;

/// Call in a rank that run_local() started. Reports why this rank is about to fail, so that run_local() returns one
/// message for all ranks. Returns false if nothing receives the report, and in a process that a rank has started, whose
/// failure the rank may tolerate; this process must then show the message itself.
bool report_failure(ErrorKind kind, std::string_view message) noexcept;

}  // namespace levada::launch
