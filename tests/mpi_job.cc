// mpi_job CASE [ENGINE [CONTAINS]]: what tests/test_mpi_hosts.py has mpirun start, on one host or several.
#include <fmt/format.h>

#include <bit>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "levada/engine/choice.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/mpi/mpi.h"
#include "levada/exchange/exchange_testing.h"
#include "levada/feed/feed.h"
#include "levada/reduce/bucketer.h"

namespace {

using levada::Engine;

levada::Deadline limit() {
  return levada::Deadline::after(std::chrono::seconds(60));
}

void print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void expect(bool holds, const std::string& sentence) {
  if (!holds) throw std::runtime_error(sentence);
}

/// Every case of the contract that as many ranks can run and whose name contains `only`, each with an engine of its
/// own.
int check_conformance(const std::string& name, const std::string& only) {
  // In one case a channel never ends.
  levada::mpi::Communicator communicator(MPI_COMM_WORLD, {.engine = name, .leave_timeout = std::chrono::seconds(2)});
  int rank = 0, size = 0, num_cases = 0, num_failures = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const levada::conformance::Trial& trial : levada::conformance::all_trials()) {
    if (trial.ranks != size || trial.test.name.find(only) == std::string_view::npos) continue;
    ++num_cases;
    const auto engine = communicator.make_engine();
    try {
      trial.test.run(engine);
    } catch (const std::exception& error) {
      ++num_failures;
      engine->abort(error.what());
      print_line(fmt::format("rank {}: {}: {}", rank, trial.test.name, error.what()));
    }
  }
  const auto engine = communicator.make_engine();
  if (rank == 0) print_line(levada::describe_engine(engine->info()));
  print_line(fmt::format("{} cases, {} failures", num_cases, num_failures));
  return num_failures == 0 ? 0 : 1;
}

/// Sample g is g.
class Numbers final : public levada::Source {
 public:
  std::optional<std::int64_t> size() const override { return num_samples; }
  std::optional<levada::Tree> read(std::int64_t first, std::int64_t count, levada::Memory& memory) override {
    count = std::min(count, num_samples - first);
    if (count < 1) return std::nullopt;
    auto numbers = memory.empty(levada::dtypes::int64, {count});
    for (std::int64_t row = 0; row < count; ++row) {
      numbers.mutable_as<std::int64_t>()[static_cast<std::size_t>(row)] = first + row;
    }
    return levada::Tree::dict({{"numbers", std::move(numbers)}});
  }
  levada::Bytes cursor(std::int64_t next) const override {
    levada::ByteWriter bytes;
    bytes.put(next);
    return std::move(bytes).take();
  }
  std::string activity() const override { return "counting"; }
  levada::ReadStats stats() const override { return {}; }

  static constexpr std::int64_t num_samples = 4'000;
};

void check_feed(const std::shared_ptr<Engine>& engine) {
  const int size = engine->info().size;
  const auto mesh = levada::Mesh::parse(fmt::format("dp={}", size));
  constexpr std::int64_t batch = 8;
  levada::Feed feed(engine, mesh, levada::layouts::data_parallel(), std::make_shared<Numbers>(), {.batch = batch});
  std::int64_t next = batch * engine->info().rank;
  while (auto received = feed.next()) {
    const auto numbers = received->tensor("numbers").as<std::int64_t>();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      expect(numbers[i] == next + static_cast<std::int64_t>(i), "the feed gives a rank the samples of another");
    }
    next += batch * size;
  }
  expect(feed.end()->at.step == Numbers::num_samples / (batch * size), "the feed ends at another step");
}

void check_exchange(const std::shared_ptr<Engine>& engine) {
  const int size = engine->info().size;
  const auto all = levada::ModelRanks::from(levada::Mesh::parse(fmt::format("dp={}", size)));
  const auto pairs = levada::ModelRanks::from(levada::Mesh::parse(fmt::format("dp={},tp=2", size / 2)));
  const auto wrong =
      levada::check_redistribution(engine, {all, pairs, levada::numbered_ids(100), {"tokens", "hidden"}});
  expect(wrong.empty(), "the exchange: " + wrong);
}

void check_sums(const std::shared_ptr<Engine>& engine) {
  const int size = engine->info().size;
  const std::int64_t count = std::int64_t{10'000} * size;
  const auto part = [](int rank, std::size_t i) {
    return 1.0F / static_cast<float>(1 + (7 * i + 101 * static_cast<std::size_t>(rank)) % 9973);
  };
  auto input = levada::Tensor::empty(levada::dtypes::float32, {count});
  auto values = input.mutable_as<float>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = part(engine->info().rank, i);
  levada::Bucketer bucketer;
  const auto handle = bucketer.reduce_scatter(engine, input, levada::ReduceOp::sum);
  bucketer.flush();
  const levada::Tensor result = handle.wait();
  const auto sums = result.as<float>();
  const std::size_t first = sums.size() * static_cast<std::size_t>(engine->info().rank);
  const auto& hosts = engine->info().host_of;  // in their order
  for (std::size_t i = 0; i < sums.size(); ++i) {
    // The ranks of each host first, and then the hosts.
    float sum = 0, of_host = 0;
    for (int rank = 0; rank < size; ++rank) {
      of_host += part(rank, first + i);
      const bool is_last =
          rank + 1 == size || hosts[static_cast<std::size_t>(rank) + 1] != hosts[static_cast<std::size_t>(rank)];
      if (is_last) sum += std::exchange(of_host, 0.0F);
    }
    expect(std::bit_cast<std::uint32_t>(sum) == std::bit_cast<std::uint32_t>(sums[i]),
           "a sum differs from that of the hosts' sums");
  }
  levada::agree(*engine, {}, limit(), "test");
}

int work(const std::string& name) {
  const levada::mpi::Job job = levada::mpi::join({.engine = name});
  if (job.engine()->info().rank == 0) print_line(levada::describe_engine(job.engine()->info()));
  check_feed(job.engine());
  check_exchange(job.engine());
  check_sums(job.engine());
  print_line(fmt::format("rank {} is done", job.engine()->info().rank));
  return 0;
}

/// The last rank gets a signal, if any; the others wait for it, or for messages that never come.
int wait_for_others(const std::string& name, int signal) {
  const levada::mpi::Job job = levada::mpi::join({.engine = name});
  const int rank = job.engine()->info().rank, last = job.engine()->info().size - 1;
  levada::agree(*job.engine(), {}, limit(), "test");
  print_line(fmt::format("rank {} works", rank));
  if (signal != 0 && rank == last) ::raise(signal);
  if (signal == 0) job.engine()->wait({}, limit());
  levada::agree(*job.engine(), {}, limit(), "test");
  return 0;
}

int run(const std::string& test, const std::string& name, const std::string& only) {
  if (test == "conformance") {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    const int status = check_conformance(name, only);
    MPI_Finalize();
    return status;
  }
  if (test == "work") return work(name);
  return wait_for_others(name, test == "kill" ? SIGKILL : test == "stop" ? SIGSTOP : 0);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "auto", argc > 3 ? argv[3] : "");
  } catch (const levada::Error& error) {
    print_line(fmt::format("{}: {}", error.name(), error.what()));
  } catch (const std::exception& error) {
    print_line(error.what());
  }
  return 1;
}
