// Run by mpirun with any number of ranks. Every rank runs every test; if one fails, all fail, and rank 0 prints why.
#include "levada/engine/mpi/mpi.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/mpi/transport.h"
#include "levada/engine/p2p/p2p.h"

namespace levada::mpi {
namespace {

int rank_in(MPI_Comm communicator) {
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  return rank;
}

int size_of(MPI_Comm communicator) {
  int size = 0;
  MPI_Comm_size(communicator, &size);
  return size;
}

const Options over_mpi{.engine = "mpi"};

Deadline limit() {
  return Deadline::after(std::chrono::seconds(60));
}

/// Returns a line for each rank on which `body` throws. Collective.
std::string failures(const std::function<void()>& body) {
  std::array<char, 512> mine{};
  try {
    body();
  } catch (const std::exception& error) {
    std::strncpy(mine.data(), error.what(), mine.size() - 1);
  }
  std::vector<char> all(mine.size() * static_cast<std::size_t>(size_of(MPI_COMM_WORLD)));
  MPI_Allgather(mine.data(), mine.size(), MPI_CHAR, all.data(), mine.size(), MPI_CHAR, MPI_COMM_WORLD);
  std::string text;
  for (std::size_t at = 0; at < all.size(); at += mine.size()) {
    if (all[at] != '\0') text += std::string(&all[at]) + "\n";
  }
  return text;
}

/// The same with an engine over all ranks, which is aborted if `body` throws, so that the others do not wait.
std::string failures_with_engine(const Options& options,
                                 const std::function<void(const std::shared_ptr<Engine>&)>& body) {
  return failures([&] {
    Communicator communicator(MPI_COMM_WORLD, options);
    const auto engine = communicator.make_engine();
    try {
      body(engine);
    } catch (const std::exception& error) {
      engine->abort(error.what());
      throw;
    }
  });
}

void expect(bool holds, const char* sentence) {
  if (!holds) throw conformance::Failure(sentence);
}

std::vector<conformance::Trial> trials() {
  std::vector<conformance::Trial> fitting;
  for (const conformance::Trial& trial : conformance::all_trials()) {
    if (trial.ranks == size_of(MPI_COMM_WORLD)) fitting.push_back(trial);
  }
  return fitting;
}

class MpiConformance : public testing::TestWithParam<conformance::Trial> {};

TEST_P(MpiConformance, Holds) {
  EXPECT_EQ(failures_with_engine(over_mpi, GetParam().test.run), "");
}

TEST_P(MpiConformance, HoldsWithoutHeartbeat) {
  EXPECT_EQ(failures_with_engine({.engine = "mpi", .heartbeat = Duration::max()}, GetParam().test.run), "");
}

INSTANTIATE_TEST_SUITE_P(, MpiConformance, testing::ValuesIn(trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

/// Each rank sends the next one `count` messages of at most `bytes` bytes.
void send_around(Engine& engine, std::size_t bytes, int count) {
  const int rank = engine.info().rank, size = engine.info().size;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  auto sending = engine.open(rank, {next}, 2);
  auto receiving = rank == previous ? sending : engine.open(previous, {rank}, 2);
  for (int i = 0; i < count; ++i) {
    const std::size_t length = bytes - static_cast<std::size_t>(i);
    Block block = allocate(engine, length, limit(), "test");
    std::memset(block.memory().data(), i + rank, length);
    publish(engine, *sending, std::move(block), length, limit(), "test");
    const auto lease = receive(engine, *receiving, limit(), "test");
    expect(lease && lease->bytes.size() == length, "a message arrives with its length");
    const auto value = static_cast<std::byte>(i + previous);
    expect(lease->bytes.front() == value && lease->bytes.back() == value, "a message arrives as it was sent");
  }
}

TEST(MpiMessages, LongerThanAnMpiCallAllowsAreSentInPieces) {
  constexpr std::size_t piece = 32 << 10;
  for (const std::size_t bytes : {piece - 1, piece, piece + 1, 3 * piece, 10 * piece + 17}) {
    EXPECT_EQ(failures_with_engine({.engine = "mpi", .max_piece_bytes = piece},
                                   [&](const auto& engine) { send_around(*engine, bytes + 2, 5); }),
              "");
  }
}

TEST(MpiMessages, DoNotMixWithMessagesOfOtherEnginesOrTheProgram) {
  EXPECT_EQ(failures([] {
              Communicator communicator(MPI_COMM_WORLD, over_mpi);
              const auto first = communicator.make_engine(), second = communicator.make_engine();
              std::thread other([&] { send_around(*second, 100'000, 50); });
              const int size = size_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
              for (int i = 0; i < 50; ++i) {
                int received = -1;
                MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &received, 1, MPI_INT, MPI_ANY_SOURCE,
                             MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                expect(received == (rank + size - 1) % size, "the program receives its own messages");
                send_around(*first, 1'000, 1);
              }
              other.join();
            }),
            "");
}

TEST(MpiMessages, LandInTheReceiversBlock) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank, size = engine->info().size;
    const auto other = inproc::make_group(1).front();
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    const auto sending = engine->open(rank, {next}, 1);
    const std::vector<int> to{rank};
    const auto land = [other](std::size_t bytes) { return other->try_allocate(bytes); };
    const auto receiving = size == 1 ? sending : engine->open(previous, to, 1, {.landing = land});
    agree(*engine, {}, limit(), "test");  // messages that arrive before their channel is opened land elsewhere
    if (size == 1) return;
    publish(*engine, *sending, allocate(*engine, 1'000'000, limit(), "test"), 1'000'000, limit(), "test");
    Channel* const it[] = {receiving.get()};
    static_cast<void>(engine->wait({.receive = it}, limit()));
    const Received received = engine->try_receive(*receiving);
    expect(received.landed && received.message->bytes.data() == received.landed.memory().data(),
           "a body arrives in the block of its landing");
  };
  EXPECT_EQ(failures_with_engine(over_mpi, body), "");
}

TEST(MpiEngines, HaveTheRanksOfTheirCommunicator) {
  EXPECT_EQ(failures([] {
              const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD);
              MPI_Comm reversed = MPI_COMM_NULL;
              MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &reversed);
              {
                Communicator communicator(reversed, over_mpi);
                const auto engine = communicator.make_engine();
                expect(engine->info().rank == size - 1 - rank && engine->info().size == size,
                       "ranks are those of the communicator");
                send_around(*engine, 100, 1);
              }
              MPI_Comm_free(&reversed);
            }),
            "");
}

TEST(MpiEngines, CanBeMadeRepeatedly) {
  EXPECT_EQ(failures([] {
              Communicator communicator(MPI_COMM_WORLD, over_mpi);
              for (int i = 0; i < 200; ++i) send_around(*communicator.make_engine(), 10, 1);
              for (int i = 0; i < 20; ++i) Communicator(MPI_COMM_WORLD, over_mpi).make_engine();
            }),
            "");
}

TEST(MpiEngines, OfOneMachineShareOneHost) {
  EXPECT_EQ(failures_with_engine(over_mpi,
                                 [](const auto& engine) {
                                   for (const int host : engine->info().host_of) expect(host == 0, "one host");
                                 }),
            "");
}

TEST(MpiEngines, AreRejectedOnAllRanksIfOptionsDiffer) {
  const int last = size_of(MPI_COMM_WORLD) - 1;
  if (last == 0) return;
  const auto refusal = [&](const Options& of_last) {
    try {
      const Communicator communicator(MPI_COMM_WORLD,
                                      rank_in(MPI_COMM_WORLD) == last ? of_last : Options{.max_piece_bytes = 1'000});
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string rank = std::to_string(last);
  EXPECT_EQ(refusal({.max_piece_bytes = 2'000}),
            "max_piece_bytes is 1000 on rank 0 and 2000 on rank " + rank + "; pass the same value on all ranks");
  EXPECT_EQ(refusal({.max_piece_bytes = 0}), "max_piece_bytes must be between 1 and 2147483647, got 0 on rank " + rank);
  EXPECT_EQ(refusal({.degree = 4, .max_piece_bytes = 1'000}),
            "degree is 16 on rank 0 and 4 on rank " + rank + "; pass the same value on all ranks");
  EXPECT_EQ(refusal({.degree = 0, .max_piece_bytes = 1'000}), "degree must be at least 1, got 0 on rank " + rank);
  EXPECT_EQ(refusal({.engine = "shm", .max_piece_bytes = 1'000}),
            "engine is auto on rank 0 and shm on rank " + rank + "; pass the same value on all ranks");
  EXPECT_EQ(refusal({.engine = "shared memory of the host or not", .max_piece_bytes = 1'000}),
            "engine must be one of auto, shm, mpi, shm+mpi, got 'shared memory of the ho' on rank " + rank);
}

TEST(MpiEngines, OfOneHostUseSharedMemoryUnlessAnotherIsRequested) {
  for (const std::string asked : {"auto", "shm", "mpi", "shm+mpi"}) {
    EXPECT_EQ(failures([&] {
                Communicator communicator(MPI_COMM_WORLD, {.engine = asked});
                for (int i = 0; i < 2; ++i) {
                  const auto engine = communicator.make_engine();
                  const std::string& name = engine->info().name;
                  expect(name == (asked == "auto" ? "shm" : asked), name.c_str());
                  send_around(*engine, 100'000, 3);
                }
              }),
              "");
  }
}

/// The engine's side of a transport; closes all peers when the test says so.
class Closing final : public p2p::Receiver {
 public:
  Block room_for_body(int, ByteView) override { return {}; }
  void deliver(int, ByteView, Block, std::size_t) override {}
  using Receiver::lost;
  void lost(std::span<const int> peers, std::string_view) override { lost_peer = peers.front(); }
  bool is_closed(int) override { return is_done; }
  bool all_closed() override { return is_done; }
  bool has_failed() override { return false; }
  void flush_deferred() override {}

  std::atomic<bool> is_done = false;
  std::atomic<int> lost_peer = -1;
};

TEST(MpiTransport, NotifiesAPeerThatItHasBeenGivenUp) {
  const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD);
  if (size < 2) return;
  EXPECT_EQ(failures([&] {
              MPI_Comm communicator = MPI_COMM_NULL;
              MPI_Comm_dup(MPI_COMM_WORLD, &communicator);
              MpiTransport transport({.communicator = communicator, .max_piece_bytes = 1'000}, rank,
                                     std::vector<int>(static_cast<std::size_t>(size)));
              const auto receiver = std::make_shared<Closing>();
              receiver->is_done = rank == 0;
              for (int each = 0; each < size && rank != 0; ++each) transport.close(each);
              transport.start(receiver);
              for (const Deadline deadline = limit(); rank != 0 && receiver->lost_peer < 0 && !deadline.expired();) {
                std::this_thread::yield();
              }
              expect(rank == 0 || receiver->lost_peer == 0, "the peer is notified that it has been given up");
              receiver->is_done = true;
              transport.wait_until_over(std::chrono::minutes(1));
              MPI_Barrier(communicator);
              MPI_Comm_free(&communicator);
            }),
            "");
}

TEST(MpiEngines, EndIfAPeerHasNoMemoryForABody) {
  const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD), last = size - 1;
  if (size < 2) return;
  for (const std::size_t bytes : {std::size_t{20'000}, std::size_t{5'000'000}}) {  // MPI buffers the first
    EXPECT_EQ(failures([&] {
                MPI_Comm communicator = MPI_COMM_NULL;
                MPI_Comm_dup(MPI_COMM_WORLD, &communicator);
                const auto transport = std::make_shared<MpiTransport>(
                    MpiTransport::Settings{.communicator = communicator, .max_piece_bytes = std::size_t{1} << 30}, rank,
                    std::vector<int>(static_cast<std::size_t>(size)));
                p2p::Options options;
                if (rank == last) options.limits = [] { return MemoryLimits{.total = 1 << 30, .available = 0}; };
                auto engine = p2p::make_engine(transport, options);
                std::string refusal;
                try {
                  auto channel = rank == 0 || rank == last ? engine->open(0, {last}, 2) : nullptr;
                  for (int i = 0; i < 2 && rank == 0; ++i) {
                    publish(*engine, *channel, allocate(*engine, bytes, limit(), "test"), bytes, limit(), "test");
                  }
                  engine->wait({}, limit());
                } catch (const EngineError& error) {
                  refusal = error.what();
                }
                expect(refusal.find("no memory left for a message") != std::string::npos, "the cause is named");
                engine.reset();
                for (const Deadline deadline = limit(); !transport->is_over() && !deadline.expired();) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
                if (transport->is_over()) return;
                std::fprintf(stderr, "rank %d hangs after %zu bytes\n", rank, bytes);
                MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
              }),
              "");
  }
}

TEST(MpiEngines, RejectMpiCommNull) {
  EXPECT_THROW(Communicator{MPI_COMM_NULL}, InvalidArgument);
}

}  // namespace
}  // namespace levada::mpi

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  testing::InitGoogleTest(&argc, argv);
  if (levada::mpi::rank_in(MPI_COMM_WORLD) != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
