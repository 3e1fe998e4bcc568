#include "levada/engine/mpi/collective.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "levada/base/error.h"

namespace levada::mpi {

bool completes(MPI_Request& request, Duration timeout) {
  constexpr Duration eager_for = std::chrono::milliseconds(10), pause = std::chrono::milliseconds(1);
  const auto deadline = Deadline::after(timeout), eager_until = Deadline::after(eager_for);
  for (;;) {
    int is_complete = 0;
    check(MPI_Test(&request, &is_complete, MPI_STATUS_IGNORE), "MPI_Test()");
    if (is_complete != 0) return true;
    if (deadline.expired()) return false;
    if (eager_until.expired()) std::this_thread::sleep_for(pause);
    else std::this_thread::yield();
  }
}

void throw_late(MPI_Comm comm, Duration timeout) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  throw Timeout(
      fmt::format("rank {} on host {} has waited {} for all {} ranks to join by MPI: check whether each of them calls "
                  "levada::mpi::join() or Communicator(), whether a firewall lies between their hosts, and whether MPI "
                  "uses a network that all of them are in (Open MPI: --mca btl_tcp_if_include; MPICH: -iface)",
                  rank, host.data(), format_duration(timeout), size));
}

MPI_Comm duplicate(MPI_Comm comm, Duration timeout) {
  auto result = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(comm, result.get(), &request), "MPI_Comm_idup()");
  if (completes(request, timeout)) return *result;
  static_cast<void>(result.release());  // MPI may write to it for the life of the process
  throw_late(comm, timeout);
}

}  // namespace levada::mpi
