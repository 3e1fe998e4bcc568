#include "levada/engine/p2p/p2p.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/p2p/frame.h"
#include "levada/engine/p2p/in_process_wire_testing.h"

namespace levada::p2p {
namespace {

class P2pConformance : public testing::TestWithParam<conformance::Trial> {};

TEST_P(P2pConformance, Holds) {
  EXPECT_EQ(test::run_ranks(GetParam().ranks, GetParam().test.run), "");
}

INSTANTIATE_TEST_SUITE_P(, P2pConformance, testing::ValuesIn(conformance::all_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

Deadline limit() {
  return Deadline::after(std::chrono::seconds(20));
}

void send(Engine& engine, Channel& channel, std::size_t bytes, std::byte value) {
  Block block = allocate(engine, bytes, limit(), "test");
  std::memset(block.memory().data(), static_cast<int>(value), bytes);
  publish(engine, channel, std::move(block), bytes, limit(), "test");
}

TEST(P2pLoss, WakesAWaitNamingTheLostRank) {
  test::Post post(3);
  const auto engines = test::make_engines(post);
  auto waiting = std::async(std::launch::async,
                            [&] { return conformance::lost_rank([&] { engines[0]->wait({}, Deadline::never()); }); });
  post.lose(2);
  EXPECT_EQ(waiting.get(), 2);
}

TEST(P2pLoss, LetsMessagesBeTakenThatHadCome) {
  test::Post post(2);
  const auto engines = test::make_engines(post);
  const auto sending = engines[1]->open(1, {0}, 2), taking = engines[0]->open(1, {0}, 2);
  send(*engines[1], *sending, 8, std::byte{1});
  send(*engines[1], *sending, 1'000'000, std::byte{2});
  post.lose(1);
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->wait({}, limit()); }), 1);
  Channel* const channels[] = {taking.get()};
  EXPECT_EQ(engines[0]->wait({.receive = channels}, limit()), Woken::ready);
  EXPECT_EQ(engines[0]->try_receive(*taking).message.value().bytes[7], std::byte{1});
  const Lease second = engines[0]->try_receive(*taking).message.value();
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->try_receive(*taking); }), 1);
  EXPECT_EQ(second.bytes[999'999], std::byte{2});
}

TEST(P2pLoss, DoesNothingToARankThatHasLeft) {
  test::Post post(2);
  auto engines = test::make_engines(post);
  const auto taking = engines[0]->open(1, {0}, 1);
  engines[1].reset();
  EXPECT_FALSE(receive(*engines[0], *taking, limit(), "test"));
  post.lose(1);
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->wait({}, Deadline::after(std::chrono::milliseconds(20))); }), -1);
}

TEST(P2pLoss, IsToldToThoseWhoCannotSeeIt) {
  test::Post post(3);
  const auto engines = test::make_engines(post);
  post.put(1, {.from = 2});
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->wait({}, limit()); }), 2);
  post.lose(2);
}

TEST(P2pMessages, KeepASendersBlockUntilTheyHaveGone) {
  test::Post post(2);
  const auto engines = test::make_engines(post, {.memory_bytes = 1 << 20});
  const auto sending = engines[0]->open(0, {1}, 3), taking = engines[1]->open(0, {1}, 3);
  for (int i = 0; i < 100; ++i) {
    send(*engines[0], *sending, 1 << 19, static_cast<std::byte>(i));
    const auto lease = receive(*engines[1], *taking, limit(), "test");
    EXPECT_EQ(lease.value().bytes[(1 << 19) - 1], static_cast<std::byte>(i));
  }
}

TEST(P2pMessages, FindRoomInAWindowOfWhateverSize) {
  test::Post post(2);
  const auto engines = test::make_engines(post);
  constexpr int most = std::numeric_limits<int>::max();
  const auto sending = engines[0]->open(0, {1}, most), taking = engines[1]->open(0, {1}, most);
  send(*engines[0], *sending, 1'000'000, std::byte{1});
  EXPECT_EQ(receive(*engines[1], *taking, limit(), "test").value().bytes[999'999], std::byte{1});
}

/// Asks nobody what has become of them, as take() does.
Lease poll(Engine& engine, Channel& channel) {
  for (const Deadline deadline = limit(); !deadline.expired(); std::this_thread::yield()) {
    if (auto lease = engine.try_receive(channel).message) return *std::move(lease);
  }
  throw Timeout("no message came");
}

TEST(P2pMessages, BringCreditsAndEndsThatWaitedForCompany) {
  test::Post post(2, false);
  auto engines = test::make_engines(post);
  const auto sending = engines[0]->open(0, {1}, 3);
  auto taking = engines[1]->open(0, {1}, 3);
  const auto back_sending = engines[1]->open(1, {0}, 1), back_taking = engines[0]->open(1, {0}, 1);
  for (int i = 0; i < 3; ++i) send(*engines[0], *sending, 10, std::byte{7});
  for (int i = 0; i < 3; ++i) poll(*engines[1], *taking);
  taking.reset();
  EXPECT_EQ(post.came(0), 0);
  EXPECT_EQ(engines[0]->holders(*sending).at(0).not_received, 3);
  send(*engines[1], *back_sending, 1'000'000, std::byte{1});
  poll(*engines[0], *back_taking);
  EXPECT_EQ(post.came(0), 1);
  EXPECT_TRUE(engines[0]->holders(*sending).empty());
}

TEST(P2pMessages, AreToldOfAsTakenAtOnceWhereTheirSenderWaits) {
  test::Post post(2, false);
  const auto engines = test::make_engines(post);
  const auto sending = engines[0]->open(0, {1}, 1), taking = engines[1]->open(0, {1}, 1);
  auto sent = std::async(std::launch::async, [&] {
    for (int i = 0; i < 50; ++i) send(*engines[0], *sending, 10, static_cast<std::byte>(i));
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(receive(*engines[1], *taking, limit(), "test").value().bytes[0], static_cast<std::byte>(i));
  }
  sent.get();
}

Bytes bytes_of(const Head& head) {
  const Lease encoded = encode(head);
  return {encoded.bytes.begin(), encoded.bytes.end()};
}

TEST(P2pFrame, ComesBackAsItWas) {
  const Bytes bytes = bytes_of({.kind = Head::Kind::aborted, .key = 7, .count = 9, .rank = 3, .tail = as_bytes("why")});
  const Head head = decode(bytes, 4).front();
  EXPECT_EQ(head.kind, Head::Kind::aborted);
  EXPECT_EQ(head.key, 7U);
  EXPECT_EQ(head.count, 9U);
  EXPECT_EQ(head.rank, 3);
  EXPECT_EQ(as_text(head.tail), "why");
}

Bytes joined(std::initializer_list<Head> heads) {
  std::vector<Lease> encoded;
  for (const Head& head : heads) encoded.push_back(encode(head));
  const Lease all = join(encoded);
  return {all.bytes.begin(), all.bytes.end()};
}

TEST(P2pFrame, MayHaveManyHeads) {
  Bytes bytes = joined({{.kind = Head::Kind::taken, .key = 1, .count = 5},
                        {.key = 2, .count = 3, .tail = as_bytes("abc")},
                        {.key = 3, .count = 1'000'000}});
  bytes.resize(bytes.size() + 100, std::byte{9});  // a slot is longer
  const auto heads = decode(bytes, 2);
  ASSERT_EQ(heads.size(), 3U);
  EXPECT_EQ(heads[0].count, 5U);
  EXPECT_EQ(as_text(heads[1].tail), "abc");
  EXPECT_TRUE(has_body(heads[2]));
}

TEST(P2pFrame, IsRefusedWhereItIsNone) {
  const Head taken{.kind = Head::Kind::taken, .key = 1};
  EXPECT_THROW(decode(joined({{.key = 3, .count = 1'000'000}, taken}), 2), CorruptMessage);
  const Bytes two = joined({taken, taken});
  EXPECT_THROW(decode(ByteView(two).first(two.size() - 1), 2), CorruptMessage);
  EXPECT_THROW(decode(ByteView(two).first(two.size() / 2), 2), CorruptMessage);

  EXPECT_THROW(decode({}, 2), CorruptMessage);
  const Bytes message = bytes_of({.count = 3, .tail = as_bytes("abc")});
  EXPECT_THROW(decode(ByteView(message).first(message.size() - 1), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.count = 4, .tail = as_bytes("abc")}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.count = 100}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.count = ~std::uint64_t{0}}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Head::Kind::lost, .rank = 2}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Head::Kind::status, .tail = as_bytes("abc")}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Head::Kind::taken, .tail = as_bytes("abc")}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = static_cast<Head::Kind>(0)}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = static_cast<Head::Kind>(99)}), 2), CorruptMessage);
}

/// A group of two whose rank 1 sends rank 0 nothing but `bytes`; what rank 0 sees.
std::string after(const Bytes& bytes) {
  test::Post post(2);
  auto engines = test::make_engines(post);
  const auto sending = engines[0]->open(0, {1}, 1);
  send(*engines[0], *sending, 10, std::byte{1});
  const auto hold = std::make_shared<const Bytes>(bytes);
  post.put(0, {.from = 1, .frame = Frame{.head = {.bytes = *hold, .hold = hold}, .body = {}}});
  std::string what;
  try {
    engines[0]->wait({}, limit());
  } catch (const CorruptMessage& error) {
    what = error.what();
  }
  post.lose(1);
  return what;
}

TEST(P2pFrame, ThatNoRankSendsEndsTheGroupNamingItsSender) {
  EXPECT_NE(after({std::byte{1}, std::byte{2}}).find("rank 1 sent what no rank sends"), std::string::npos);
}

TEST(P2pFrame, MayHoldAnything) {
  std::mt19937 random(7);
  test::Post post(2);
  auto engines = test::make_engines(post);
  const std::shared_ptr<Channel> channels[] = {engines[0]->open(0, {1}, 1), engines[0]->open(1, {0}, 1)};
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes = bytes_of({.kind = static_cast<Head::Kind>(random() % 12),
                            .key = random() % 3,
                            .count = random() % 5,
                            .rank = static_cast<int>(random() % 4) - 1,
                            .tail = as_bytes("abcd").first(random() % 5)});
    if (random() % 2 == 0) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto hold = std::make_shared<const Bytes>(std::move(bytes));
    try {
      static_cast<void>(decode(*hold, 2));
    } catch (const CorruptMessage&) {
      continue;  // which would be the end
    }
    post.put(0, {.from = 1, .frame = Frame{.head = {.bytes = *hold, .hold = hold}, .body = {}}});
  }
  post.lose(1);
  EXPECT_THROW(engines[0]->wait({}, limit()), Error);
}

}  // namespace
}  // namespace levada::p2p
