#include "levada/exchange/ownership.h"

#include <gmock/gmock.h>

#include <random>

#include "levada/base/error.h"
#include "levada/base/refusal_testing.h"

namespace levada {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SampleBatch samples(std::vector<std::string> ids, std::int64_t length, DType dtype = dtypes::int64) {
  const auto count = ids.size();
  SampleBatch batch(std::move(ids));
  batch.set({"tokens", dtype, {}}, Seqlens::one_each(std::vector<std::int64_t>(count, length)));
  return batch;
}

const Holders& holders(const Ownership& ownership, std::string_view id, std::string_view key = "tokens") {
  return ownership.holders(ownership.find(id).value(), ownership.find_key(key).value());
}

/// What is known, whatever its order.
std::map<std::string, std::string> content(const Ownership& ownership) {
  std::map<std::string, std::string> text;
  for (std::size_t sample = 0; sample < ownership.size(); ++sample) {
    auto& line = text[std::string(ownership.id(sample))];
    for (std::size_t key = 0; key < ownership.keys().size(); ++key) {
      if (ownership.holder_set(sample, key) == 0) continue;
      line += ownership.keys()[key].name + ":";
      for (const Holder& holder : ownership.holders(sample, key)) {
        line += std::to_string(holder.rank) + " " + holder.part.to_string() + ",";
      }
      for (const std::int64_t length : ownership.lengths(sample, key)) line += std::to_string(length) + " ";
    }
  }
  return text;
}

TEST(Ownership, KnowsWhoHoldsWhat) {
  Ownership ownership;
  ownership.add(3, samples({"a", "b"}, 5));
  ownership.add(1, samples({"b", "c"}, 5));
  EXPECT_EQ(ownership.size(), 3u);
  EXPECT_THAT(holders(ownership, "b"), ElementsAre(Holder{1}, Holder{3}));
  EXPECT_THAT(holders(ownership, "c"), ElementsAre(Holder{1}));
  EXPECT_THAT(ownership.lengths(*ownership.find("a"), 0), ElementsAre(5));
  EXPECT_FALSE(ownership.contains("d"));
}

TEST(Ownership, HearsNothingOfAKeyThatIsAbsent) {
  Ownership ownership;
  ownership.add(0, samples({"a"}, 5, dtypes::float32));
  SampleBatch other(std::vector<std::string>{"b"});
  other.set({"reward", dtypes::int64, {}}, Seqlens::one_each({1}));
  Seqlens absent;
  absent.push_absent();
  other.set({"tokens", dtypes::float64, {}}, absent);
  other.set({"never", dtypes::float64, {}}, absent);
  ownership.add(1, other);
  EXPECT_EQ(ownership.keys()[ownership.find_key("tokens").value()].dtype, dtypes::float32);
  EXPECT_FALSE(ownership.find_key("never").has_value());
}

TEST(Ownership, ForgetsWhatNobodyHolds) {
  Ownership ownership;
  ownership.add(0, samples({"a", "b", "c"}, 5));
  ownership.add(1, samples({"b"}, 5));
  const Ownership before = ownership;
  ownership.remove(0, std::vector<std::string>{"a", "b", "unknown"});
  EXPECT_FALSE(ownership.contains("a"));
  EXPECT_THAT(holders(ownership, "b"), ElementsAre(Holder{1}));
  EXPECT_TRUE(before.contains("a"));  // a copy is a value of its own
  ownership.add(0, samples({"a"}, 9));
  EXPECT_EQ(ownership.tokens(*ownership.find("a"), 0), 9);
  ownership.clear(0);
  EXPECT_EQ(ownership.size(), 1u);
}

TEST(Ownership, RefusesContradictionsAndNamesThem) {
  Ownership ownership;
  ownership.add(2, samples({"a"}, 5));
  const auto lengths = refusal<InvalidArgument>([&] { ownership.add(4, samples({"b", "a"}, 6)); });
  EXPECT_EQ(lengths, "sample a, key tokens has sequences of [6] tokens on rank 4, but of [5] on rank 2");
  EXPECT_FALSE(ownership.contains("b"));
  const auto dtype = refusal<InvalidArgument>([&] { ownership.add(4, samples({"b"}, 5, dtypes::float64)); });
  EXPECT_EQ(dtype, "key tokens is float64 [] for sample b on rank 4, but int64 [] for sample a on rank 2");
  SampleBatch other = samples({"a"}, 5);
  other.set_values(0, {{"reward", 1.0}});
  ownership.add(4, other);
  other.set_values(0, {{"reward", 2.0}});
  EXPECT_THAT(refusal<InvalidArgument>([&] { ownership.add(5, other); }),
              HasSubstr("another value of reward on rank 5"));
  // Who alone holds a sample may change it.
  Ownership alone;
  alone.add(2, samples({"a"}, 5));
  alone.add(2, samples({"a"}, 7));
  EXPECT_EQ(alone.tokens(0, 0), 7);
}

TEST(Ownership, RefusesASecondDtypeOfAKeyOnTheSameRank) {
  Ownership ownership;
  ownership.add(2, samples({"a", "b"}, 5));
  EXPECT_EQ(refusal<InvalidArgument>([&] {
              ownership.add(2, samples({"b", "c"}, 5, dtypes::float64));
            }),
            "key tokens is float64 [] for sample b on rank 2, but int64 [] for sample a on rank 2");
  ownership.add(2, samples({"b", "a"}, 5, dtypes::float64));  // all that it has of it
  EXPECT_EQ(ownership.keys()[0].dtype, dtypes::float64);
}

TEST(Ownership, TakesInOneKeyOfOneSampleAsABatch) {
  const SampleBatch batch = samples({"a", "b"}, 5);
  Ownership whole, pieces;
  whole.add(3, batch, {1, 2, false});
  const std::int64_t lengths[] = {5};
  for (const char* id : {"a", "b"}) pieces.add(3, {id, {}, batch.key("tokens"), lengths, {1, 2, false}});
  EXPECT_EQ(pieces.encode(), whole.encode());
  const std::int64_t other[] = {6};
  EXPECT_THAT(refusal([&] {
                pieces.add(4, {"a", {}, batch.key("tokens"), other, {}});
              }),
              HasSubstr("sample a, key tokens has sequences of [6] tokens on rank 4, but of [5] on rank 3"));
}

TEST(Ownership, KnowsPartsFromWholes) {
  Ownership ownership;
  ownership.add(0, samples({"a"}, 5));
  ownership.add(1, samples({"a"}, 5), {1, 2, false});
  ownership.add(0, samples({"a"}, 5), {0, 2, false});
  EXPECT_THAT(holders(ownership, "a"), ElementsAre(Holder{0}, Holder{1, {1, 2, false}}));
  EXPECT_THAT(refusal([&] { ownership.add(1, samples({"a"}, 6), {1, 2}); }), HasSubstr("sample a"));
}

TEST(Ownership, PartsOfASequenceAreAllOfItInOrder) {
  for (const std::int64_t length : {0, 1, 7, 16, 1001}) {
    std::int64_t next = 0, taken = 0;
    for (std::uint16_t i = 0; i < 3; ++i) {
      const TokenRanges plain = tokens_in({i, 3, false}, length);
      EXPECT_EQ(plain.begin, next);
      next = plain.end;
      EXPECT_EQ(plain.second_begin, plain.second_end);
      taken += tokens_in({i, 3, true}, length).tokens();
    }
    EXPECT_EQ(next, length);
    EXPECT_EQ(taken, length);
  }
  const TokenRanges zigzag = tokens_in({1, 2, true}, 8);
  EXPECT_THAT((std::vector{zigzag.begin, zigzag.end, zigzag.second_begin, zigzag.second_end}), ElementsAre(2, 4, 4, 6));
}

/// Random updates, beside a table of the plainest kind.
TEST(Ownership, IsWhatASeriesOfUpdatesMadeIt) {
  std::mt19937 random(11);
  std::map<std::string, std::map<int, bool>> expected;
  Ownership ownership, merged;
  std::vector<Ownership> by_rank(4);
  for (int round = 0; round < 400; ++round) {
    const int rank = static_cast<int>(random() % 4);
    std::vector<std::string> ids;
    for (int i = 0; i < 40; ++i) {
      if (random() % 4 == 0) ids.push_back("sample" + std::to_string(i));
    }
    if (random() % 3 != 0) {
      ownership.add(rank, samples(ids, 5));
      by_rank[static_cast<std::size_t>(rank)].add(rank, samples(ids, 5));
      for (const auto& id : ids) expected[id][rank] = true;
    } else if (random() % 8 != 0) {
      ownership.remove(rank, ids);
      by_rank[static_cast<std::size_t>(rank)].remove(rank, ids);
      for (const auto& id : ids) expected[id].erase(rank);
    } else {
      ownership.clear(rank);
      by_rank[static_cast<std::size_t>(rank)].clear(rank);
      for (auto& [id, ranks] : expected) ranks.erase(rank);
    }
    std::erase_if(expected, [](const auto& each) { return each.second.empty(); });
    ASSERT_EQ(ownership.size(), expected.size());
    for (const auto& [id, ranks] : expected) {
      Holders wanted;
      for (const auto& [holder, held] : ranks) wanted.push_back({holder});
      ASSERT_EQ(holders(ownership, id), wanted);
    }
  }
  for (const Ownership& each : by_rank) merged.merge(each);
  EXPECT_EQ(content(merged), content(ownership));
}

TEST(Ownership, ForgetsKeysThatNobodyHolds) {
  Ownership ownership;
  ownership.add(0, samples({"stays"}, 5));
  for (std::int64_t step = 0; step < 10; ++step) {
    SampleBatch other({"passes"});
    other.set({"key" + std::to_string(step), dtypes::int64, {}}, Seqlens::of({{{step, 1}}}));
    ownership.add(1, other);
    ownership.add(2, samples({"passes"}, 7));
    EXPECT_EQ(ownership.keys().size(), 2u);
    ownership.remove(1, std::vector<std::string>{"passes"});
    EXPECT_EQ(ownership.keys().size(), 1u);
    ownership.add(1, other);
    ownership.clear(1);
    EXPECT_EQ(ownership.keys().size(), 1u);
  }
  EXPECT_THAT(holders(ownership, "passes"), ElementsAre(Holder{2}));
  EXPECT_EQ(ownership.tokens(*ownership.find("passes"), 0), 7);
  EXPECT_EQ(Ownership::decode(ownership.encode()).encode(), ownership.encode());
}

TEST(Ownership, ForgetsHoldersOfThePast) {
  Ownership ownership;
  ownership.add(0, samples({"a", "b"}, 5));
  for (int rank = 1; rank < 10'000; ++rank) {
    ownership.add(rank, samples({"b"}, 5));
    ownership.remove(rank - 1, std::vector<std::string>{"b"});
    ASSERT_LT(ownership.holder_set(*ownership.find("b"), 0), 2000u);
  }
  EXPECT_THAT(holders(ownership, "a"), ElementsAre(Holder{0}));
  EXPECT_THAT(holders(ownership, "b"), ElementsAre(Holder{9999}));
}

TEST(Ownership, RefusesMoreKeysThanPlansCanNumber) {
  SampleBatch batch({"a"});
  for (int key = 10'000; key < 75'535; ++key) {
    batch.set({"k" + std::to_string(key), dtypes::int64, {}}, Seqlens::one_each({1}));
  }
  Ownership ownership;
  ownership.add(0, samples({"b"}, 5));
  EXPECT_EQ(refusal([&] { ownership.add(1, batch); }), "samples have room for 65535 keys in all, not for 65536");
  EXPECT_EQ(ownership.size(), 1u);
}

TEST(Ownership, TravelsAsBytes) {
  SampleBatch batch({"a", "b", "c"});
  batch.set({"tokens", dtypes::int64, {}}, Seqlens::of({{{1, 2}}, {{}}, {}}));
  batch.set({"hidden", dtypes::bfloat16, {4, 2}}, Seqlens::of({{}, {{7}}, {{0}}}));
  batch.set_values(
      1, {{"reward", 0.5}, {"n", std::int64_t{1} << 40}, {"t", std::string("x")}, {"b", true}, {"o", None{}}});
  Ownership ownership;
  ownership.add(6, batch);
  ownership.add(2, batch.select_ids(std::vector<std::string>{"a"}), {1, 3, true});
  const Bytes bytes = ownership.encode();
  const Ownership back = Ownership::decode(bytes);
  EXPECT_EQ(back.encode(), bytes);
  EXPECT_EQ(content(back), content(ownership));
  EXPECT_EQ(back.meta(), batch.meta());
  const std::size_t chosen[] = {1};
  EXPECT_EQ(back.select(chosen).meta().ids(), std::vector<std::string>{"b"});
}

TEST(Ownership, RefusesBytesThatLie) {
  Ownership ownership;
  ownership.add(6, samples({"a", "b"}, 5));
  const Bytes bytes = ownership.encode();
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_THROW(Ownership::decode(ByteView(bytes).first(cut)), CorruptMessage);
  }
  std::mt19937 random(12);
  for (int round = 0; round < 2000; ++round) {
    Bytes changed = bytes;
    changed[random() % changed.size()] = static_cast<std::byte>(random());
    try {
      const Bytes again = Ownership::decode(changed).encode();
      EXPECT_EQ(Ownership::decode(again).encode(), again);
    } catch (const CorruptMessage&) {
    }
  }
}

TEST(Ownership, IsAsItWasWhereOneIdOfABatchIsTooLong) {
  Ownership ownership;
  SampleBatch batch({"a", std::string((std::size_t{16} << 20) + 1, 'x')});
  batch.set({"tokens", dtypes::int64, {}}, Seqlens::one_each({1, 1}));
  EXPECT_THROW(ownership.add(0, batch), InvalidArgument);
  EXPECT_EQ(ownership.size(), 0u);
}

}  // namespace
}  // namespace levada
