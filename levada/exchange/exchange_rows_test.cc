#include "levada/exchange/exchange_rows.h"

#include <gmock/gmock.h>

#include <random>

#include "levada/base/refusal_testing.h"
#include "levada/exchange/planner.h"
#include "levada/exchange/sample_directory_codec.h"

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

/// Returns a plan with whole samples from two ranks, a cut key, a sample of several sequences and one of none.
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

void expect_row(const ExchangePlan& whole, const ExchangeRows& rows, const ExchangeRow& row, const Multicast& multicast,
                int rank) {
  EXPECT_EQ(row.from, multicast.from);
  EXPECT_EQ(row.bytes, multicast.bytes);
  EXPECT_TRUE(std::ranges::equal(std::span(rows.items).subspan(row.first_item, row.end_item - row.first_item),
                                 multicast.items));
  rows.for_each_entry(row, [&](const ExchangeItem& item, std::size_t key, std::size_t entry) {
    EXPECT_TRUE(std::ranges::equal(rows.lengths[entry], whole.samples().lengths(item.sample, whole.keys()[key])));
    if (row.from != rank) {
      EXPECT_TRUE(same_values(rows.values.at(item.sample), whole.samples().values(item.sample)));
    }
  });
}

TEST(ExchangeRows, ContainEachRanksPartOfThePlan) {
  const ExchangePlan whole = plan();
  for (const bool to_all : {false, true}) {
    const auto bytes = encode_rows(whole, num_ranks, to_all);
    ASSERT_EQ(bytes.size(), std::size_t{num_ranks});
    std::uint64_t sent = 0, received = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const ExchangeRows rows =
          decode_rows(*bytes[static_cast<std::size_t>(rank)], rank, num_ranks, whole.samples().size(), to_all);
      if (to_all) {
        EXPECT_EQ(rows.sent_by[0] + rows.sent_by[1], whole.moved_bytes());
      }
      std::size_t next = 0;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const Multicast multicast = whole[i];
        if (multicast.from != rank && std::ranges::count(multicast.to, rank) == 0) continue;
        ASSERT_LT(next, rows.rows.size());
        const ExchangeRow& row = rows.rows[next++];
        expect_row(whole, rows, row, multicast, rank);
        EXPECT_EQ(row.receivers(),
                  to_all ? std::vector<int>() : std::vector<int>(multicast.to.begin(), multicast.to.end()));
        (row.from == rank ? sent : received) += row.bytes;
      }
      EXPECT_EQ(next, rows.rows.size());
    }
    EXPECT_EQ(sent, whole.moved_bytes());
    EXPECT_EQ(received, whole.delivered_bytes());
  }
}

/// Returns a plan in which each of `ranks` ranks has a sample that all ranks want.
ExchangePlan plan_to_all(int ranks) {
  SampleDirectory directory;
  Destination all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.ranks.push_back(rank);
    all.ids.push_back(std::to_string(rank));
    SampleBatch batch({all.ids.back()});
    batch.set({"tokens", dtypes::int64, {}}, Seqlens::one_each({3}));
    directory.add(rank, batch);
  }
  return plan_exchange(directory, {{all}, {"tokens"}});
}

TEST(ExchangeRows, DoNotGrowWithTheNumberOfReceivers) {
  constexpr std::size_t max_row_bytes = 100;
  for (const bool to_all : {false, true}) {
    for (const int ranks : {8, 256}) {
      const ExchangePlan whole = plan_to_all(ranks);
      const auto bytes = encode_rows(whole, ranks, to_all);
      EXPECT_LT(bytes[1]->size(), static_cast<std::size_t>(ranks) * max_row_bytes);
      EXPECT_EQ(bytes[1], bytes[2]) << "equal rows are stored once";
      const auto rows = decode_rows(*bytes[1], 1, ranks, whole.samples().size(), to_all);
      EXPECT_EQ(rows.rows.size(), static_cast<std::size_t>(ranks));
    }
  }
}

TEST(ExchangeRows, BeginAtTheEndOfTheirSendersPreviousRow) {
  const auto bytes = encode_rows(plan(), num_ranks, true);
  const ExchangeRows rows = decode_rows(*bytes[0], 0, num_ranks, 3, true);
  std::uint64_t at = 0;
  for (const ExchangeRow& row : rows.rows) {
    EXPECT_EQ(row.begin, at);
    at += row.bytes;
  }
  EXPECT_EQ(rows.sent_by[0], at);
  EXPECT_GT(rows.rows.size(), 1u);
}

TEST(ExchangeRows, RejectInvalidBytes) {
  const ExchangePlan whole = plan();
  for (const bool to_all : {false, true}) {
    const auto all = encode_rows(whole, num_ranks, to_all);
    const Bytes& bytes = *all[2];
    const auto read = [&](ByteView some, int rank, std::size_t samples, bool as_to_all) {
      return refusal<CorruptMessage>([&] { decode_rows(some, rank, num_ranks, samples, as_to_all); });
    };
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_THROW(decode_rows(ByteView(bytes).first(cut), 2, num_ranks, 3, to_all), CorruptMessage);
    }
    if (!to_all) {
      EXPECT_THAT(read(bytes, 3, 3, to_all), HasSubstr("a row between other ranks"));
    }
    EXPECT_THAT(read(bytes, 2, 3, !to_all), HasSubstr("a wrong number of ranks that send to all"));
    EXPECT_THAT(read(bytes, 2, 1, to_all), HasSubstr("an unknown item"));
    std::mt19937 random(32);
    for (int round = 0; round < 5000; ++round) {
      Bytes changed = *all[round % 4];
      changed[random() % changed.size()] = static_cast<std::byte>(random());
      try {
        decode_rows(changed, round % 4, num_ranks, 3, to_all);
      } catch (const CorruptMessage&) {
      }
    }
  }
}

/// Returns the error for rows of one multicast without items, which are read last.
std::string refusal_of_receivers(int from, const std::vector<RankRange>& receivers) {
  ByteWriter writer;
  for (int empty = 0; empty < 3; ++empty) writer.put(std::uint32_t{0});  // keys, parts, sums
  writer.put(std::uint32_t{1});
  writer.put(std::int32_t{from});
  writer.put(std::uint64_t{0});
  put_numbers(writer, receivers);
  for (int empty = 0; empty < 4; ++empty) writer.put(std::uint32_t{0});
  return refusal<CorruptMessage>([&] { decode_rows(writer.view(), 1, num_ranks, 3, false); });
}

TEST(ExchangeRows, RejectUnknownReceiversAndTheSender) {
  EXPECT_THAT(refusal_of_receivers(0, {{1, 2}, {3, 4}}), HasSubstr("truncated items"));
  EXPECT_THAT(refusal_of_receivers(0, {{1, 5}}), HasSubstr("an unknown receiver"));
  EXPECT_THAT(refusal_of_receivers(0, {{-1, 2}}), HasSubstr("an unknown receiver"));
  EXPECT_THAT(refusal_of_receivers(0, {{2, 2}}), HasSubstr("an unknown receiver"));
  EXPECT_THAT(refusal_of_receivers(0, {{2, 4}, {1, 2}}), HasSubstr("an unknown receiver"));
  EXPECT_THAT(refusal_of_receivers(2, {{1, 4}}), HasSubstr("a rank that sends to itself"));
  EXPECT_THAT(refusal_of_receivers(4, {{1, 2}}), HasSubstr("a row of an unknown rank"));
  EXPECT_THAT(refusal_of_receivers(0, {{2, 4}}), HasSubstr("a row between other ranks"));
  EXPECT_THAT(refusal_of_receivers(1, {}), HasSubstr("a row between other ranks"));
}

}  // namespace
}  // namespace levada
