// Two ranks, run by mpirun: one message of 2.1 GiB, which is larger than a single MPI call allows.
#include <cstdio>
#include <cstring>
#include <exception>

#include "levada/engine/collect.h"
#include "levada/engine/mpi/mpi.h"

namespace {

bool carries_more_than_an_int_counts() {
  const auto limit = levada::Deadline::after(std::chrono::minutes(5));
  constexpr std::size_t bytes = std::size_t{21} << 30U, piece = std::size_t{1} << 20;
  constexpr std::size_t length = bytes / 10;
  levada::mpi::Communicator communicator(MPI_COMM_WORLD, {.engine = "mpi"});
  const auto engine = communicator.make_engine();
  const auto channel = engine->open(0, {1}, 1);
  if (engine->info().rank == 0) {
    levada::Block block = levada::allocate(*engine, length, limit, "test");
    for (std::size_t at = 0; at < length; at += piece) block.memory()[at] = static_cast<std::byte>(at / piece % 251);
    block.memory()[length - 1] = std::byte{77};
    levada::publish(*engine, *channel, std::move(block), length, limit, "test");
    return true;
  }
  const auto lease = levada::receive(*engine, *channel, limit, "test");
  if (!lease || lease->bytes.size() != length || lease->bytes[length - 1] != std::byte{77}) return false;
  for (std::size_t at = 0; at < length - 1; at += piece) {
    if (lease->bytes[at] != static_cast<std::byte>(at / piece % 251)) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  try {
    if (!carries_more_than_an_int_counts())
      throw levada::EngineError("a message of 2.1 GiB has not arrived as it was sent");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_large_test: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
