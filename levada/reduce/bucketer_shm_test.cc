// Reductions between real processes.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/reduce/bucketer.h"

namespace levada {
namespace {

using Handle = std::shared_ptr<Engine>;

const shm::Options memory{.memory_bytes = std::size_t{256} << 20};

void expect(bool holds, const std::string& sentence) {
  if (!holds) throw std::runtime_error(sentence);
}

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

/// Returns different numbers on every rank, whose sum depends on the order of addition.
Tensor numbers(int rank, int n, std::int64_t count) {
  Tensor tensor = Tensor::empty(dtypes::float32, {count});
  auto values = tensor.mutable_as<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 1.0F / static_cast<float>(1 + (i * 7 + static_cast<std::size_t>(n * 13 + rank * 101)) % 9973);
  }
  return tensor;
}

std::vector<float> sum_of_part(int ranks, int part, int n, std::int64_t count) {
  std::vector<float> sums;
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensor whole = numbers(rank, n, count);
    const auto values = whole.as<float>().subspan(static_cast<std::size_t>(part * count / ranks),
                                                  static_cast<std::size_t>(count / ranks));
    if (rank == 0) sums.assign(values.begin(), values.end());
    else
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
  return sums;
}

/// Returns the bytes allocated from the heap and the engine.
std::size_t bytes_in_use(Engine& engine) {
  const auto heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd + engine.memory_in_use();
}

TEST(BucketerBetweenProcesses, AddsInRankOrder) {
  for (const int ranks : {1, 2, 4, 8}) {
    const auto body = [](const Handle& engine) {
      const auto& info = engine->info();
      Bucketer bucketer({.capacity = 1 << 20});
      std::vector<Bucketer::Handle> handles;
      const auto count = [&](int n) { return std::int64_t{info.size} * (n % 5 == 4 ? 100'000 : 37 * (n + 1)); };
      for (int n = 0; n < 30; ++n) {
        handles.push_back(bucketer.reduce_scatter(engine, numbers(info.rank, n, count(n)), ReduceOp::sum));
      }
      bucketer.flush();
      for (int n = 0; n < 30; ++n) {
        const auto sums = sum_of_part(info.size, info.rank, n, count(n));
        const Tensor result = handles[static_cast<std::size_t>(n)].wait();
        const auto given = result.as<float>();
        expect(std::memcmp(given.data(), sums.data(), given.size_bytes()) == 0, fmt::format("input {} differs", n));
      }
      agree(*engine, {}, soon(), "test");
    };
    EXPECT_EQ(shm::test::run_forked(ranks, body, memory), "");
  }
}

TEST(BucketerBetweenProcesses, DoesNotGrowOverThousandsOfFlushes) {
  const auto body = [](const Handle& engine) {
    Bucketer bucketer({.capacity = 1 << 16});
    const Tensor tensor = numbers(engine->info().rank, 0, 4000);
    std::size_t before = 0;
    for (int i = 0; i < 3000; ++i) {
      if (i == 1000) before = bytes_in_use(*engine);
      for (int n = 0; n < 3; ++n) bucketer.reduce_scatter(engine, tensor, ReduceOp::sum, [](const Tensor&) {});
      bucketer.flush();
    }
    const std::size_t after = bytes_in_use(*engine);
    expect(after <= before + (std::size_t{1} << 20), fmt::format("from {} to {} bytes", before, after));
    agree(*engine, {}, soon(), "test");
  };
  EXPECT_EQ(shm::test::run_forked(2, body, memory), "");
}

/// Returns the bytes of shared memory that are resident in this process.
std::size_t shared_resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return shared * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(BucketerBetweenProcesses, ReleasesItsMemoryOnTeardown) {
  const auto body = [](const Handle& engine) {
    Bucketer bucketer;
    const Tensor tensor = numbers(engine->info().rank, 0, 4 << 20);
    for (int round = 0; round < 2; ++round) {
      bucketer.reduce_scatter(engine, tensor, ReduceOp::sum);
      bucketer.flush();
      agree(*engine, {}, soon(), "test");
      const std::size_t before = shared_resident_bytes();
      agree(*engine, {}, soon(), "test");  // a peer's teardown includes what has been read from it
      bucketer.teardown();
      agree(*engine, {}, soon(), "test");
      // This rank's inputs and sums, and what it has read of its peer's.
      const std::size_t size = tensor.bytes().size();
      expect(shared_resident_bytes() + size + size / 2 <= before, "resident memory falls by its size");
      expect(engine->trim() < (std::size_t{1} << 20), "nothing of it is left");
    }
  };
  EXPECT_EQ(shm::test::run_forked(2, body, memory), "");
}

TEST(BucketerBetweenProcesses, ReportsAKilledRankSoon) {
  const auto body = [](const Handle& engine) {
    Bucketer bucketer;
    auto last = Clock::now();
    try {
      for (int n = 0;; ++n) {
        bucketer.reduce_scatter(engine, numbers(engine->info().rank, n, 300), ReduceOp::sum);
        bucketer.flush();
        last = Clock::now();
        if (engine->info().rank == 1 && n == 3) ::raise(SIGKILL);
      }
    } catch (const PeerLost& lost) {
      expect(lost.rank() == 1, fmt::format("rank {} was lost", lost.rank()));
      expect(Clock::now() - last < std::chrono::seconds(5), "no time-out is waited for");
    }
  };
  auto links = shm::make_links(3);
  shm::test::ForkedRanks ranks(3, [&](int rank) {
    auto own = std::move(links[static_cast<std::size_t>(rank)]);
    links.clear();
    body(shm::join(rank, 3, std::move(own), memory));
  });
  links.clear();
  const auto endings = ranks.wait(soon());
  EXPECT_EQ(endings[1].signal, SIGKILL);
  EXPECT_TRUE(endings[0].well) << endings[0].error;
  EXPECT_TRUE(endings[2].well) << endings[2].error;
}

}  // namespace
}  // namespace levada
