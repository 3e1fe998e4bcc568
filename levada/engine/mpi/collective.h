// Collective MPI calls with a time limit, for ranks that have no engine yet.
#pragma once

#include <mpi.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/engine/mpi/transport.h"

namespace levada::mpi {

/// Returns whether `request` completes within `timeout`. Throws EngineError if it fails.
bool completes(MPI_Request& request, Duration timeout);

/// Throws Timeout, which says that this rank has waited for the others for `timeout`.
[[noreturn]] void throw_late(MPI_Comm comm, Duration timeout);

// The following are collective. They throw Timeout on ranks that are still waiting for others after `timeout`, and
// EngineError for MPI errors. After a Timeout, MPI may still use the communicator, so the caller must not free it.

/// Does an MPI_Comm_dup().
MPI_Comm duplicate(MPI_Comm comm, Duration timeout);

/// Returns every rank's value, by rank.
template <typename Value>
std::vector<Value> all_gather(const Value& mine, MPI_Comm comm, Duration timeout) {
  static_assert(std::is_trivially_copyable_v<Value>);
  struct Buffers {
    Value mine;
    std::vector<Value> all;
  };
  int size = 0;
  check(MPI_Comm_size(comm, &size), "MPI_Comm_size()");
  auto buffers = std::make_unique<Buffers>(Buffers{mine, std::vector<Value>(static_cast<std::size_t>(size))});
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(&buffers->mine, sizeof(Value), MPI_BYTE, buffers->all.data(), sizeof(Value), MPI_BYTE, comm,
                       &request),
        "MPI_Iallgather()");
  if (!completes(request, timeout)) {
    static_cast<void>(buffers.release());  // MPI may write to them for the life of the process
    throw_late(comm, timeout);
  }
  return std::move(buffers->all);
}

}  // namespace levada::mpi
