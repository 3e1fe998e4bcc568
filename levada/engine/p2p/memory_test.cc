// Memory of a rank's own blocks and of received messages.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/p2p/frame.h"
#include "levada/engine/p2p/in_process_transport_testing.h"
#include "levada/engine/p2p/still_transport_testing.h"
#include "levada/engine/ranks.h"

namespace levada::p2p {
namespace {

/// Checks the errors of two ranks if one sends the other more than it has memory for.
void expect_no_memory(std::size_t bytes) {
  test::LoopbackNetwork network(2, {.has_threads = false});
  const auto make = [&](int rank, const Options& options) {
    return make_engine(std::make_shared<test::LoopbackTransport>(network, rank, std::vector{0, 1}), options);
  };
  const auto sender = make(0, {});
  const auto short_of_memory = make(1, {.limits = [] { return MemoryLimits{.total = 1 << 30, .available = 0}; }});
  const auto sending = sender->open(0, {1}, 2), receiving = short_of_memory->open(0, {1}, 2);
  for (int i = 0; i < 2; ++i) test::send(*sender, *sending, bytes, std::byte{1});
  for (const auto& engine : {short_of_memory, sender}) {
    EXPECT_THROW(engine->wait({}, test::limit()), EngineError);
    const Cause cause = engine->cause().value();
    EXPECT_EQ(cause.kind, ErrorKind::engine);
    EXPECT_EQ(cause.rank, 1);
    EXPECT_NE(cause.text().find("rank 1 aborted: it has no memory left for a message of"), std::string::npos)
        << cause.text();
  }
}

TEST(P2pMemory, ShortageForAMessageBlamesNoPeer) {
  expect_no_memory(100);
}

TEST(P2pMemory, ShortageForABodyBlamesNoPeer) {
  expect_no_memory(1'000'000);
}

/// A thread that sleeps until it is woken throws `E` once room has been requested for this header.
template <typename E>
void expect_room_wakes(ByteView header) {
  const auto transport = std::make_shared<test::StillTransport>();
  const auto engine = make_engine(transport, {.heartbeat = Duration::max(),
                                              .limits = [] { return MemoryLimits{.total = 1 << 30, .available = 0}; }});
  auto waiting = std::async(std::launch::async, [&] { engine->wait({}, test::limit()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(transport->receiver().room_for_body(1, header));
  EXPECT_EQ(waiting.wait_for(std::chrono::seconds(15)), std::future_status::ready);
  EXPECT_THROW(waiting.get(), E);
}

TEST(P2pMemory, ShortageForABodyWakesWaitingThreads) {
  const Entry entry{.key = 1, .count = 1'000'000};
  expect_room_wakes<EngineError>(encode({&entry, 1}).bytes);
}

TEST(P2pHeaders, ThatAreMalformedWakeWaitingThreads) {
  expect_room_wakes<CorruptMessage>(as_bytes("no header of a frame, but as long as one"));
}

TEST(P2pMemory, OfReceivedMessagesIsReturnedToTheSystem) {
  test::LoopbackNetwork network(2);
  const auto engines = test::make_engines(network);
  const auto sending = engines[0]->open(0, {1}, 1), receiving = engines[1]->open(0, {1}, 1);
  test::send(*engines[0], *sending, 1'000'000, std::byte{1});
  auto lease = receive(*engines[1], *receiving, test::limit(), "test");
  EXPECT_EQ(engines[1]->trim(), 0U) << "the leased message stays in memory";
  lease.reset();
  EXPECT_GE(engines[1]->trim(), 1'000'000U);
}

/// Two ranks that send each other messages of the same ragged sizes, and keep the last ones that they received.
class RaggedExchange {
 public:
  static constexpr std::size_t batch = 4, kept = 8, messages = 400;

  void run() {
    for (std::size_t first = 0; first < messages; first += batch) {
      for (const std::size_t rank : {0, 1}) send_batch(rank, first);
      for (const std::size_t rank : {0, 1}) receive_batch(rank);
    }
  }
  /// Ends all leases, and returns the bytes that the rank's pools had cached.
  std::uint64_t trim(std::size_t rank) {
    leases_[rank].clear();
    Engine& engine = *engines_[rank];
    for (const Deadline late = test::limit(); engine.memory_in_use() > 0 && !late.expired();) std::this_thread::yield();
    return engine.trim();
  }
  /// Maximum bytes that the rank has had in use: its own blocks, and messages received or still to arrive.
  std::uint64_t max_in_use(std::size_t rank) const {
    std::uint64_t most = 0;
    for (std::size_t end = batch; end <= messages; end += batch) {
      const auto last = sizes_.begin() + static_cast<std::ptrdiff_t>(end);
      most = std::max(most, std::accumulate(last - static_cast<std::ptrdiff_t>(std::min(end, kept + batch)), last,
                                            std::uint64_t{0}));
    }
    return max_sent_[rank] + most;
  }

 private:
  static std::vector<std::size_t> ragged_sizes() {
    std::mt19937 random(11);
    std::uniform_real_distribution<double> exponent(16, 21);
    std::vector<std::size_t> sizes(messages);
    for (auto& size : sizes) size = static_cast<std::size_t>(std::exp2(exponent(random)));
    return sizes;
  }
  void send_batch(std::size_t rank, std::size_t first) {
    Engine& engine = *engines_[rank];
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < batch; ++i) {
      blocks.push_back(allocate(engine, sizes_[first + i], test::limit(), "test"));
      max_sent_[rank] = std::max(max_sent_[rank], engine.memory_in_use());
    }
    for (std::size_t i = 0; i < batch; ++i) {
      publish(engine, *sending_[rank], std::move(blocks[i]), sizes_[first + i], test::limit(), "test");
    }
  }
  void receive_batch(std::size_t rank) {
    for (std::size_t i = 0; i < batch; ++i) {
      leases_[rank].push_back(receive(*engines_[rank], *receiving_[rank], test::limit(), "test").value());
      if (leases_[rank].size() > kept) leases_[rank].pop_front();
    }
  }

  const std::vector<std::size_t> sizes_ = ragged_sizes();
  test::LoopbackNetwork network_{2};
  std::vector<std::shared_ptr<Engine>> engines_ = test::make_engines(network_);
  std::shared_ptr<Channel> sending_[2] = {engines_[0]->open(0, {1}, batch), engines_[1]->open(1, {0}, batch)};
  std::shared_ptr<Channel> receiving_[2] = {engines_[0]->open(1, {0}, batch), engines_[1]->open(0, {1}, batch)};
  std::deque<Lease> leases_[2];
  std::uint64_t max_sent_[2] = {0, 0};
};

TEST(P2pMemory, StaysNearItsPeakForRaggedMessagesInBothDirections) {
  RaggedExchange exchange;
  exchange.run();
  for (const std::size_t rank : {0, 1}) {
    const double kept = static_cast<double>(exchange.trim(rank)) / static_cast<double>(exchange.max_in_use(rank));
    EXPECT_GT(kept, 0.5);
    EXPECT_LT(kept, 1.3);
  }
}

TEST(P2pFork, DoesNotAffectTheParentsLeases) {
  const auto transport = std::make_shared<test::StillTransport>();
  const auto engine = make_engine(transport);
  const auto own = engine->open(0, {0}, 1), receiving = engine->open(1, {0}, 1);
  test::send(*engine, *own, 100, std::byte{1});
  const Group group = root_group("p2p", 0, 2);
  const std::uint64_t key = KeyDeriver(group.key()).channel(1, receiving->to());
  transport->deliver(entry_of(Notice{.kind = Notice::Kind::opened, .key = key, .group = group.key(), .window = 1}));
  transport->deliver({.key = key, .count = 1, .payload = as_bytes("x")});
  Lease leases[] = {engine->try_receive(*own).message.value(), engine->try_receive(*receiving).message.value()};
  bool is_notified = false;
  engine->on_change([&] { is_notified = true; });
  const int child = ::fork();
  if (child == 0) {
    for (Lease& lease : leases) lease = {};
    ::_exit(is_notified ? 1 : 0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  engine->on_change({});
  EXPECT_EQ(status, 0) << "the child has changed state that the parent's threads wait for";
  EXPECT_EQ(engine->holders(*own).at(0).leased, 1);
  EXPECT_EQ(leases[1].bytes[0], std::byte{'x'});
}

}  // namespace
}  // namespace levada::p2p
