// Detects which rank of which job this process is, and starts ranks on this host.
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
/// Throws InvalidArgument, which lists the engines(), for any other name. For MPI and c10d, the message adds how to
/// join over them.
void check_engine(std::string_view name);

/// This process's place in a job, as described by its environment.
struct Environment {
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank = {};  ///< among the ranks on this host; empty if no variable has it
  std::optional<int> local_size = {};  ///< ranks on this host; empty if no variable has it
  std::string source;                  ///< variables of rank and size: "RANK and WORLD_SIZE"
  std::string local_size_source;       ///< variable of local_size: "LOCAL_WORLD_SIZE"
  std::string rendezvous;  ///< name by which the job's ranks on this host meet; empty if no variable has one
  bool operator==(const Environment&) const = default;
};

/// Reads the first complete set of variables among those of LEVADA_*, torchrun, SLURM, Open MPI and PMI, in this order.
/// Returns nothing outside a job. If only RANK and WORLD_SIZE are set, reads the rest from the variables of a launcher
/// with the same rank and size. `get` returns a variable's value or null. Throws InvalidArgument, which names the
/// variables, for a set that contradicts itself.
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
/// Collective. In a job that run_local() started, call it once per process. Throws InvalidArgument for an engine that
/// is not in this build or cannot join such a job. Throws Unsupported, without waiting, if the environment says that
/// ranks are on other hosts, which this function cannot reach. Also throws as shm::join() does. If the environment does
/// not say how many ranks are on this host, assumes that all are.
std::shared_ptr<Engine> join(const JoinOptions& options = {});

struct LocalOptions {
  std::string program;                    ///< program to start; empty for this program itself
  std::vector<std::string> leading = {};  ///< arguments that precede `arguments`, such as those of an interpreter
  Duration grace = std::chrono::milliseconds(500);         ///< time for the others to end after a rank fails
  Duration signal_grace = std::chrono::milliseconds(500);  ///< time for the ranks to end after a signal to this process
  /// If longer than `grace`: time to end after a failure as long as rank 0, which reports it, is running.
  Duration report_grace = {};
  bool any_program = false;  ///< whether ranks may run any program written for torchrun; see run_local()
};

/// Starts `size` copies of a program with `arguments`, connected for join(), and waits for them. Rank 0 writes its
/// standard output to this process's standard output. The other ranks' standard output and all ranks' standard error go
/// to this process's standard error. Ranks have no standard input.
///
/// With `any_program`, the ranks get torchrun's variables, with a free MASTER_PORT, in place of those of an outer job.
/// Rank 0 reads standard input. All ranks write to this process's standard output and error; several ranks write whole
/// lines. Each rank's bytes stay in order and unchanged, except that a terminal shows the rank before each line. A line
/// of more than 64 KiB may be split. An unterminated last line is written after all ranks have ended.
///
/// Forwards SIGINT, SIGTERM and SIGHUP to all ranks, each once, even if it arrives several times. If one rank fails,
/// the others get a moment to end and are then killed. If this process dies, by any signal, so do its ranks. Call it
/// while the process is single-threaded. Throws EngineError if a rank cannot be started.
LocalResult run_local(int size, const std::vector<std::string>& arguments, const LocalOptions& options = {});

/// Opens /dev/null in place of closed standard descriptors, so that no other file gets their numbers. Writes to a
/// standard output that was closed still fail. Call it before this process opens any file.
void open_standard_descriptors();

/// Notifies the other ranks that this rank has failed before it called join(). Their join() then throws an error of
/// `kind` with `message`, which rank 0 shows to the user. For ranks in a job of another launcher. Waits a few seconds
/// for ranks that can be notified. Returns false if this rank must show the message itself, as rank 0 always must.
bool refuse_start(ErrorKind kind, const std::string& message) noexcept;

/// Reports why this rank is about to fail, so that run_local() returns one message for all ranks. For ranks that
/// run_local() started. Returns false if no process receives the report, and in a process that a rank has started,
/// because the rank may tolerate its failure. The caller must then show the message itself.
bool report_failure(ErrorKind kind, std::string_view message) noexcept;

}  // namespace levada::launch
