#include "levada/exchange/sample_batch.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/refusal_testing.h"
#include "levada/tree/codec.h"

namespace levada {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Returns four samples: a tokens key of one sequence each, a key of several sequences that b lacks, and a key that all
/// lack.
SampleBatch four() {
  SampleBatch batch({"a", "b", "c", "d"});
  batch.set("tokens", Tensor::of<std::int64_t>({7}, {1, 2, 3, 4, 5, 6, 7}), Seqlens::one_each({3, 0, 2, 2}));
  batch.set("scores", Tensor::of<float>({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), Seqlens::of({{{1, 1}}, {}, {{}}, {{2}}}));
  batch.set({"values", {}, {}}, Seqlens::of({{}, {}, {}, {}}));
  batch.set_values(1, {{"reward", 0.5}, {"done", true}});
  return batch;
}

TEST(SampleBatch, HoldsSeveralSequencesPerSample) {
  const SampleBatch batch = four();
  EXPECT_THAT(batch.keys(), ElementsAre("scores", "tokens", "values"));
  EXPECT_THAT(batch.item("tokens", 2)->as<std::int64_t>(), ElementsAre(4, 5));
  EXPECT_EQ(batch.item("tokens", 1)->shape(), Shape({0}));
  EXPECT_FALSE(batch.item("scores", 1).has_value());
  EXPECT_EQ(batch.item("scores", 2)->shape(), Shape({0, 2}));
  EXPECT_THAT(batch.sequence("scores", 0, 1).as<float>(), ElementsAre(3, 4));
  EXPECT_EQ(batch.byte_count(), 7u * 8 + 8 * 4);
  EXPECT_EQ(std::get<double>(batch.values(1).at("reward")), 0.5);
}

TEST(SampleBatch, DividesWithoutCopyingAndGathersAgain) {
  const SampleBatch batch = four();
  const auto before = copied_bytes();
  const auto parts = batch.split(std::vector<std::size_t>{1, 0, 3});
  EXPECT_EQ(parts[2].packed("tokens").view().data(), batch.packed("tokens").view().data() + 24);
  const auto again = SampleBatch::gather(parts);
  EXPECT_EQ(again.packed("tokens").view().data(), batch.packed("tokens").view().data());
  EXPECT_EQ(copied_bytes(), before);
  // A key that no sample has comes back without a dtype, as before.
  EXPECT_EQ(again.keys(), batch.keys());
  EXPECT_EQ(SampleBatch::gather(batch.unpack()).select_keys(std::vector<std::string>{"scores", "tokens"}),
            batch.select_keys(std::vector<std::string>{"scores", "tokens"}));
}

TEST(SampleBatch, IsRestoredFromPartitionsAndOrders) {
  const SampleBatch batch = four();
  const Partition partition = batch.balanced(2, "tokens");
  const auto parts = batch.split(partition);
  EXPECT_EQ(SampleBatch::gather(parts).select_ids(batch.ids()).meta(), SampleBatch::gather(batch.unpack()).meta());
  const std::vector<std::size_t> turned{3, 1, 0, 2};
  EXPECT_EQ(batch.reorder(turned).select_ids(batch.ids()), batch);
  EXPECT_THAT(batch.reorder(turned).ids(), ElementsAre("d", "b", "a", "c"));
  EXPECT_THAT(batch.reorder(turned).packed("tokens").as<std::int64_t>(), ElementsAre(6, 7, 1, 2, 3, 4, 5));
}

TEST(SampleBatch, CannotBeBalancedOverMorePartsThanItHasSamples) {
  for (const auto sizes : {PartSizes::any, PartSizes::equal}) {
    EXPECT_THAT(refusal([&] { static_cast<void>(four().balanced(5, "tokens", sizes)); }),
                HasSubstr("a batch of 4 sample(s) cannot be divided over 5 ranks; give"));
  }
}

/// Returns random ragged samples; some lack keys.
SampleBatch random_batch(std::mt19937& random) {
  std::vector<std::string> ids;
  for (std::size_t i = random() % 9; i > 0; --i) ids.push_back("s" + std::to_string(i * 37 % 101));
  SampleBatch batch(ids);
  for (const char* key : {"x", "y"}) {
    std::vector<std::optional<std::vector<std::int64_t>>> lengths;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (random() % 4 == 0) lengths.emplace_back();
      else lengths.push_back(std::vector<std::int64_t>(random() % 3, static_cast<std::int64_t>(random() % 4)));
      for (const std::int64_t length : lengths.back().value_or(std::vector<std::int64_t>())) total += length;
    }
    Tensor packed = Tensor::empty(dtypes::int16, {total, 2});
    for (auto& number : packed.mutable_as<std::int16_t>()) number = static_cast<std::int16_t>(random());
    batch.set(key, packed, Seqlens::of(lengths));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (random() % 2 == 0) batch.set_values(i, {{"score", 0.1 * static_cast<double>(random() % 100)}});
  }
  return batch;
}

std::vector<std::size_t> shuffled(std::size_t count, std::mt19937& random) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::shuffle(order, random);
  return order;
}

TEST(SampleBatchProperty, DivisionsAndReorderingsAreReversible) {
  std::mt19937 random(41);
  for (int round = 0; round < 300; ++round) {
    const SampleBatch batch = random_batch(random);
    const auto order = shuffled(batch.size(), random);
    EXPECT_EQ(batch.reorder(order).select_ids(batch.ids()), batch);
    EXPECT_EQ(batch.rename_keys({{"x", "y"}, {"y", "x"}}).rename_keys({{"x", "y"}, {"y", "x"}}), batch);
    EXPECT_EQ(SampleBatch::from_json(batch.to_json()), batch.meta());
    if (batch.size() == 0) continue;
    const std::size_t first = random() % (batch.size() + 1);
    EXPECT_EQ(SampleBatch::gather(batch.split(std::vector<std::size_t>{first, batch.size() - first})), batch);
    EXPECT_EQ(SampleBatch::gather(batch.unpack()), batch);
    const Partition partition = batch.balanced(1 + random() % std::min<std::size_t>(3, batch.size()), "x");
    EXPECT_EQ(SampleBatch::gather(batch.split(partition)).select_ids(batch.ids()), batch);
    SampleBatch joined = batch.select_keys(std::vector<std::string>{"x"});
    joined.update(batch.reorder(order).select_keys(std::vector<std::string>{"y"}));
    EXPECT_EQ(joined, batch);
  }
}

TEST(SampleBatch, SelectsRenamesAndUpdates) {
  SampleBatch batch = four();
  EXPECT_THAT(batch.select_ids(std::vector<std::string>{"d", "a"}).packed("tokens").as<std::int64_t>(),
              ElementsAre(6, 7, 1, 2, 3));
  const auto renamed = batch.rename_keys({{"tokens", "prompts"}, {"scores", "tokens"}});
  EXPECT_EQ(renamed.key("tokens").dtype, dtypes::float32);
  EXPECT_EQ(renamed.rename_keys({{"prompts", "tokens"}, {"tokens", "scores"}}), batch);

  SampleBatch more({"b", "a", "d", "c"});
  more.set("values", Tensor::of<double>({3}, {1, 2, 3}), Seqlens::of({{{1}}, {{1}}, {}, {{1}}}));
  more.set_values(0, {{"reward", 2.5}});
  batch.update(more);
  EXPECT_THAT(batch.item("values", 0)->as<double>(), ElementsAre(2));
  EXPECT_FALSE(batch.item("values", 3).has_value());
  EXPECT_EQ(std::get<double>(batch.values(1).at("reward")), 2.5);
  EXPECT_TRUE(std::get<bool>(batch.values(1).at("done")));
}

TEST(SampleBatch, MetaSurvivesJson) {
  SampleBatch batch = four();
  batch.set_values(
      3, {{"n", std::int64_t{1} << 60}, {"text", std::string("ü\n")}, {"nothing", None{}}, {"m", encode_tree(Tree())}});
  const auto meta = batch.meta();
  EXPECT_FALSE(meta.has_data());
  EXPECT_NE(meta, batch);
  EXPECT_EQ(SampleBatch::from_json(meta.to_json()), meta);
  EXPECT_THAT(refusal([&] { static_cast<void>(meta.item("tokens", 0)); }), HasSubstr("sample a, key tokens"));
}

TEST(SampleBatch, RejectsInvalidJson) {
  EXPECT_THAT(refusal([] { SampleBatch::from_json("{"); }), HasSubstr("samples JSON: it is not JSON"));
  EXPECT_THAT(refusal([] { SampleBatch::from_json(R"({"ids": ["a", "a"], "keys": {}})"); }), HasSubstr("twice"));
  const auto with = [](const std::string& key) {
    return refusal([&] { SampleBatch::from_json(R"({"ids": ["a"], "keys": {"k": )" + key + "}}"); });
  };
  EXPECT_THAT(with(R"({"dtype": "int65", "trailing": [], "seqlens": [[1]]})"), HasSubstr("int65"));
  EXPECT_THAT(with(R"({"dtype": "int64", "trailing": [], "seqlens": [[-1]]})"), HasSubstr("keys[\"k\"].seqlens[0]"));
  EXPECT_THAT(with(R"({"dtype": "int64", "trailing": [], "seqlens": [[1], [2]]})"), HasSubstr("2 samples"));
  EXPECT_THAT(with(R"({"dtype": "int64", "trailing": [4611686018427387904], "seqlens": [[4]]})"), HasSubstr("fit"));
  const auto value = [](const std::string& text) {
    return refusal([&] { SampleBatch::from_json(R"({"ids": ["a"], "keys": {}, "values": [{"v": )" + text + "}]}"); });
  };
  EXPECT_THAT(value(R"({"message": "0g"})"), HasSubstr("values[0]: \"message\" is not hexadecimal"));
  EXPECT_THAT(value(R"({"message": "000"})"), HasSubstr("odd number of digits"));
  EXPECT_THAT(value(R"({"message": 1})"), HasSubstr("expected a string"));
  EXPECT_THAT(value(R"({"message": "", "more": 1})"), HasSubstr("an object with a \"message\""));
}

TEST(SampleBatch, NamesSampleAndKeyInErrors) {
  EXPECT_THAT(refusal([] { SampleBatch({"x", "y", "x"}); }), HasSubstr("sample x appears twice"));
  SampleBatch batch({"x", "y"});
  EXPECT_THAT(refusal([&] {
                batch.set("k", Tensor::zeros(dtypes::int8, {3}), Seqlens::one_each({1, 1}));
              }),
              HasSubstr("key k has 3 tokens, but its lengths add up to 2"));
  EXPECT_THAT(refusal([&] {
                batch.set("k", Tensor::zeros(dtypes::float4_e2m1fn, {2}), Seqlens::one_each({1, 1}));
              }),
              HasSubstr("float4"));
  const std::optional<Tensor> items[] = {Tensor::zeros(dtypes::int8, {1}), Tensor::zeros(dtypes::int8, {2})};
  EXPECT_THAT(refusal([&] {
                batch.set_items({"k", dtypes::int8, {}}, items, Seqlens::one_each({1, 1}));
              }),
              HasSubstr("sample y, key k"));
  EXPECT_THAT(refusal([&] { static_cast<void>(batch.key("z")); }), HasSubstr("no key z"));
  EXPECT_THAT(refusal([&] { static_cast<void>(batch.select_ids(std::vector<std::string>{"z"})); }),
              HasSubstr("sample z"));
  EXPECT_THAT(refusal([&] {
                static_cast<void>(SampleBatch::gather(std::vector{batch, batch}));
              }),
              HasSubstr("sample x"));
  EXPECT_THAT(refusal([&] { static_cast<void>(batch.reorder(std::vector<std::size_t>{0, 0})); }), HasSubstr("twice"));
}

}  // namespace
}  // namespace levada
