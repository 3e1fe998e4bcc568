#include "levada/exchange/store.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "levada/base/hash.h"
#include "levada/base/refusal_testing.h"
#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> list(std::initializer_list<const char*> texts) {
  return {texts.begin(), texts.end()};
}

TEST(SampleStore, ReturnsTheStoredSamples) {
  SampleStore store;
  const SampleBatch all = made_samples(list({"a", "b", "c"}));
  store.store(all.select_ids(list({"c", "a"})));
  store.store(all.select_ids(list({"b"})));
  EXPECT_EQ(store.get(list({"a", "b", "c"})), all);
  EXPECT_EQ(store.get(list({"b"}), list({"mask"})), all.select_ids(list({"b"})).select_keys(list({"mask"})));
  EXPECT_EQ(store.bytes(), all.byte_count());
  EXPECT_EQ(store.size(), 3u);
  EXPECT_TRUE(store.has("a", "tokens"));
  EXPECT_FALSE(store.has("a", "values"));
}

TEST(SampleStore, OwnsItsMemory) {
  SampleStore store;
  auto tokens = Tensor::of<std::int64_t>({2}, {1, 2});
  SampleBatch batch(list({"a"}));
  batch.set("tokens", tokens, Seqlens::one_each({2}));
  store.store(batch);
  tokens.mutable_as<std::int64_t>()[0] = 7;
  const auto before = store.get(list({"a"}));
  EXPECT_THAT(before.item("tokens", 0)->as<std::int64_t>(), ElementsAre(1, 2));
  store.remove(list({"a", "unknown"}));
  EXPECT_EQ(store.bytes(), 0u);
  EXPECT_THAT(store.ids(), IsEmpty());
  EXPECT_THAT(SampleStore::Reading(store).columns(), IsEmpty());
  store.store(made_samples(numbered_ids(8)));
  EXPECT_THAT(before.item("tokens", 0)->as<std::int64_t>(), ElementsAre(1, 2));
}

TEST(SampleStore, ReturnsAbsentKeysIfAllowed) {
  SampleStore store;
  store.store(made_samples(list({"a", "b"}), {"tokens"}));
  EXPECT_THROW(store.get(list({"a"}), list({"tokens", "reward"})), InvalidArgument);
  const SampleBatch got = store.get(list({"a", "b"}), list({"tokens", "reward"}), true);
  EXPECT_TRUE(got.item("tokens", 1).has_value());
  EXPECT_FALSE(got.item("reward", 0).has_value());
  EXPECT_FALSE(got.seqlens("reward").has(1));
  SampleStore other;
  other.store(got);
  EXPECT_TRUE(other.has("a", "tokens"));
  EXPECT_FALSE(other.has("a", "reward"));
}

TEST(SampleStore, UpdatesKeysAndValues) {
  SampleStore store;
  store.store(made_samples(list({"a", "b"}), {"tokens"}));
  SampleBatch more = made_samples(list({"b"}), {"tokens", "mask"});
  more.set_values(0, {{"reward", 1.5}});
  store.update(more);
  EXPECT_EQ(store.bytes(),
            made_samples(list({"a", "b"}), {"tokens"}).byte_count() + made_samples(list({"b"}), {"mask"}).byte_count());
  const auto got = store.get(list({"a", "b"}));
  EXPECT_FALSE(got.item("mask", 0).has_value());
  EXPECT_TRUE(got.item("mask", 1).has_value());
  EXPECT_EQ(std::get<double>(got.values(1).at("reward")), 1.5);
  EXPECT_EQ(std::get<std::string>(got.values(1).at("from")), "b");
}

TEST(SampleStore, IsUnchangedByRejectedCalls) {
  SampleStore store({.max_bytes = made_samples(list({"a"})).byte_count()});
  store.store(made_samples(list({"a"})));
  EXPECT_THAT(refusal([&] {
                store.store(made_samples(list({"b", "a"})));
              }),
              HasSubstr("sample a is in the store already"));
  EXPECT_THAT(refusal([&] { store.update(made_samples(list({"b"}))); }), HasSubstr("sample b is not in the store"));
  EXPECT_THAT(refusal([&] { store.get(list({"b"})); }), HasSubstr("sample b"));
  EXPECT_THAT(refusal([&] { store.get(list({"a"}), list({"values"})); }), HasSubstr("values"));
  EXPECT_THAT(refusal([&] { store.store(made_samples(list({"z"}))); }), HasSubstr("bounded to"));
  EXPECT_THAT(refusal([&] { store.update(made_samples(list({"a"})).meta()); }), HasSubstr("sample a"));
  store.update(made_samples(list({"a"})));  // replaces existing keys
  EXPECT_THAT(store.ids(), ElementsAre("a"));
}

TEST(SampleStore, ReplacesAKeyOfAnotherDtype) {
  SampleStore store;
  store.store(made_samples(list({"a", "b"}), {"tokens"}));
  SampleBatch other(list({"a"}));
  other.set("tokens", Tensor::of<float>({2}, {1, 2}), Seqlens::one_each({2}));
  store.update(other);
  EXPECT_EQ(store.bytes(), made_samples(list({"b"}), {"tokens"}).byte_count() + 8);
  EXPECT_EQ(store.get(list({"a"}), list({"tokens"})).key("tokens").dtype, dtypes::float32);
  EXPECT_THAT(refusal([&] { store.get(list({"a", "b"})); }), HasSubstr("sample b, key tokens is int64"));
  store.update(made_samples(list({"a"}), {"tokens"}));
  EXPECT_EQ(store.get(list({"b", "a"})), made_samples(list({"b", "a"}), {"tokens"}));
}

SampleBatch shaped(const std::string& id, std::int64_t extent) {
  SampleBatch batch(std::vector{id});
  batch.set("x", Tensor::zeros(dtypes::uint8, {1, extent}), Seqlens::one_each({1}));
  return batch;
}

TEST(SampleStore, DropsTheKeysOfRemovedSamples) {
  SampleStore store;
  store.store(made_samples(list({"stays"}), {"tokens"}));
  const auto columns = [&] { return SampleStore::Reading(store).columns().size(); };
  for (std::int64_t step = 1; step <= 20; ++step) {
    store.store(shaped("passes", step));
    store.update(shaped("passes", 100 + step));
    EXPECT_LE(columns(), 3u);  // tokens, and x of two samples
    store.update(shaped("stays", step));
    store.remove(list({"passes"}));
    EXPECT_EQ(columns(), 2u);
  }
  EXPECT_EQ(store.get(list({"stays"}), list({"x"})).key("x").trailing, (Shape{20}));
  EXPECT_EQ(store.get(list({"stays"}), list({"tokens"})), made_samples(list({"stays"}), {"tokens"}));
}

TEST(SampleStore, IsUnchangedByAFailedStore) {
  SampleStore store;
  store.store(made_samples(list({"a"})));
  const std::string long_id(std::size_t{16} << 20, 'x');
  SampleBatch batch({"b", long_id});
  batch.set("x", Tensor::zeros(dtypes::uint8, {2}), Seqlens::one_each({1, 1}));
  EXPECT_THAT(refusal([&] { store.store(batch); }), HasSubstr("begins with \"xxxx"));
  EXPECT_EQ(store.get(store.ids()), made_samples(list({"a"})));
  EXPECT_EQ(store.bytes(), made_samples(list({"a"})).byte_count());
  EXPECT_EQ(SampleStore::Reading(store).columns().size(), made_samples({}).keys().size());
  store.store(made_samples(list({"c"})));
  EXPECT_EQ(store.get(list({"c", "a"})), made_samples(list({"c", "a"})));
}

TEST(SampleStore, SharesTheMemoryOfABatchOnRequest) {
  SampleBatch batch(list({"a", "empty"}));
  batch.set("tokens", Tensor::of<std::int64_t>({2}, {1, 2}), Seqlens::of({{{2}}, {}}));
  batch.set_values(1, {{"reward", 1.5}});
  SampleStore copied, shared;
  copied.store(batch);
  shared.store_without_copy(batch);
  EXPECT_EQ(shared.get(batch.ids()), copied.get(batch.ids()));
  EXPECT_EQ(shared.get(batch.ids()).bytes_at("tokens", 0).data, batch.bytes_at("tokens", 0).data);
  EXPECT_NE(copied.get(batch.ids()).bytes_at("tokens", 0).data, batch.bytes_at("tokens", 0).data);
  EXPECT_THAT(refusal([&] { shared.store_without_copy(batch); }), HasSubstr("sample a is in the store already"));
  EXPECT_THAT(refusal([&] { shared.store_without_copy(batch.meta()); }), HasSubstr("a meta cannot be stored"));
}

TEST(SampleStore, RejectsTheSecondOfTwoConcurrentStores) {
  const SampleBatch batch = made_samples(list({"a"}), {"tokens"});
  for (int round = 0; round < 100; ++round) {
    SampleStore store;
    std::atomic<int> refused = 0, ready = 0;
    const auto add = [&] {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      try {
        store.store_without_copy(batch);
      } catch (const InvalidArgument&) {
        ++refused;
      }
    };
    { const std::jthread one(add), other(add); }
    ASSERT_EQ(refused, 1);
  }
}

TEST(SampleStore, NeverCommitsBeyondItsBound) {
  SampleStore store({.max_bytes = 48});
  const SampleKey key{"x", dtypes::uint8, {}};
  const PlainValues values{{"reward", 1.5}};
  const std::int64_t lengths[] = {20};
  const auto arrivals = [&](std::initializer_list<const char*> ids) {
    std::vector<SampleStore::PendingWrite> all;
    for (const char* id : ids) {
      const std::uint64_t sizes[] = {20};
      auto memory = store.allocate(sizes).front();
      all.push_back({id, hash64(as_bytes(id)), values, key, lengths, {}, {memory.data, std::move(memory.owner)}, 20});
    }
    return all;
  };
  auto both = arrivals({"a", "b"});
  store.store(shaped("c", 9));  // while these arrivals are pending
  EXPECT_THAT(refusal([&] { store.commit(both); }), HasSubstr("would hold 49 B, but is bounded to 48 B"));
  EXPECT_THAT(store.ids(), ElementsAre("c"));
  EXPECT_EQ(store.bytes(), 9u);
  auto one = arrivals({"a"});
  store.commit(one);
  EXPECT_THAT(store.ids(), ElementsAre("a", "c"));
  EXPECT_EQ(store.get(list({"a"})).values(0), values);
}

TEST(SampleStore, UsesEngineMemoryWhileAvailable) {
  const SampleBatch samples = made_samples(numbered_ids(100));
  auto engine = inproc::make_group(1, {.memory_bytes = 16 << 20})[0];
  SampleStore store;
  store.use_memory_of(engine);
  store.store(samples);
  EXPECT_GT(engine->memory_in_use(), samples.byte_count() / 2);
  SampleBatch large({"large"});  // larger than the engine's memory
  large.set("a", Tensor::zeros(dtypes::uint8, {20 << 20}), Seqlens::one_each({20 << 20}));
  store.store(large);
  EXPECT_EQ(store.get(large.ids()), large);
  engine->abort("over");
  store.store(made_samples({"later"}));
  engine.reset();
  store.store(made_samples({"still later"}));
  EXPECT_EQ(store.get(samples.ids()), samples);
  EXPECT_EQ(store.get(std::vector<std::string>{"later"}), made_samples({"later"}));
  store.clear();
}

TEST(SampleStore, HasAUniqueVersionForEachContent) {
  SampleStore one, two;
  EXPECT_EQ(one.version(), two.version());
  one.store(made_samples({"a"}));
  two.store(made_samples({"a"}));
  std::set<std::uint64_t> versions{0, one.version(), two.version()};
  EXPECT_EQ(versions.size(), 3u);
  one.update(made_samples({"a"}));
  EXPECT_TRUE(versions.insert(one.version()).second);
  one.remove(std::vector<std::string>{"a"});
  EXPECT_TRUE(versions.insert(one.version()).second);
  two.clear();
  EXPECT_TRUE(versions.insert(two.version()).second);
}

TEST(SampleStore, KeepsTheOtherSamplesWhenSomeAreRemoved) {
  SampleStore store;
  const auto ids = numbered_ids(40);
  store.store(made_samples(ids));
  std::vector<std::string> kept, gone;
  for (std::size_t i = 0; i < ids.size(); ++i) (i % 3 == 1 ? kept : gone).push_back(ids[i]);
  store.remove(gone);
  EXPECT_EQ(store.get(kept), made_samples(kept));
  EXPECT_EQ(store.bytes(), made_samples(kept).byte_count());
  for (const std::string& id : gone) EXPECT_FALSE(store.has(id));
  store.store(made_samples(gone));
  EXPECT_EQ(store.get(ids), made_samples(ids));
}

TEST(SampleStore, DescribesItsContent) {
  SampleStore store;
  store.store(made_samples(list({"a", "b"}), {"tokens", "mask"}));
  const SampleDirectory some = store.directory(3, list({"b", "b", "z"}), list({"mask"}));
  EXPECT_EQ(some.meta(), made_samples(list({"b"}), {"mask"}).meta());
  EXPECT_THAT(some.holders(0, 0), ElementsAre(Holder{3}));
  EXPECT_EQ(store.directory(3).meta(), made_samples(list({"a", "b"}), {"tokens", "mask"}).meta());
}

}  // namespace
}  // namespace levada
