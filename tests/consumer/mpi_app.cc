// The installed levada::mpi, in a world of one rank.
#include <chrono>

#include "levada/engine/collect.h"
#include "levada/engine/mpi/mpi.h"

int main() {
  const levada::mpi::Job job = levada::mpi::join({.engine = "mpi"});
  const std::byte mine{7};
  const auto all =
      levada::agree(*job.engine(), std::span(&mine, 1), levada::Deadline::after(std::chrono::seconds(30)), "consumer");
  return all.size() == 1 && all[0].front() == mine ? 0 : 1;
}
