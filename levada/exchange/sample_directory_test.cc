#include "levada/exchange/sample_directory.h"

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

const Holders& holders(const SampleDirectory& directory, std::string_view id, std::string_view key = "tokens") {
  return directory.holders(directory.find(id).value(), directory.find_key(key).value());
}

/// Returns the content in a canonical order.
std::map<std::string, std::string> content(const SampleDirectory& directory) {
  std::map<std::string, std::string> text;
  for (std::size_t sample = 0; sample < directory.size(); ++sample) {
    auto& line = text[std::string(directory.id(sample))];
    for (std::size_t key = 0; key < directory.keys().size(); ++key) {
      if (directory.holder_set(sample, key) == 0) continue;
      line += directory.keys()[key].name + ":";
      for (const Holder& holder : directory.holders(sample, key)) {
        line += std::to_string(holder.rank) + " " + holder.part.to_string() + ",";
      }
      for (const std::int64_t length : directory.lengths(sample, key)) line += std::to_string(length) + " ";
    }
  }
  return text;
}

TEST(SampleDirectory, ListsTheHoldersOfEachSample) {
  SampleDirectory directory;
  directory.add(3, samples({"a", "b"}, 5));
  directory.add(1, samples({"b", "c"}, 5));
  EXPECT_EQ(directory.size(), 3u);
  EXPECT_THAT(holders(directory, "b"), ElementsAre(Holder{1}, Holder{3}));
  EXPECT_THAT(holders(directory, "c"), ElementsAre(Holder{1}));
  EXPECT_THAT(directory.lengths(*directory.find("a"), 0), ElementsAre(5));
  EXPECT_FALSE(directory.contains("d"));
}

TEST(SampleDirectory, IgnoresAbsentKeys) {
  SampleDirectory directory;
  directory.add(0, samples({"a"}, 5, dtypes::float32));
  SampleBatch other(std::vector<std::string>{"b"});
  other.set({"reward", dtypes::int64, {}}, Seqlens::one_each({1}));
  Seqlens absent;
  absent.push_absent();
  other.set({"tokens", dtypes::float64, {}}, absent);
  other.set({"never", dtypes::float64, {}}, absent);
  directory.add(1, other);
  EXPECT_EQ(directory.keys()[directory.find_key("tokens").value()].dtype, dtypes::float32);
  EXPECT_FALSE(directory.find_key("never").has_value());
}

TEST(SampleDirectory, DropsSamplesWithoutHolders) {
  SampleDirectory directory;
  directory.add(0, samples({"a", "b", "c"}, 5));
  directory.add(1, samples({"b"}, 5));
  const SampleDirectory before = directory;
  directory.remove(0, std::vector<std::string>{"a", "b", "unknown"});
  EXPECT_FALSE(directory.contains("a"));
  EXPECT_THAT(holders(directory, "b"), ElementsAre(Holder{1}));
  EXPECT_TRUE(before.contains("a"));  // a copy is an independent value
  directory.add(0, samples({"a"}, 9));
  EXPECT_EQ(directory.tokens(*directory.find("a"), 0), 9);
  directory.clear(0);
  EXPECT_EQ(directory.size(), 1u);
}

TEST(SampleDirectory, NamesTheContradictionThatItRejects) {
  SampleDirectory directory;
  directory.add(2, samples({"a"}, 5));
  const auto lengths = refusal<InvalidArgument>([&] { directory.add(4, samples({"b", "a"}, 6)); });
  EXPECT_EQ(lengths, "sample a, key tokens has sequences of [6] tokens on rank 4, but of [5] on rank 2");
  EXPECT_FALSE(directory.contains("b"));
  const auto dtype = refusal<InvalidArgument>([&] { directory.add(4, samples({"b"}, 5, dtypes::float64)); });
  EXPECT_EQ(dtype, "key tokens is float64 [] for sample b on rank 4, but int64 [] for sample a on rank 2");
  SampleBatch other = samples({"a"}, 5);
  other.set_values(0, {{"reward", 1.0}});
  directory.add(4, other);
  other.set_values(0, {{"reward", 2.0}});
  EXPECT_THAT(refusal<InvalidArgument>([&] { directory.add(5, other); }),
              HasSubstr("another value of reward on rank 5"));
  // The sole holder of a sample may change it.
  SampleDirectory alone;
  alone.add(2, samples({"a"}, 5));
  alone.add(2, samples({"a"}, 7));
  EXPECT_EQ(alone.tokens(0, 0), 7);
}

TEST(SampleDirectory, RejectsASecondDtypeOfAKeyOnTheSameRank) {
  SampleDirectory directory;
  directory.add(2, samples({"a", "b"}, 5));
  EXPECT_EQ(refusal<InvalidArgument>([&] {
              directory.add(2, samples({"b", "c"}, 5, dtypes::float64));
            }),
            "key tokens is float64 [] for sample b on rank 2, but int64 [] for sample a on rank 2");
  directory.add(2, samples({"b", "a"}, 5, dtypes::float64));  // all its keys of the sample
  EXPECT_EQ(directory.keys()[0].dtype, dtypes::float64);
}

TEST(SampleDirectory, MergesManyHoldersIntoOneSet) {
  constexpr int ranks = 1000;  // fewer sets than compaction drops
  SampleDirectory many, merged;
  for (int rank = 0; rank < ranks; ++rank) many.add(rank, samples({"a"}, 5));
  merged.merge(many);
  EXPECT_EQ(merged.holders(0, 0).size(), std::size_t{ranks});
  EXPECT_EQ(merged.holder_set(0, 0), 1u);
}

TEST(SampleDirectory, AddsOneKeyOfOneSampleLikeABatch) {
  const SampleBatch batch = samples({"a", "b"}, 5);
  SampleDirectory whole, pieces;
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

TEST(SampleDirectory, DistinguishesPartsFromWholes) {
  SampleDirectory directory;
  directory.add(0, samples({"a"}, 5));
  directory.add(1, samples({"a"}, 5), {1, 2, false});
  directory.add(0, samples({"a"}, 5), {0, 2, false});
  EXPECT_THAT(holders(directory, "a"), ElementsAre(Holder{0}, Holder{1, {1, 2, false}}));
  EXPECT_THAT(refusal([&] { directory.add(1, samples({"a"}, 6), {1, 2}); }), HasSubstr("sample a"));
}

TEST(SampleDirectory, PartsCoverASequenceInOrder) {
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

/// Compares random updates with a simple table.
TEST(SampleDirectory, MatchesATableAfterRandomUpdates) {
  std::mt19937 random(11);
  std::map<std::string, std::map<int, bool>> expected;
  SampleDirectory directory, merged;
  std::vector<SampleDirectory> by_rank(4);
  for (int round = 0; round < 400; ++round) {
    const int rank = static_cast<int>(random() % 4);
    std::vector<std::string> ids;
    for (int i = 0; i < 40; ++i) {
      if (random() % 4 == 0) ids.push_back("sample" + std::to_string(i));
    }
    if (random() % 3 != 0) {
      directory.add(rank, samples(ids, 5));
      by_rank[static_cast<std::size_t>(rank)].add(rank, samples(ids, 5));
      for (const auto& id : ids) expected[id][rank] = true;
    } else if (random() % 8 != 0) {
      directory.remove(rank, ids);
      by_rank[static_cast<std::size_t>(rank)].remove(rank, ids);
      for (const auto& id : ids) expected[id].erase(rank);
    } else {
      directory.clear(rank);
      by_rank[static_cast<std::size_t>(rank)].clear(rank);
      for (auto& [id, ranks] : expected) ranks.erase(rank);
    }
    std::erase_if(expected, [](const auto& each) { return each.second.empty(); });
    ASSERT_EQ(directory.size(), expected.size());
    for (const auto& [id, ranks] : expected) {
      Holders wanted;
      for (const auto& [holder, held] : ranks) wanted.push_back({holder});
      ASSERT_EQ(holders(directory, id), wanted);
    }
  }
  for (const SampleDirectory& each : by_rank) merged.merge(each);
  EXPECT_EQ(content(merged), content(directory));
}

TEST(SampleDirectory, DropsKeysWithoutHolders) {
  SampleDirectory directory;
  directory.add(0, samples({"stays"}, 5));
  for (std::int64_t step = 0; step < 10; ++step) {
    SampleBatch other({"passes"});
    other.set({"key" + std::to_string(step), dtypes::int64, {}}, Seqlens::of({{{step, 1}}}));
    directory.add(1, other);
    directory.add(2, samples({"passes"}, 7));
    EXPECT_EQ(directory.keys().size(), 2u);
    directory.remove(1, std::vector<std::string>{"passes"});
    EXPECT_EQ(directory.keys().size(), 1u);
    directory.add(1, other);
    directory.clear(1);
    EXPECT_EQ(directory.keys().size(), 1u);
  }
  EXPECT_THAT(holders(directory, "passes"), ElementsAre(Holder{2}));
  EXPECT_EQ(directory.tokens(*directory.find("passes"), 0), 7);
  EXPECT_EQ(SampleDirectory::decode(directory.encode()).encode(), directory.encode());
}

TEST(SampleDirectory, ReusesTheNumbersOfUnusedHolderSets) {
  SampleDirectory directory;
  directory.add(0, samples({"a", "b"}, 5));
  for (int rank = 1; rank < 10'000; ++rank) {
    directory.add(rank, samples({"b"}, 5));
    directory.remove(rank - 1, std::vector<std::string>{"b"});
    ASSERT_LT(directory.holder_set(*directory.find("b"), 0), 2000u);
  }
  EXPECT_THAT(holders(directory, "a"), ElementsAre(Holder{0}));
  EXPECT_THAT(holders(directory, "b"), ElementsAre(Holder{9999}));
}

TEST(SampleDirectory, RejectsMoreKeysThanPlansCanNumber) {
  SampleBatch batch({"a"});
  for (int key = 10'000; key < 75'535; ++key) {
    batch.set({"k" + std::to_string(key), dtypes::int64, {}}, Seqlens::one_each({1}));
  }
  SampleDirectory directory;
  directory.add(0, samples({"b"}, 5));
  EXPECT_EQ(refusal([&] { directory.add(1, batch); }), "a directory holds at most 65535 keys, got 65536");
  EXPECT_EQ(directory.size(), 1u);
}

TEST(SampleDirectory, SurvivesEncoding) {
  SampleBatch batch({"a", "b", "c"});
  batch.set({"tokens", dtypes::int64, {}}, Seqlens::of({{{1, 2}}, {{}}, {}}));
  batch.set({"hidden", dtypes::bfloat16, {4, 2}}, Seqlens::of({{}, {{7}}, {{0}}}));
  batch.set_values(
      1, {{"reward", 0.5}, {"n", std::int64_t{1} << 40}, {"t", std::string("x")}, {"b", true}, {"o", None{}}});
  SampleDirectory directory;
  directory.add(6, batch);
  directory.add(2, batch.select_ids(std::vector<std::string>{"a"}), {1, 3, true});
  const Bytes bytes = directory.encode();
  const SampleDirectory back = SampleDirectory::decode(bytes);
  EXPECT_EQ(back.encode(), bytes);
  EXPECT_EQ(content(back), content(directory));
  EXPECT_EQ(back.meta(), batch.meta());
}

TEST(SampleDirectory, RejectsInvalidBytes) {
  SampleDirectory directory;
  directory.add(6, samples({"a", "b"}, 5));
  const Bytes bytes = directory.encode();
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_THROW(SampleDirectory::decode(ByteView(bytes).first(cut)), CorruptMessage);
  }
  std::mt19937 random(12);
  for (int round = 0; round < 2000; ++round) {
    Bytes changed = bytes;
    changed[random() % changed.size()] = static_cast<std::byte>(random());
    try {
      const Bytes again = SampleDirectory::decode(changed).encode();
      EXPECT_EQ(SampleDirectory::decode(again).encode(), again);
    } catch (const CorruptMessage&) {
    }
  }
}

TEST(SampleDirectory, IsUnchangedIfOneIdOfABatchIsTooLong) {
  SampleDirectory directory;
  SampleBatch batch({"a", std::string((std::size_t{16} << 20) + 1, 'x')});
  batch.set({"tokens", dtypes::int64, {}}, Seqlens::one_each({1, 1}));
  EXPECT_THROW(directory.add(0, batch), InvalidArgument);
  EXPECT_EQ(directory.size(), 0u);
}

TEST(SampleDirectory, RejectsTextThatIsNotUtf8) {
  SampleBatch batch({"some-id"});
  batch.set("some-key", Tensor::zeros(dtypes::uint8, {1}), Seqlens::one_each({1}));
  batch.set_values(0, {{"some-name", std::string("some-text")}});
  SampleDirectory directory;
  directory.add(0, batch);
  const Bytes bytes = directory.encode();
  for (const std::string_view text : {"some-id", "some-key", "some-name", "some-text"}) {
    Bytes changed = bytes;
    const auto at = std::ranges::search(changed, as_bytes(text));
    ASSERT_FALSE(at.empty()) << text;
    at.front() = std::byte{0xff};
    EXPECT_THAT(refusal<CorruptMessage>([&] { SampleDirectory::decode(changed); }), testing::HasSubstr("not UTF-8"));
  }
}

}  // namespace
}  // namespace levada
