#include "levada/exchange/holdings.h"

#include <gmock/gmock.h>

#include "levada/base/error.h"
#include "levada/base/refusal_testing.h"
#include "levada/exchange/exchange_testing.h"
#include "levada/exchange/sample_directory_codec.h"

namespace levada {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Two stores with many kinds of samples; one of them also has a part of a sample.
struct TwoStores {
  SampleStore stores[2];
  ExchangeRequest request{{{{0, 1}, numbered_ids(7)}}, {"tokens", "hidden", "bytes"}};

  TwoStores() {
    stores[0].store(made_samples(numbered_ids(5), {"tokens", "hidden", "mask"}));
    stores[1].store(made_samples({"sample-4", "sample-1", "elsewhere"}, {"hidden", "bytes"}));
    const std::int64_t length = 4;
    const SampleKey key{"tokens", dtypes::int64, {}};
    const std::uint64_t sizes[] = {16};
    auto memory = stores[1].allocate(sizes).front();
    SampleStore::PendingWrite part[] = {{"sample-6",
                                         hash64(as_bytes("sample-6")),
                                         {},
                                         key,
                                         std::span(&length, 1),
                                         {1, 2, true},
                                         {memory.data, memory.owner},
                                         16}};
    stores[1].commit(part);
  }
};

TEST(Holdings, DescribeTheContentOfStores) {
  const TwoStores world;
  const SampleIndex index(world.request.destinations);
  HoldingsTable table(index, world.request.keys);
  SampleDirectory expected;
  for (int rank = 0; rank < 2; ++rank) {
    table.add(rank, holdings_of(world.stores[rank], index, world.request.keys).bytes);
    expected.merge(world.stores[rank].directory(rank, world.request.destinations[0].ids, world.request.keys));
  }
  const SampleDirectory held = std::move(table).take();
  ASSERT_EQ(held.size(), index.size());
  EXPECT_EQ(held.keys().size(), expected.keys().size());
  for (std::size_t sample = 0; sample < held.size(); ++sample) {
    const auto known = expected.find(held.id(sample));
    EXPECT_EQ(known.has_value(), held.id(sample) != "sample-5");
    for (const std::string& name : world.request.keys) {
      const auto key = held.find_key(name).value(), known_key = expected.find_key(name).value();
      const Holders none;
      EXPECT_EQ(held.holders(sample, key), known ? expected.holders(*known, known_key) : none);
      if (held.holder_set(sample, key) == 0) continue;
      EXPECT_TRUE(std::ranges::equal(held.lengths(sample, key), expected.lengths(*known, known_key)));
    }
    EXPECT_TRUE(!known || same_values(held.values(sample), expected.values(*known)));
  }
}

TEST(Holdings, IncludeSamplesWithoutTheRequestedKeys) {
  const ExchangeRequest request{{{{0}, {"c", "a", "b"}}}, {"k"}};
  const SampleIndex index(request.destinations);
  SampleBatch batch({"a", "elsewhere"});
  batch.set("other", Tensor::zeros(dtypes::int64, {2}), Seqlens::one_each({1, 1}));
  batch.set_values(0, {{"reward", 1.5}});
  SampleStore stores[2];
  stores[0].store(batch);
  stores[1].store(SampleBatch({"b"}));
  HoldingsTable table(index, request.keys);
  for (int rank = 0; rank < 2; ++rank) table.add(rank, holdings_of(stores[rank], index, request.keys).bytes);
  EXPECT_THAT(table.requested(), ElementsAre(no_sample, 0, 1));
  const SampleDirectory held = std::move(table).take();
  EXPECT_TRUE(held.keys().empty());
  EXPECT_TRUE(same_values(held.values(0), {{"reward", 1.5}}));
}

TEST(Holdings, ShareOneSetOfHoldersAmongSamples) {
  constexpr int ranks = 3000;
  const ExchangeRequest request{{{{0}, {"a", "b"}}}, {"tokens", "mask"}};
  const SampleIndex index(request.destinations);
  SampleStore store;
  store.store(made_samples({"a", "b"}));
  const Bytes all = holdings_of(store, index, request.keys).bytes;
  store.remove(std::vector<std::string>{"b"});
  const Bytes one = holdings_of(store, index, request.keys).bytes;
  HoldingsTable table(index, request.keys);
  for (int rank = 0; rank < ranks; ++rank) table.add(rank, rank % 2 == 0 ? all : one);
  const SampleDirectory held = std::move(table).take();
  for (std::size_t key = 0; key < 2; ++key) {
    EXPECT_EQ(held.holders(0, key).size(), std::size_t{ranks});
    EXPECT_EQ(held.holders(1, key).size(), std::size_t{ranks} / 2);
    EXPECT_TRUE(std::ranges::is_sorted(held.holders(1, key)));
    EXPECT_LE(held.holder_set(0, key), 2u);
    EXPECT_LE(held.holder_set(1, key), 2u);
  }
}

TEST(Holdings, RejectInvalidBytes) {
  const TwoStores world;
  const SampleIndex index(world.request.destinations);
  const auto& keys = world.request.keys;
  const Bytes good = holdings_of(world.stores[0], index, keys).bytes;
  for (std::size_t size = 1; size < good.size(); ++size) {
    HoldingsTable table(index, keys);
    EXPECT_THROW(table.add(0, ByteView(good).first(size)), CorruptMessage);
  }
  Bytes longer = good;
  longer.push_back({});
  EXPECT_THROW(HoldingsTable(index, keys).add(0, longer), CorruptMessage);
  const ExchangeRequest fewer{{{{0}, {"sample-0"}}}, {"tokens"}};
  const SampleIndex few(fewer.destinations);
  EXPECT_THROW(HoldingsTable(few, keys).add(0, good), CorruptMessage);
  const std::vector<std::string> one{"tokens"};
  EXPECT_THAT(refusal<CorruptMessage>([&] { HoldingsTable(index, one).add(0, good); }),
              HasSubstr("a key that was not requested"));
}

/// Writes holdings of one sample's key "k", followed by other fields.
class Lie {
 public:
  Lie& column(std::initializer_list<std::uint32_t> samples = {0}, std::size_t num_contents = 1) {
    writer_.put(std::uint8_t{1});
    put_key(writer_, {"k", dtypes::int64, {}});
    numbers(samples);
    writer_.put(std::uint32_t{0});  // parts
    const std::int64_t lengths[] = {3};
    put_lengths(writer_, {}, lengths);
    const std::uint64_t contents[] = {5, 6, 7};
    put_numbers(writer_, std::span(contents).first(num_contents));
    return *this;
  }
  Lie& end() {
    writer_.put(std::uint8_t{0});
    return *this;
  }
  Lie& numbers(std::initializer_list<std::uint32_t> all) {
    writer_.put(static_cast<std::uint32_t>(4 * all.size()));
    for (const std::uint32_t number : all) writer_.put(number);
    return *this;
  }
  Lie& values(std::initializer_list<std::uint32_t> samples) {
    writer_.put(static_cast<std::uint32_t>(samples.size()));
    for (const std::uint32_t sample : samples) {
      writer_.put(sample);
      put_values(writer_, {{"reward", 1.5}});
    }
    return *this;
  }
  ByteView bytes() const { return writer_.view(); }

 private:
  ByteWriter writer_;
};

TEST(Holdings, RejectImpossibleHoldings) {
  const ExchangeRequest request{{{{0}, {"a", "b"}}}, {"k"}};
  const SampleIndex index(request.destinations);
  const auto refused = [&](const Lie& lie) {
    HoldingsTable table(index, request.keys);
    table.add(0, Lie().column().end().numbers({1}).values({0, 1}).bytes());
    return refusal<CorruptMessage>([&] { table.add(1, lie.bytes()); });
  };
  EXPECT_THAT(refused(Lie().column({})), HasSubstr("a key without samples"));
  EXPECT_THAT(refused(Lie().column({0, 1})), HasSubstr("a wrong number of lengths"));
  EXPECT_THAT(refused(Lie().column({0}, 2)), HasSubstr("a wrong number of contents"));
  EXPECT_THAT(refused(Lie().column().column({})), HasSubstr("a key that appears twice"));
  EXPECT_THAT(refused(Lie().end().numbers({2})), HasSubstr("samples that were not requested"));
  EXPECT_THAT(refused(Lie().end().numbers({1}).values({0})), HasSubstr("values of a sample that is not held"));
  EXPECT_THAT(refused(Lie().end().numbers({1}).values({1, 1})), HasSubstr("values of a sample that is not held"));
}

TEST(Holdings, RejectContradictionsBetweenRanks) {
  const ExchangeRequest request{{{{0}, {"b", "a"}}}, {"k"}};
  const SampleIndex index(request.destinations);
  const auto held = [&](std::int64_t length, DType dtype, PlainValues values, std::string key = "k") {
    SampleBatch batch({"b"});
    batch.set(std::move(key), Tensor::zeros(dtype, {length}), Seqlens::one_each({length}));
    batch.set_values(0, std::move(values));
    SampleStore store;
    store.store(batch);
    return holdings_of(store, index, request.keys).bytes;
  };
  const auto refused = [&](int rank, const Bytes& bytes) {
    HoldingsTable table(index, request.keys);
    table.add(1, held(3, dtypes::int64, {{"reward", 1.5}}));
    return refusal([&] { table.add(rank, bytes); });
  };
  EXPECT_EQ(refused(4, held(5, dtypes::int64, {})),
            "sample b, key k has sequences of [5] tokens on rank 4, but of [3] on rank 1");
  EXPECT_EQ(refused(5, held(3, dtypes::int32, {})),
            "key k is int32 [] for sample b on rank 5, but int64 [] for sample b on rank 1");
  EXPECT_EQ(refused(6, held(3, dtypes::int64, {{"reward", 2.5}})),
            "sample b has another value of reward on rank 6 than on rank 1");
  EXPECT_EQ(refused(7, held(3, dtypes::int64, {{"reward", 2.5}}, "other")),
            "sample b has another value of reward on rank 7 than on rank 1");
}

}  // namespace
}  // namespace levada
