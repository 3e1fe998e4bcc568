// How C++ programs that mpirun or srun starts join their job, on one host or on several. The library levada::mpi, which
// exists where Levada was built with MPI. docs/design/mpi.md explains how.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "levada/base/secret.h"
#include "levada/engine/choice.h"
#include "levada/engine/engine.h"

namespace levada::mpi {

class HostWatch;
class MpiTransport;

/// `engine`, degree and max_piece_bytes are the same on all ranks.
struct Options {
  /// "shm": shared memory, for ranks of one host. "mpi": messages of MPI. "shm+mpi": the first within hosts, the second
  /// between them. "auto": what choose_engine() returns.
  std::string engine = "auto";
  /// What the blocks that this rank allocates may take together; 0: what the machine allows. Over "mpi" what it
  /// receives from others lies in other memory.
  std::size_t memory_bytes = 0;
  /// How often a rank that waits asks what the others do, and looks again at what wakes nobody. 0: every 100 ms, and
  /// 10 ms more for each rank.
  Duration heartbeat = Duration::zero();
  Duration timeout = std::chrono::seconds(60);        ///< for the ranks to meet
  int degree = default_degree;                        ///< as joined::Options::degree
  Duration leave_timeout = std::chrono::minutes(30);  ///< as joined::Options::leave_timeout, also without shared memory
  /// MPI gets longer messages in pieces. At most what fits into an int.
  std::size_t max_piece_bytes = std::size_t{1} << 30;
};

/// A duplicate of a communicator for engines over it; the program's own messages are never touched. One thread at a
/// time. For programs that have initialized MPI, with MPI_THREAD_MULTIPLE unless the engine is "shm": each other engine
/// has a thread that calls MPI beside the program's own; it sleeps while nothing moves.
///
/// Ranks of a host that has not answered for LEVADA_SILENCE seconds (rank 0's variable; 10 unless set, 0 for no limit)
/// are lost, and so is a peer that an error of MPI's names: calls of the engine throw PeerLost, which names the rank.
/// But MPI does not say that a process has died: mpirun and srun end the whole job then. After PeerLost a program ends
/// by MPI_Abort() or without MPI_Finalize(), which would wait for the lost rank.
class Communicator {
 public:
  /// Collective over the ranks of `parent`. Throws InvalidArgument where MPI is not initialized, or is finalized
  /// already, for MPI_COMM_NULL, for an intercommunicator, and for options that are out of range or different on some
  /// rank; Unsupported for "shm" on several hosts, where a rank has less than MPI_THREAD_MULTIPLE but needs it, and
  /// where the launcher is not of the MPI that the program is linked with; EngineError for what MPI reports, and where
  /// hosts cannot connect to each other by TCP within 30 s or `timeout`, by which they see whether they answer; Timeout
  /// where MPI has not brought this rank and the others together within `timeout`. After a Timeout, MPI_Finalize()
  /// would wait, too.
  explicit Communicator(MPI_Comm parent, Options options = {});
  /// Collective, before MPI_Finalize() and after this rank's engines, their channels and leases. Waits until all ranks
  /// have destroyed their engines, at most for Options::leave_timeout, and for seconds after a group has ended for a
  /// cause or if an exception ends it. Where this rank's own are in use it calls MPI_Abort() after five seconds, with a
  /// message.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Returns an engine over all ranks, by their numbers in the communicator. Collective: ranks make engines in the same
  /// order. Several may be in use at a time. "mpi" waits for nobody; the others throw what shm::meet() does.
  std::shared_ptr<Engine> make_engine();

 private:
  friend class Job;
  struct Duplicate {
    MPI_Comm comm = MPI_COMM_NULL;
    ~Duplicate();
  };
  std::shared_ptr<Engine> make_far_engine();
  bool end(bool has_failed);
  void watch_hosts(int seconds);
  /// all_gather() over the duplicate, which is given up after a Timeout.
  template <typename Value>
  std::vector<Value> gather_all(const Value& mine, Duration timeout);

  Duplicate duplicate_;
  const int exceptions_before_ = std::uncaught_exceptions();  ///< on their way when this was made
  Options options_;                                           ///< `engine` is the one chosen
  int rank_ = 0;
  std::vector<int> host_of_;
  Secret secret_{};                                        ///< the same on all ranks
  std::shared_ptr<HostWatch> watch_;                       ///< where there are others
  int num_engines_ = 0;                                    ///< that have been made
  std::vector<std::shared_ptr<MpiTransport>> transports_;  ///< that may not be over
};

/// A process's part in a job that mpirun or srun has started, from join() on: an engine over all ranks.
class Job {
 public:
  /// Collective, after everything that uses the engine. Ends the engine, waits until all ranks have done so, and then
  /// finalizes MPI if join() has initialized it. If a rank is lost or hangs, it waits for seconds and finalizes
  /// nothing, since MPI_Finalize() would wait for that rank: the process then ends as it likes, and the launcher ends
  /// the others.
  ~Job();
  Job(Job&&) noexcept = default;
  Job& operator=(Job&&) = delete;

  const std::shared_ptr<Engine>& engine() const& { return engine_; }
  const std::shared_ptr<Engine>& engine() && = delete;  // the engine would outlive the job

 private:
  friend Job join(const Options& options);
  Job() = default;

  bool must_finalize_ = false;
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<Engine> engine_;
};

/// Joins this process to the other ranks of MPI_COMM_WORLD, as launch::join() does on one host. Collective, once in a
/// process. Initializes MPI with MPI_THREAD_MULTIPLE unless the program has. A program without a launcher is a world of
/// one. Throws what Communicator does; MPI stays initialized then.
[[nodiscard]] Job join(const Options& options = {});

}  // namespace levada::mpi
