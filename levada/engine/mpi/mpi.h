// An engine over MPI, for C++ programs that mpirun or srun starts. The library levada::mpi, which exists where Levada
// was built with MPI. docs/design/mpi.md explains how.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>

#include "levada/engine/engine.h"

namespace levada::mpi {

struct Options {
  std::size_t memory_bytes = 0;  ///< what the blocks of this rank may take together; 0: what the machine allows
  /// How often a rank that waits asks what the others do, and looks again at what wakes nobody. 0: every 100 ms, and
  /// 10 ms more for each rank.
  Duration heartbeat = Duration::zero();
  /// MPI gets longer messages in several pieces of this size. The same on all ranks; at most what fits into an int.
  std::size_t max_piece_bytes = std::size_t{1} << 30;
};

/// Returns an engine over the ranks of `communicator`, by their numbers in it. Collective over them. Engines of one
/// communicator are made in the same order on all its ranks; several may be in use at a time.
///
/// The program calls MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...) before, since a thread of the engine's calls MPI
/// beside the program's own; that thread sleeps while nothing moves. The first engine of a communicator duplicates it,
/// and the program's own messages are never touched. MPI_Comm_free() of the communicator, and MPI_Finalize(), wait
/// until all ranks have destroyed their engines, and then free the duplicate. A rank that calls one of them while its
/// own engine is in use calls MPI_Abort() after a second, with a message.
///
/// Errors that MPI returns make a peer lost: calls throw PeerLost, which names the rank. But MPI itself does not say
/// that a process has died: mpirun and srun end the whole job then. After PeerLost a program ends by MPI_Abort(), since
/// MPI_Finalize() would wait for the lost rank.
///
/// Throws InvalidArgument where MPI is not initialized, or finalized already, for MPI_COMM_NULL and for an
/// intercommunicator, and where ranks differ in `max_piece_bytes`; Unsupported where a rank has less than
/// MPI_THREAD_MULTIPLE, and where the launcher is not of the MPI that the program is linked with; EngineError for
/// what MPI reports.
std::shared_ptr<Engine> make_engine(MPI_Comm communicator, const Options& options = {});

}  // namespace levada::mpi
