// An engine over MPI, for C++ programs that mpirun or srun starts. The library levada::mpi, which exists where Levada
// was built with MPI. docs/design/mpi.md explains how.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "levada/engine/engine.h"

namespace levada::mpi {

class MpiTransport;

struct Options {
  std::size_t memory_bytes = 0;  ///< what the blocks of this rank may take together; 0: what the machine allows
  /// How often a rank that waits asks what the others do, and looks again at what wakes nobody. 0: every 100 ms, and
  /// 10 ms more for each rank.
  Duration heartbeat = Duration::zero();
};

/// A duplicate of a communicator for engines over it; the program's own messages are never touched. One thread at a
/// time. The program calls MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...) before, since each engine has a thread that
/// calls MPI beside the program's own; it sleeps while nothing moves.
///
/// Errors that MPI returns make a peer lost: calls of the engine throw PeerLost, which names the rank. But MPI does not
/// say that a process has died: mpirun and srun end the whole job then. After PeerLost a program ends by MPI_Abort(),
/// since MPI_Finalize() would wait for the lost rank.
class Communicator {
 public:
  /// Collective over the ranks of `parent`. MPI gets messages longer than `max_piece_bytes` in pieces; at most what
  /// fits into an int, and the same on all ranks. Throws InvalidArgument where MPI is not initialized, or is finalized
  /// already, for MPI_COMM_NULL, for an intercommunicator, and for max_piece_bytes out of range or different on some
  /// rank; Unsupported where a rank has less than MPI_THREAD_MULTIPLE, and where the launcher is not of the MPI that
  /// the program is linked with; EngineError for what MPI reports.
  explicit Communicator(MPI_Comm parent, std::size_t max_piece_bytes = std::size_t{1} << 30);
  /// Collective, before MPI_Finalize() and after this rank's engines, their channels and leases. Waits until all ranks
  /// have destroyed their engines. Where this rank's own are in use it calls MPI_Abort() after a second, with a
  /// message.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Returns an engine over all ranks, by their numbers in the communicator. Collective, but waits for nobody: ranks
  /// make engines in the same order. Several may be in use at a time.
  std::shared_ptr<Engine> make_engine(const Options& options = {});
  /// Returns an engine of shared memory where all ranks are on one host; make_engine()'s where each is on its own; else
  /// one of both, the first within hosts, the other between them. Collective, and waits at most `timeout` for the ranks
  /// of this host. Throws what shm::meet() throws.
  std::shared_ptr<Engine> join_hosts(const Options& options = {}, Duration timeout = std::chrono::seconds(60));

 private:
  struct Duplicate {
    MPI_Comm comm = MPI_COMM_NULL;
    ~Duplicate();
  };
  Duplicate duplicate_;
  int rank_ = 0;
  std::vector<int> host_of_;
  std::size_t max_piece_bytes_;
  int num_engines_ = 0;                                    ///< that have been made
  std::uint64_t nonce_ = 0;                                ///< the same on all ranks
  int num_joins_ = 0;                                      ///< calls of join_hosts()
  std::vector<std::shared_ptr<MpiTransport>> transports_;  ///< that may not be over
};

}  // namespace levada::mpi
