#include "levada/engine/p2p/frame.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/p2p/in_process_transport_testing.h"

namespace levada::p2p {
namespace {

Bytes bytes_of(const Entry& entry) {
  const Lease encoded = encode({&entry, 1});
  return {encoded.bytes.begin(), encoded.bytes.end()};
}

TEST(P2pFrame, SurvivesARoundTrip) {
  const Bytes bytes =
      bytes_of({.kind = Entry::Kind::lost, .key = 7, .count = 9, .rank = 3, .payload = as_bytes("why")});
  const Entry entry = decode(bytes, 4).front();
  EXPECT_EQ(entry.kind, Entry::Kind::lost);
  EXPECT_EQ(entry.key, 7U);
  EXPECT_EQ(entry.count, 9U);
  EXPECT_EQ(entry.rank, 3);
  EXPECT_EQ(as_text(entry.payload), "why");
}

TEST(P2pFrame, CarriesEveryNotice) {
  for (int kind = 1; kind <= static_cast<int>(Notice::Kind::departed); ++kind) {
    Notice notice{.kind = static_cast<Notice::Kind>(kind), .key = 5};
    const bool is_close = notice.kind == Notice::Kind::sender_closed || notice.kind == Notice::Kind::receiver_closed;
    if (notice.kind == Notice::Kind::opened) notice.group = 7, notice.window = 8;
    else if (is_close) notice.group = 7;
    else notice.count = 6;
    const Entry entry = entry_of(notice);
    const Lease encoded = encode({&entry, 1});
    EXPECT_EQ(notice_of(decode(encoded.bytes, 2).front()), notice) << kind;
  }
}

Bytes joined(std::initializer_list<Entry> entries) {
  const Lease all = encode(entries);
  return {all.bytes.begin(), all.bytes.end()};
}

constexpr auto received_kind = static_cast<std::int32_t>(Notice::Kind::received);

TEST(P2pFrame, MayHaveManyEntries) {
  Bytes bytes = joined({{.kind = Entry::Kind::notice, .key = 1, .count = 5, .rank = received_kind},
                        {.key = 2, .count = 3, .payload = as_bytes("abc")},
                        {.key = 3, .count = 1'000'000}});
  bytes.resize(bytes.size() + 100, std::byte{9});  // a receive buffer is longer
  const auto entries = decode(bytes, 2);
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[0].count, 5U);
  EXPECT_EQ(as_text(entries[1].payload), "abc");
  EXPECT_TRUE(has_body(entries[2]));
}

TEST(P2pFrame, IsRejectedIfMalformed) {
  const Entry receipt{.kind = Entry::Kind::notice, .key = 1, .rank = received_kind};
  EXPECT_THROW(decode(joined({{.key = 3, .count = 1'000'000}, receipt}), 2), CorruptMessage);
  const Bytes two = joined({receipt, receipt});
  EXPECT_THROW(decode(ByteView(two).first(two.size() - 1), 2), CorruptMessage);
  EXPECT_THROW(decode(ByteView(two).first(two.size() / 2), 2), CorruptMessage);

  EXPECT_THROW(decode({}, 2), CorruptMessage);
  const Bytes message = bytes_of({.count = 3, .payload = as_bytes("abc")});
  EXPECT_THROW(decode(ByteView(message).first(message.size() - 1), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.count = 4, .payload = as_bytes("abc")}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.count = 0}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.count = ~std::uint64_t{0}}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Entry::Kind::lost, .rank = 2}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Entry::Kind::aborted, .count = 3, .rank = 1}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Entry::Kind::status, .payload = as_bytes("abc")}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Entry::Kind::notice, .rank = 0}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Entry::Kind::notice, .rank = 1}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Entry::Kind::notice, .rank = 258}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Entry::Kind::notice, .rank = -254}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = Entry::Kind::notice, .rank = 2, .payload = as_bytes("abc")}), 2),
               CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = static_cast<Entry::Kind>(0)}), 2), CorruptMessage);
  EXPECT_THROW(decode(bytes_of({.kind = static_cast<Entry::Kind>(99)}), 2), CorruptMessage);
}

/// In a group of two, rank 1 sends rank 0 only `bytes`. Returns the error on rank 0.
std::string after(const Bytes& bytes) {
  test::LoopbackNetwork network(2);
  auto engines = test::make_engines(network);
  const auto sending = engines[0]->open(0, {1}, 1);
  test::send(*engines[0], *sending, 10, std::byte{1});
  const auto hold = std::make_shared<const Bytes>(bytes);
  network.send(0, {.from = 1, .frame = Frame{.header = {.bytes = *hold, .hold = hold}, .body = {}}});
  std::string what;
  try {
    engines[0]->wait({}, test::limit());
  } catch (const CorruptMessage& error) {
    what = error.what();
  }
  network.lose(1);
  return what;
}

TEST(P2pFrame, ThatIsMalformedEndsTheGroupNamingItsSender) {
  EXPECT_NE(after({std::byte{1}, std::byte{2}}).find("rank 1 sent a malformed message"), std::string::npos);
}

TEST(P2pFrame, ThatIsMalformedChangesNothingOnceItsSenderIsClosed) {
  test::LoopbackNetwork network(3);
  const auto engines = test::make_engines(network);
  const std::vector<int> others{0, 2};
  const auto group = engines[0]->subgroup(others, "others"), peer = engines[2]->subgroup(others, "others");
  const auto receiving = group->open(1, {0}, 1), sending = peer->open(1, {0}, 1);
  const auto receive_after_malformed = [&](int count) {
    const Bytes malformed{std::byte{1}, std::byte{2}};
    const auto hold = std::make_shared<const Bytes>(malformed);
    for (int i = 0; i < count; ++i) network.send(0, {.from = 1, .frame = {.header = {*hold, hold}, .body = {}}});
    test::send(*peer, *sending, 10, std::byte{5});
    EXPECT_EQ(receive(*group, *receiving, test::limit(), "test").value().bytes[9], std::byte{5});
  };
  receive_after_malformed(1);
  const Cause cause = engines[0]->cause().value();
  EXPECT_EQ(cause.kind, ErrorKind::corrupt_message);
  receive_after_malformed(1000);
  EXPECT_EQ(engines[0]->cause().value().text(), cause.text());
  EXPECT_FALSE(group->cause());
  network.lose(1);
}

TEST(P2pFrame, SurvivesRandomEntries) {
  std::mt19937 random(7);
  test::LoopbackNetwork network(2);
  auto engines = test::make_engines(network);
  const std::shared_ptr<Channel> channels[] = {engines[0]->open(0, {1}, 1), engines[0]->open(1, {0}, 1)};
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes = bytes_of({.kind = static_cast<Entry::Kind>(random() % 8),
                            .key = random() % 3,
                            .count = random() % 5,
                            .rank = static_cast<int>(random() % 10) - 1,
                            .payload = as_bytes("abcd").first(random() % 5)});
    if (random() % 2 == 0) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto hold = std::make_shared<const Bytes>(std::move(bytes));
    try {
      static_cast<void>(decode(*hold, 2));
    } catch (const CorruptMessage&) {
      continue;  // it would end the group
    }
    network.send(0, {.from = 1, .frame = Frame{.header = {.bytes = *hold, .hold = hold}, .body = {}}});
  }
  network.lose(1);
  EXPECT_THROW(engines[0]->wait({}, test::limit()), Error);
}

}  // namespace
}  // namespace levada::p2p
