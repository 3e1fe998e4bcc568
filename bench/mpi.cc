// script/mpirun MPIRUN -n 2 mpi [ROUNDS]: compares an engine over MPI with plain MPI, interleaved; prints medians. Rank
// 0 measures.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bench/percentile.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/mpi/mpi.h"

namespace {

using levada::Channel;
using levada::Clock;
using levada::Engine;

levada::Deadline limit() {
  return levada::Deadline::after(std::chrono::minutes(5));
}

int rank_of_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Two ranks that exchange messages in turn: `there` bytes from rank 0, `back` bytes from rank 1.
class RawPair {
 public:
  RawPair(std::size_t there, std::size_t back) : mine_(rank_ == 0 ? there : back), theirs_(rank_ == 0 ? back : there) {}
  void exchange() {
    if (rank_ == 0) send();
    receive();
    if (rank_ == 1) send();
  }

 private:
  void send() {
    wait_for([&](auto* it) { MPI_Isend(mine_.data(), size(mine_), MPI_BYTE, 1 - rank_, 7, MPI_COMM_WORLD, it); });
  }
  void receive() {
    wait_for([&](auto* it) { MPI_Irecv(theirs_.data(), size(theirs_), MPI_BYTE, 1 - rank_, 7, MPI_COMM_WORLD, it); });
  }
  template <typename Start>
  static void wait_for(Start start) {
    MPI_Request request = MPI_REQUEST_NULL;
    start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  static int size(const std::vector<std::byte>& bytes) { return static_cast<int>(bytes.size()); }

  const int rank_ = rank_of_world();
  std::vector<std::byte> mine_, theirs_;
};

class EnginePair {
 public:
  EnginePair(Engine& engine, std::size_t there, std::size_t back)
      : engine_(engine),
        bytes_(engine.info().rank == 0 ? there : back),
        sending_(open(engine.info().rank)),
        receiving_(open(1 - engine.info().rank)) {}
  void exchange() {
    if (engine_.info().rank == 0) send();
    static_cast<void>(levada::receive(engine_, *receiving_, limit_, "benchmark"));
    if (engine_.info().rank == 1) send();
  }

 private:
  std::shared_ptr<Channel> open(int from) { return engine_.open(from, {1 - from}, 2); }
  void send() {
    levada::publish(engine_, *sending_, levada::allocate(engine_, bytes_, limit_, "benchmark"), bytes_, limit_,
                    "benchmark");
  }

  Engine& engine_;
  const levada::Deadline limit_ = limit();
  std::size_t bytes_;
  std::shared_ptr<Channel> sending_, receiving_;
};

/// Appends the duration of each of `count` calls.
void time_each(int count, const std::function<void()>& call, std::vector<double>& microseconds) {
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < count; ++i) {
    const auto began = Clock::now();
    call();
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
  }
}

void compare(Engine& engine, const char* what, std::size_t there, std::size_t back, int count, int rounds) {
  RawPair raw(there, back);
  EnginePair over(engine, there, back);
  std::vector<double> raw_times, engine_times;
  for (int round = 0; round <= rounds; ++round) {
    time_each(
        count, [&] { raw.exchange(); }, raw_times);
    time_each(
        count, [&] { over.exchange(); }, engine_times);
    if (round == 0) raw_times.clear(), engine_times.clear();  // the first round touches memory for the first time
  }
  if (engine.info().rank != 0) return;
  const double raw_median = levada::bench::percentile(raw_times, 0.5);
  const double engine_median = levada::bench::percentile(engine_times, 0.5);
  fmt::print("{}: MPI {:.1f} us, engine {:.1f} us: {:.2f} of MPI's speed, {:.2f}x its time\n", what, raw_median,
             engine_median, raw_median / engine_median, engine_median / raw_median);
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Measures the processor time of an idle second: rank 0 sleeps, and rank 1 waits for a message.
void measure_idle_wait(Engine& engine, int rounds) {
  const auto channel = engine.open(0, {1}, 1);
  std::vector<double> parts;
  for (int round = 0; round < rounds; ++round) {
    levada::agree(engine, {}, limit(), "benchmark");
    const auto began = Clock::now();
    const double cpu_before = cpu_seconds();
    if (engine.info().rank == 0) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      parts.push_back((cpu_seconds() - cpu_before) / std::chrono::duration<double>(Clock::now() - began).count());
      levada::publish(engine, *channel, levada::allocate(engine, 8, limit(), "benchmark"), 8, limit(), "benchmark");
    } else {
      static_cast<void>(levada::receive(engine, *channel, limit(), "benchmark"));
      parts.push_back((cpu_seconds() - cpu_before) / std::chrono::duration<double>(Clock::now() - began).count());
    }
  }
  const double mine = levada::bench::percentile(parts, 0.5);
  double both[2] = {};
  MPI_Gather(&mine, 1, MPI_DOUBLE, both, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (engine.info().rank == 0) {
    fmt::print("a second without messages: {:.2f}% of a core where a thread waits, {:.2f}% where none does\n",
               100 * both[1], 100 * both[0]);
  }
}

void measure(int rounds) {
  levada::mpi::Communicator communicator(MPI_COMM_WORLD, {.engine = "mpi"});
  const auto engine = communicator.make_engine();
  if (engine->info().size != 2)
    throw levada::InvalidArgument("this benchmark takes two ranks; start it by mpirun -n 2");
  compare(*engine, "13 MB there, 8 bytes back", 13'000'000, 8, 5, rounds);
  compare(*engine, "4 KiB there and back", 4096, 4096, 200, rounds);
  measure_idle_wait(*engine, 5);
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  try {
    measure(argc > 1 ? std::atoi(argv[1]) : 30);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench/mpi: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
  MPI_Finalize();
  return 0;
}
