#include "levada/exchange/exchange_rows.h"

#include <gmock/gmock.h>

#include <random>

#include "levada/base/refusal_testing.h"
#include "levada/exchange/planner.h"

namespace levada {
namespace {

using testing::HasSubstr;

constexpr int num_ranks = 4;

SampleBatch batch_of(const std::vector<std::string>& ids, const std::string& key, const Seqlens& seqlens) {
  SampleBatch batch(ids);
  batch.set({key, dtypes::int64, {}}, seqlens);
  for (std::size_t i = 0; i < ids.size(); ++i) batch.set_values(i, {{"name", ids[i]}});
  return batch;
}

/// Whole samples from two ranks, a cut key, a sample of several sequences and one of none.
ExchangePlan plan() {
  SampleDirectory directory;
  directory.add(0, batch_of({"a", "b"}, "tokens", Seqlens::of({{{4, 6}}, {{}}})));
  directory.add(0, batch_of({"a", "b"}, "mask", Seqlens::one_each({10, 0})));
  directory.add(1, batch_of({"c"}, "tokens", Seqlens::one_each({7})));
  const ExchangeRequest request{{{{2}, {"a", "b", "c"}, {0, 2, false}}, {{3}, {"a", "b", "c"}, {1, 2, false}}},
                                {"tokens", "mask"},
                                {"tokens"},
                                true};
  return plan_exchange(directory, request);
}

TEST(ExchangeRows, TellEachRankItsPartOfThePlan) {
  const ExchangePlan whole = plan();
  const auto bytes = encode_rows(whole, num_ranks, true);
  ASSERT_EQ(bytes.size(), std::size_t{num_ranks});
  std::uint64_t sent = 0, received = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const ExchangeRows rows =
        decode_rows(bytes[static_cast<std::size_t>(rank)], rank, num_ranks, whole.samples().size());
    EXPECT_EQ(rows.sent_by[0] + rows.sent_by[1], whole.moved_bytes());
    std::size_t next = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const Multicast multicast = whole[i];
      if (multicast.from != rank && std::ranges::count(multicast.to, rank) == 0) continue;
      ASSERT_LT(next, rows.rows.size());
      const ExchangeRow& row = rows.rows[next++];
      EXPECT_EQ(row.from, multicast.from);
      EXPECT_EQ(row.bytes, multicast.bytes);
      EXPECT_TRUE(std::ranges::equal(rows.receivers[row.to], multicast.to));
      EXPECT_TRUE(std::ranges::equal(std::span(rows.items).subspan(row.first_item, row.end_item - row.first_item),
                                     multicast.items));
      rows.for_each_entry(row, [&](const ExchangeItem& item, std::size_t key, std::size_t entry) {
        EXPECT_TRUE(
            std::ranges::equal(rows.lengths_of(entry), whole.samples().lengths(item.sample, whole.keys()[key])));
        if (row.from != rank) {
          EXPECT_TRUE(same_values(rows.values.at(item.sample), whole.samples().values(item.sample)));
        }
      });
      (row.from == rank ? sent : received) += row.bytes;
    }
    EXPECT_EQ(next, rows.rows.size());
  }
  EXPECT_EQ(sent, whole.moved_bytes());
  EXPECT_EQ(received, whole.delivered_bytes());
}

TEST(ExchangeRows, BeginWhereTheRowBeforeOfTheirSenderEnds) {
  const auto bytes = encode_rows(plan(), num_ranks, true);
  const ExchangeRows rows = decode_rows(bytes[0], 0, num_ranks, 3);
  std::uint64_t at = 0;
  for (const ExchangeRow& row : rows.rows) {
    EXPECT_EQ(row.begin, at);
    at += row.bytes;
  }
  EXPECT_EQ(rows.sent_by[0], at);
  EXPECT_GT(rows.rows.size(), 1u);
}

TEST(ExchangeRows, RefuseBytesThatLie) {
  const ExchangePlan whole = plan();
  const auto bytes = encode_rows(whole, num_ranks, true);
  const auto read = [&](ByteView some, int rank, std::size_t samples) {
    return refusal<CorruptMessage>([&] { decode_rows(some, rank, num_ranks, samples); });
  };
  for (std::size_t cut = 0; cut < bytes[2].size(); ++cut) {
    EXPECT_THROW(decode_rows(ByteView(bytes[2]).first(cut), 2, num_ranks, 3), CorruptMessage);
  }
  EXPECT_THAT(read(bytes[2], 3, 3), HasSubstr("a row between other ranks"));
  EXPECT_THAT(read(bytes[2], 2, 1), HasSubstr("an unknown item"));
  EXPECT_THROW(decode_rows(bytes[2], 2, num_ranks + 1, 3), CorruptMessage);
  std::mt19937 random(32);
  for (int round = 0; round < 5000; ++round) {
    Bytes changed = bytes[round % 4];
    changed[random() % changed.size()] = static_cast<std::byte>(random());
    try {
      decode_rows(changed, round % 4, num_ranks, 3);
    } catch (const CorruptMessage&) {
    }
  }
}

}  // namespace
}  // namespace levada
