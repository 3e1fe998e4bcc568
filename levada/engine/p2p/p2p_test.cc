#include "levada/engine/p2p/p2p.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/collective_order.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/p2p/frame.h"
#include "levada/engine/p2p/in_process_transport_testing.h"
#include "levada/engine/p2p/still_transport_testing.h"
#include "levada/engine/ranks.h"

namespace levada::p2p {
namespace {

class P2pConformance : public testing::TestWithParam<conformance::Trial> {};

TEST_P(P2pConformance, Holds) {
  EXPECT_EQ(test::run_ranks(GetParam().ranks, GetParam().test.run), "");
}

TEST_P(P2pConformance, HoldsWithoutHeartbeat) {
  EXPECT_EQ(test::run_ranks(GetParam().ranks, GetParam().test.run, {.heartbeat = Duration::max()}), "");
}

INSTANTIATE_TEST_SUITE_P(, P2pConformance, testing::ValuesIn(conformance::all_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

class P2pDeath : public testing::TestWithParam<conformance::DeathTrial> {};

void expect_death_is_seen(const conformance::DeathTrial& trial, const Options& options) {
  const auto body = [&](const std::shared_ptr<Engine>& engine, test::LoopbackNetwork& network) {
    trial.test.run(engine, [&] { network.lose(engine->info().rank); });
  };
  EXPECT_EQ(test::run_ranks(trial.ranks, body, options), "");
}

TEST_P(P2pDeath, Holds) {
  expect_death_is_seen(GetParam(), {});
}

TEST_P(P2pDeath, HoldsWithoutHeartbeat) {
  expect_death_is_seen(GetParam(), {.heartbeat = Duration::max()});
}

INSTANTIATE_TEST_SUITE_P(, P2pDeath, testing::ValuesIn(conformance::all_death_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

TEST(P2pLoss, WakesAWaitNamingTheLostRank) {
  test::LoopbackNetwork network(3);
  const auto engines = test::make_engines(network);
  auto waiting = std::async(std::launch::async,
                            [&] { return conformance::lost_rank([&] { engines[0]->wait({}, Deadline::never()); }); });
  network.lose(2);
  EXPECT_EQ(waiting.get(), 2);
}

TEST(P2pLoss, KeepsArrivedMessagesReceivable) {
  test::LoopbackNetwork network(2);
  const auto engines = test::make_engines(network);
  const auto sending = engines[1]->open(1, {0}, 2), receiving = engines[0]->open(1, {0}, 2);
  test::send(*engines[1], *sending, 8, std::byte{1});
  test::send(*engines[1], *sending, 1'000'000, std::byte{2});
  network.lose(1);
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->wait({}, test::limit()); }), 1);
  Channel* const channels[] = {receiving.get()};
  EXPECT_EQ(engines[0]->wait({.receive = channels}, test::limit()), Woken::ready);
  EXPECT_EQ(engines[0]->try_receive(*receiving).message.value().bytes[7], std::byte{1});
  const Lease second = engines[0]->try_receive(*receiving).message.value();
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->try_receive(*receiving); }), 1);
  EXPECT_EQ(second.bytes[999'999], std::byte{2});
}

TEST(P2pLoss, IgnoresARankThatHasLeft) {
  test::LoopbackNetwork network(2);
  auto engines = test::make_engines(network);
  const auto receiving = engines[0]->open(1, {0}, 1);
  engines[1].reset();
  EXPECT_FALSE(receive(*engines[0], *receiving, test::limit(), "test"));
  network.lose(1);
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->wait({}, Deadline::after(std::chrono::milliseconds(20))); }), -1);
}

TEST(P2pLoss, ReachesRanksThatCannotDetectIt) {
  test::LoopbackNetwork network(3);
  const auto engines = test::make_engines(network);
  network.send(1, {.from = 2});
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->wait({}, test::limit()); }), 2);
  network.lose(2);
}

TEST(P2pLoss, OfOneReceiverOfAMulticastSparesTheOthers) {
  test::LoopbackNetwork network(4);
  const auto engines = test::make_engines(network);
  const std::vector<std::size_t> living{0, 1, 3};
  std::vector<std::shared_ptr<Channel>> channels;
  for (const auto& engine : engines) channels.push_back(engine->open(0, {1, 2, 3}, 2));
  std::vector<std::shared_ptr<Engine>> among_the_living;
  for (const std::size_t rank : living) {
    among_the_living.push_back(engines[rank]->subgroup(std::vector<int>{0, 1, 3}, "living"));
  }
  test::send(*engines[0], *channels[0], 1, std::byte{5});  // with notices, so no two receivers share a frame
  for (const std::size_t rank : {1, 2, 3})
    static_cast<void>(receive(*engines[rank], *channels[rank], test::limit(), "test"));
  network.disconnect(2);
  test::send(*engines[0], *channels[0], 1'000'000, std::byte{6});
  for (const std::size_t rank : living) {
    EXPECT_EQ(conformance::lost_rank([&] { engines[rank]->wait({}, test::limit()); }), 2);
    if (rank == 0) continue;
    const Lease lease = engines[rank]->try_receive(*channels[rank]).message.value();
    EXPECT_EQ(lease.bytes[999'999], std::byte{6});
  }
  std::vector<std::future<std::vector<Bytes>>> agreeing;
  for (const auto& engine : among_the_living) {
    agreeing.push_back(
        std::async(std::launch::async, [&] { return agree(*engine, as_bytes("x"), test::limit(), "test"); }));
  }
  for (auto& each : agreeing) EXPECT_EQ(each.get().size(), 3U);
  network.lose(2);
}

/// Three ranks; rank 1 has sent rank 0 a message, and can send another one after its end.
class PeerThatIsOut {
 public:
  Engine& engine(int rank) { return *engines_[static_cast<std::size_t>(rank)]; }
  Channel& receiving() { return *receiving_; }
  test::LoopbackNetwork& network() { return network_; }

  void send_first() {
    test::send(engine(1), *sending_, 1, std::byte{1});
    static_cast<void>(receive(engine(0), receiving(), test::limit(), "test"));
  }
  void leave() {
    sending_.reset();
    engines_[1].reset();
  }
  /// Returns once rank 0 has seen it.
  void send_once_more() {
    const std::vector<int> to{0};
    const std::uint64_t key = KeyDeriver(root_group("p2p", 0, 3).key()).channel(1, to);
    const Entry entry{.key = key, .count = 1, .payload = as_bytes("x")};
    const Lease header = encode({&entry, 1});
    network_.send(0, {.from = 1, .frame = Frame{.header = header, .body = {}}});
    test::send(*rest_[1], *marker_[1], 1, std::byte{1});
    static_cast<void>(receive(*rest_[0], *marker_[0], test::limit(), "test"));
  }

 private:
  static std::vector<std::shared_ptr<Engine>> subgroups(const std::vector<std::shared_ptr<Engine>>& engines) {
    const std::vector<int> ranks{0, 2};
    return {engines[0]->subgroup(ranks, "rest"), engines[2]->subgroup(ranks, "rest")};
  }

  test::LoopbackNetwork network_{3};
  std::vector<std::shared_ptr<Engine>> engines_ = test::make_engines(network_);
  std::vector<std::shared_ptr<Engine>> rest_ = subgroups(engines_);
  std::vector<std::shared_ptr<Channel>> marker_{rest_[0]->open(1, {0}, 1), rest_[1]->open(1, {0}, 1)};
  std::shared_ptr<Channel> sending_ = engines_[1]->open(1, {0}, 2);
  std::shared_ptr<Channel> receiving_ = engines_[0]->open(1, {0}, 2);
};

TEST(P2pLoss, EndsTheMessagesOfTheLostRank) {
  PeerThatIsOut peer;
  peer.send_first();
  peer.network().send(0, {.from = 1});
  EXPECT_EQ(conformance::lost_rank([&] { peer.engine(0).wait({}, test::limit()); }), 1);
  peer.send_once_more();
  EXPECT_EQ(conformance::lost_rank([&] { peer.engine(0).try_receive(peer.receiving()); }), 1);
  peer.network().lose(1);
}

TEST(P2pLeaving, EndsTheMessagesOfTheLeavingRank) {
  PeerThatIsOut peer;
  peer.send_first();
  peer.leave();
  EXPECT_FALSE(receive(peer.engine(0), peer.receiving(), test::limit(), "test"));
  peer.send_once_more();
  EXPECT_TRUE(peer.engine(0).try_receive(peer.receiving()).ended);
}

TEST(P2pAbort, IsTheCauseEvenIfALeavingRankIsSeenFirst) {
  test::LoopbackNetwork network(3);
  auto engines = test::make_engines(network);
  const auto receiving = engines[2]->open(1, {2}, 1);
  network.hold(0, 2);
  engines[0]->abort("the dam broke");
  EXPECT_THROW(engines[1]->wait({}, test::limit()), EngineError);
  engines[1].reset();
  try {
    static_cast<void>(receive(*engines[2], *receiving, test::limit(), "test"));
    ADD_FAILURE() << "receive() returned instead of throwing";
  } catch (const EngineError& error) {
    EXPECT_STREQ(error.what(), "rank 0 aborted: the dam broke");
  }
  network.release(0, 2);
}

TEST(P2pAbort, IsForwardedOnceByEachRank) {
  test::LoopbackNetwork network(4);
  const auto engines = test::make_engines(network, {.heartbeat = Duration::max()});
  engines[0]->abort("the dam broke");
  for (const auto& engine : engines) EXPECT_THROW(engine->wait({}, test::limit()), EngineError);
  const auto has_all = [&](int rank) { return network.num_packets(rank) == 3; };
  for (int rank = 0; rank < 4; ++rank) {
    for (const Deadline deadline = test::limit(); !has_all(rank) && !deadline.expired();) std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(has_all(rank)) << network.num_packets(rank);
}

TEST(P2pMessages, KeepTheSendersBlockUntilSent) {
  test::LoopbackNetwork network(2);
  const auto engines = test::make_engines(network, {.memory_bytes = 1 << 20});
  const auto sending = engines[0]->open(0, {1}, 3), receiving = engines[1]->open(0, {1}, 3);
  for (int i = 0; i < 100; ++i) {
    test::send(*engines[0], *sending, 1 << 19, static_cast<std::byte>(i));
    const auto lease = receive(*engines[1], *receiving, test::limit(), "test");
    EXPECT_EQ(lease.value().bytes[(1 << 19) - 1], static_cast<std::byte>(i));
  }
}

TEST(P2pMessages, FitAWindowOfMaximumSize) {
  test::LoopbackNetwork network(2);
  const auto engines = test::make_engines(network);
  constexpr int most = std::numeric_limits<int>::max();
  const auto sending = engines[0]->open(0, {1}, most), receiving = engines[1]->open(0, {1}, most);
  test::send(*engines[0], *sending, 1'000'000, std::byte{1});
  EXPECT_EQ(receive(*engines[1], *receiving, test::limit(), "test").value().bytes[999'999], std::byte{1});
}

/// Receives by polling: unlike receive(), it sends no requests to other ranks.
Lease poll(Engine& engine, Channel& channel) {
  for (const Deadline deadline = test::limit(); !deadline.expired(); std::this_thread::yield()) {
    if (const auto received = engine.try_receive(channel); received.message) return *received.message;
  }
  throw Timeout("no message arrived");
}

TEST(P2pMessages, CarryDeferredReceiptsAndCloses) {
  test::LoopbackNetwork network(2, {.flushes = false});
  auto engines = test::make_engines(network);
  const auto sending = engines[0]->open(0, {1}, 3);
  auto receiving = engines[1]->open(0, {1}, 3);
  const auto back_sending = engines[1]->open(1, {0}, 1), back_receiving = engines[0]->open(1, {0}, 1);
  for (int i = 0; i < 3; ++i) test::send(*engines[0], *sending, 10, std::byte{7});
  for (int i = 0; i < 3; ++i) poll(*engines[1], *receiving);
  receiving.reset();
  EXPECT_EQ(network.num_packets(0), 0);
  EXPECT_EQ(engines[0]->holders(*sending).at(0).not_received, 3);
  test::send(*engines[1], *back_sending, 1'000'000, std::byte{1});
  poll(*engines[0], *back_receiving);
  EXPECT_EQ(network.num_packets(0), 1);
  EXPECT_TRUE(engines[0]->holders(*sending).empty());
}

TEST(P2pMessages, AreAcknowledgedImmediatelyIfTheirSenderWaits) {
  test::LoopbackNetwork network(2, {.flushes = false});
  const auto engines = test::make_engines(network);
  const auto sending = engines[0]->open(0, {1}, 1), receiving = engines[1]->open(0, {1}, 1);
  auto sent = std::async(std::launch::async, [&] {
    for (int i = 0; i < 50; ++i) test::send(*engines[0], *sending, 10, static_cast<std::byte>(i));
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(receive(*engines[1], *receiving, test::limit(), "test").value().bytes[0], static_cast<std::byte>(i));
  }
  sent.get();
}

/// Acts as a relay between two engines: messages of one land in blocks of the other, which publishes them.
TEST(P2pJoining, LandsMessagesInPublishableBlocksOfAnotherEngine) {
  test::LoopbackNetwork network(2);
  const auto engines = test::make_engines(network);
  const auto near = inproc::make_group(1).front();
  const auto onward = near->open(0, {0}, 2);
  const auto sending = engines[0]->open(0, {1}, 2);
  const std::vector<int> to{1};
  const auto receiving =
      engines[1]->open(0, to, 2, {.landing = [near](std::size_t bytes) { return near->try_allocate(bytes); }});
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{1'000'000}}) {
    test::send(*engines[0], *sending, bytes, std::byte{7});
    Channel* const channels[] = {receiving.get()};
    ASSERT_EQ(engines[1]->wait({.receive = channels}, test::limit()), Woken::ready);
    Received received = engines[1]->try_receive(*receiving);
    ASSERT_TRUE(received.message && received.landed);
    EXPECT_EQ(received.message->bytes.data(), received.landed.memory().data());
    EXPECT_TRUE(near->try_publish(*onward, received.landed, bytes));
    const Lease lease = receive(*near, *onward, test::limit(), "test").value();
    EXPECT_EQ(lease.bytes.size(), bytes);
    EXPECT_EQ(lease.bytes[bytes - 1], std::byte{7});
  }
}

TEST(P2pJoining, ReceivesElsewhereIfTheLandingIsEmptyOrThrows) {
  test::LoopbackNetwork network(2);
  const auto engines = test::make_engines(network);
  const auto sending = engines[0]->open(0, {1}, 2);
  const std::vector<int> to{1};
  int calls = 0;
  const auto land = [&](std::size_t) -> std::optional<Block> {
    if (++calls == 1) return std::nullopt;
    throw EngineError("the block's engine has ended");
  };
  const auto receiving = engines[1]->open(0, to, 2, {.landing = land});
  for (int i = 0; i < 2; ++i) {
    test::send(*engines[0], *sending, 1'000'000, std::byte{3});
    const Lease lease = receive(*engines[1], *receiving, test::limit(), "test").value();
    EXPECT_EQ(lease.bytes[999'999], std::byte{3});
  }
  EXPECT_EQ(calls, 2);
}

TEST(P2pJoining, ForwardsALeaseOfAnotherEngineWithoutACopy) {
  test::LoopbackNetwork network(2);
  const auto engines = test::make_engines(network);
  const auto near = inproc::make_group(1).front();
  const auto tap = near->open(0, {0}, 1);
  test::send(*near, *tap, 1'000'000, std::byte{5});
  Lease lease = receive(*near, *tap, test::limit(), "test").value();
  const std::vector<int> to{0, 1};
  const auto sending = engines[0]->open(0, to, 1), receiving = engines[1]->open(0, to, 1);
  const std::byte* const bytes = lease.bytes.data();
  EXPECT_TRUE(engines[0]->try_publish(*sending, lease));
  lease = {};
  EXPECT_EQ(near->holders(*tap).at(0).leased, 1) << "the lease is kept as long as a receiver needs it";
  EXPECT_EQ(receive(*engines[1], *receiving, test::limit(), "test").value().bytes[999'999], std::byte{5});
  Lease own = receive(*engines[0], *sending, test::limit(), "test").value();
  EXPECT_EQ(own.bytes.data(), bytes);
  EXPECT_TRUE(engines[0]->make_private(*sending, own).empty()) << "the bytes belong to another engine";
  own = {};
  for (const Deadline deadline = test::limit(); !near->holders(*tap).empty() && !deadline.expired();)
    std::this_thread::yield();
  EXPECT_TRUE(near->holders(*tap).empty());
}

TEST(P2pJoining, WakesAThreadThatWaitsOnAnotherEngine) {
  test::LoopbackNetwork network(2);
  const auto engines = test::make_engines(network);
  const auto near = inproc::make_group(1).front();
  const auto sending = engines[0]->open(0, {1}, 1), receiving = engines[1]->open(0, {1}, 1);
  std::atomic<bool> changed = false;
  engines[1]->on_change([&, weak = std::weak_ptr(near)] {
    changed = true;
    if (const auto engine = weak.lock()) engine->wake();
  });
  auto waiting = std::async(std::launch::async, [&] {
    while (!engines[1]->try_receive(*receiving).message) {
      if (near->wait({.stop = &changed}, test::limit()) == Woken::timeout) return false;
      changed = false;
    }
    return true;
  });
  test::send(*engines[0], *sending, 100, std::byte{1});
  EXPECT_TRUE(waiting.get());
  engines[1]->on_change({});
}

TEST(P2pStatus, OfAnUnresponsiveRankStatesForHowLong) {
  test::LoopbackNetwork network(2);
  const auto engines = test::make_engines(network);
  engines[1]->post(Status::make("computing", 7));
  network.hold(0, 1);
  engines[0]->ask_statuses();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(explain_wait(*engines[0], "test", 1, std::chrono::seconds(1)).find("rank 1: has not answered for "),
            std::string("rank 0 waited 1.0 s in test from rank 1; ").size());
  network.release(0, 1);
  engines[0]->wait({}, Deadline::after(std::chrono::milliseconds(500)));
  EXPECT_NE(explain_wait(*engines[0], "test", 1, std::chrono::seconds(1)).find("rank 1: computing step 7"),
            std::string::npos);
}

TEST(P2pStatus, OfAFaultyRankIsReadSafely) {
  const auto transport = std::make_shared<test::StillTransport>();
  const auto engine = make_engine(transport);
  engine->post(Status::make("gathering results", -1, 1));
  CollectiveOrder order(*engine, nullptr);
  engine->wait({}, Deadline::after(CollectiveOrder::until_certain / 2));
  ASSERT_TRUE(order.is_due());
  order.check();  // requests the status
  Status faulty = Status::make("", -1, 0);
  faulty.operation.fill('\xff');
  faulty.detail.fill('\xff');
  faulty.since_ns = std::numeric_limits<std::int64_t>::min();
  const ByteView bytes = std::as_bytes(std::span(&faulty, 1));
  transport->deliver({.kind = Entry::Kind::status, .key = root_group("p2p", 0, 2).key(), .payload = bytes});
  order.check();
  EXPECT_FALSE(engine->cause());
  const Status status = engine->status(1);
  EXPECT_EQ(std::string(status.operation.data()), std::string(status.operation.size() - 1, '\xff'));
  EXPECT_EQ(std::string(status.detail.data()), std::string(status.detail.size() - 1, '\xff'));
  EXPECT_EQ(status.since_ns, 0);
  EXPECT_NE(explain_wait(*engine, "test", 1, {}).find("; rank 1: \xff"), std::string::npos);
}

TEST(P2pEngine, ReportsItsDegree) {
  test::LoopbackNetwork network(1);
  const auto engine = test::make_engines(network, {.degree = 3}).front();
  EXPECT_EQ(engine->info().degree, 3);
  EXPECT_EQ(engine->subgroup(std::vector{0}, "alone")->info().degree, 3);
}

TEST(P2pTransport, MayMakeProgressOnlyWhileARankWaits) {
  test::LoopbackNetwork network(3, {.has_threads = false});
  const auto engines = test::make_engines(network);
  std::vector<std::future<std::vector<Bytes>>> agreeing;
  for (const auto& engine : engines) {
    agreeing.push_back(std::async(std::launch::async, [&engine] {
      for (int round = 0; round < 20; ++round) agree(*engine, as_bytes("x"), test::limit(), "test");
      return agree(*engine, as_bytes("done"), test::limit(), "test");
    }));
  }
  for (auto& each : agreeing) EXPECT_EQ(each.get().size(), 3U);
}

TEST(P2pWindows, ThatDifferFailOnAllRanksEvenIfTheChannelIsOpenedLate) {
  test::LoopbackNetwork network(3);
  const auto engines = test::make_engines(network);
  const auto sending = engines[0]->open(0, {1, 2}, 2);
  test::send(*engines[0], *sending, 100, std::byte{1});
  const auto honest = engines[2]->open(0, {1, 2}, 2);
  static_cast<void>(receive(*engines[2], *honest, test::limit(), "test"));
  for (const Deadline deadline = test::limit(); network.num_packets(1) == 0 && !deadline.expired();)
    std::this_thread::yield();
  const auto other = engines[1]->open(0, {1, 2}, 3);
  for (const auto& engine : engines) EXPECT_THROW(engine->wait({}, test::limit()), InvalidArgument);
}

TEST(P2pWindows, ThatAPeerExceedsEndTheGroup) {
  const auto transport = std::make_shared<test::StillTransport>();
  const auto engine = make_engine(transport);
  const auto receiving = engine->open(1, {0}, 2);
  const Group group = root_group("p2p", 0, 2);
  const std::uint64_t key = KeyDeriver(group.key()).channel(1, receiving->to());
  transport->deliver(entry_of(Notice{.kind = Notice::Kind::opened, .key = key, .group = group.key(), .window = 2}));
  const Entry message{.key = key, .count = 1, .payload = as_bytes("x")};
  for (int i = 0; i < 2; ++i) transport->deliver(message);
  EXPECT_FALSE(engine->cause());
  transport->deliver(message);
  const Cause cause = engine->cause().value();
  EXPECT_EQ(cause.kind, ErrorKind::corrupt_message);
  EXPECT_EQ(cause.text(), "rank 1 sent a malformed message: more messages than the window of 2 that it announced");
}

/// Returns what rank 0 receives of a message of `count` bytes with a body of `bytes`, in memory of an earlier message.
std::string outcome(std::uint64_t count, std::size_t bytes) {
  const auto transport = std::make_shared<test::StillTransport>();
  const auto engine = make_engine(transport);
  const auto receiving = engine->open(1, {0}, 2);
  const Group group = root_group("p2p", 0, 2);
  const std::uint64_t key = KeyDeriver(group.key()).channel(1, receiving->to());
  transport->deliver(entry_of(Notice{.kind = Notice::Kind::opened, .key = key, .group = group.key(), .window = 2}));
  for (const char value : {'a', 'b'}) {
    const Entry message{.key = key, .count = count};
    const Lease header = encode({&message, 1});
    Block body = transport->receiver().room_for_body(1, header.bytes);
    const std::size_t landed = value == 'a' ? count : bytes;
    std::memset(body.memory().data(), value, std::min(landed, body.memory().size()));
    transport->receiver().deliver(1, header.bytes, std::move(body), landed);
    if (engine->cause()) return engine->cause()->text();
    const Lease lease = engine->try_receive(*receiving).message.value();
    if (as_text(lease.bytes) != std::string(count, value)) return "other bytes";
  }
  return "whole";
}

TEST(P2pBody, ThatIsTooShortEndsTheGroupNamingItsSender) {
  EXPECT_EQ(outcome(1000, 999), "rank 1 sent a malformed message: a body of 999 bytes for a message of 1000");
  EXPECT_EQ(outcome(1000, 0), "rank 1 sent a malformed message: a body of 0 bytes for a message of 1000");
}

TEST(P2pBody, IsDeliveredOnlyIfComplete) {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::size_t count = 1 + random() % 100'000, bytes = random() % 2 == 0 ? count : random() % (count + 10);
    EXPECT_EQ(outcome(count, bytes) == "whole", bytes >= count) << count << ", " << bytes;
  }
}

}  // namespace
}  // namespace levada::p2p
