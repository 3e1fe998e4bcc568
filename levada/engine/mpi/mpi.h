// Joins C++ programs that mpirun or srun has started to their job, on one or several hosts. Part of the library
// levada::mpi, which exists if Levada was built with MPI. See docs/design/mpi.md.
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
  /// "shm": shared memory, for ranks of one host. "mpi": MPI messages. "shm+mpi": shared memory within hosts, MPI
  /// between them. "auto": the result of choose_engine().
  std::string engine = "auto";
  /// Maximum memory of all blocks that this rank allocates; 0 for as much as the machine allows. With "mpi", messages
  /// received from other ranks use other memory.
  std::size_t memory_bytes = 0;
  /// How often a waiting rank asks for the status of the others, and rechecks conditions that wake no thread. 0 for
  /// every 100 ms, plus 10 ms per rank.
  Duration heartbeat = Duration::zero();
  Duration timeout = std::chrono::seconds(60);  ///< limit for all ranks to join
  int degree = default_degree;                  ///< same as joined::Options::degree
  Duration leave_timeout =
      std::chrono::minutes(30);  ///< same as joined::Options::leave_timeout, also without shared memory
  /// Longer messages are passed to MPI in pieces. Must fit into an int.
  std::size_t max_piece_bytes = std::size_t{1} << 30;
};

/// A duplicate of a communicator, for engines over it, so that they never interfere with the program's own messages.
/// Used by one thread at a time. The program must have initialized MPI, with MPI_THREAD_MULTIPLE unless the engine is
/// "shm": any other engine has a thread that calls MPI concurrently with the program. That thread sleeps while no
/// messages move.
///
/// Ranks of a host that has not answered for LEVADA_SILENCE seconds (rank 0's variable; default 10, 0 for no limit) are
/// lost, and so is a peer that an MPI error names: calls of the engine throw PeerLost with the rank. MPI does not
/// report the death of a single process, but mpirun and srun then end the whole job. After PeerLost, a program must end
/// with MPI_Abort() or without calling MPI_Finalize(), which would wait for the lost rank.
class Communicator {
 public:
  /// Collective over the ranks of `parent`. Throws InvalidArgument if MPI is not initialized or already finalized, for
  /// MPI_COMM_NULL, for an intercommunicator, and for options that are out of range or differ between ranks. Throws
  /// Unsupported for "shm" on several hosts, if a rank needs MPI_THREAD_MULTIPLE but has less, and if the launcher
  /// belongs to a different MPI from the one that the program is linked with. Throws EngineError for MPI's errors, and
  /// if hosts cannot connect to each other by TCP, for the host watch, within `timeout` or 30 s, whichever is shorter.
  /// Throws Timeout if MPI has not connected this rank with the others within `timeout`; MPI_Finalize() would then
  /// block as well.
  explicit Communicator(MPI_Comm parent, Options options = {});
  /// Collective; call before MPI_Finalize() and after destroying this rank's engines, their channels and leases. Waits
  /// until all ranks have destroyed their engines, for at most Options::leave_timeout, or only a few seconds if a group
  /// has ended for a cause or an exception is unwinding the stack. If this rank's own engines are still in use after
  /// five seconds, prints a message and calls MPI_Abort().
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Returns an engine over all ranks, numbered as in the communicator. Collective: all ranks make engines in the same
  /// order. Several engines may be in use at a time. "mpi" waits for no other rank; the other engines throw as
  /// shm::meet() does.
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
  /// Calls all_gather() over the duplicate, which it abandons after a Timeout.
  template <typename Value>
  std::vector<Value> gather_all(const Value& mine, Duration timeout);

  Duplicate duplicate_;
  const int exceptions_before_ = std::uncaught_exceptions();  ///< number being thrown when this object was constructed
  Options options_;                                           ///< `engine` is the resolved one
  int rank_ = 0;
  std::vector<int> host_of_;
  Secret secret_{};                                        ///< the same on all ranks
  std::shared_ptr<HostWatch> watch_;                       ///< null if there is only one host
  int num_engines_ = 0;                                    ///< number of engines made
  std::vector<std::shared_ptr<MpiTransport>> transports_;  ///< transports that may not be over
};

/// A process's membership in a job that mpirun or srun has started, from join() on. Provides an engine over all ranks.
class Job {
 public:
  /// Collective; destroy it after everything that uses the engine. Destroys the engine, waits until all ranks have done
  /// so, and then finalizes MPI if join() initialized it. If a rank is lost or hangs, waits only a few seconds and does
  /// not finalize MPI, because MPI_Finalize() would wait for that rank. The process may then exit in any way, and the
  /// launcher ends the others.
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

/// Joins this process to the other ranks of MPI_COMM_WORLD, as launch::join() does on one host. Collective; call once
/// per process. Initializes MPI with MPI_THREAD_MULTIPLE unless the program has done so. A program that was started
/// without a launcher is a world of one. Throws as Communicator does; MPI then stays initialized.
[[nodiscard]] Job join(const Options& options = {});

}  // namespace levada::mpi
