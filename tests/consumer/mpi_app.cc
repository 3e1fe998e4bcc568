// The installed levada::mpi, in a world of one rank.
#include <chrono>

#include "levada/engine/collect.h"
#include "levada/engine/mpi/mpi.h"

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  const bool good = [] {
    levada::mpi::Communicator communicator(MPI_COMM_WORLD, {.engine = "mpi"});
    const auto engine = communicator.make_engine();
    const std::byte mine{7};
    const auto all =
        levada::agree(*engine, std::span(&mine, 1), levada::Deadline::after(std::chrono::seconds(30)), "consumer");
    return all.size() == 1 && all[0].front() == mine;
  }();
  MPI_Finalize();
  return good ? 0 : 1;
}
