#include "levada/tree/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/tree/random_tree_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Bytes copy_of(ByteView bytes) {
  return Bytes(bytes.begin(), bytes.end());
}

std::vector<std::string> paths(const Schema& schema) {
  std::vector<std::string> found;
  for (const auto& leaf : schema.leaves()) found.push_back(leaf.path);
  return found;
}

Tensor ones(DType dtype, const Shape& shape) {
  return Tensor::zeros(dtype, shape);
}

Tree nested(int depth) {
  Tree tree = 1;
  for (int i = 0; i < depth; ++i) tree = Tree::list({tree});
  return tree;
}

// Starts a hand-written schema encoding: a version, then nodes.
ByteWriter schema_bytes() {
  ByteWriter out;
  out.put(std::uint8_t{1});
  return out;
}

void put_container(ByteWriter& out, ContainerKind kind, std::uint32_t count) {
  out.put(static_cast<std::uint8_t>(16 + static_cast<int>(kind)));
  out.put_sized("");
  out.put_sized("");
  out.put(count);
}

void expect_corrupt(const ByteWriter& bytes, const std::string& what) {
  try {
    Schema::decode(bytes.view());
    FAIL() << "no error about " << what;
  } catch (const CorruptMessage& error) {
    EXPECT_THAT(error.what(), HasSubstr(what));
    EXPECT_LE(error.offset(), bytes.size());
  }
}

TEST(Flatten, ListsLeavesDepthFirstByPath) {
  const auto flat = flatten(Tree::dict({{"b", Tree::list({1, Tree::dict({{"x.y", "text"}})})},
                                        {"a", ones(dtypes::bfloat16, {2, 3})},
                                        {std::int64_t{-4}, Tree::tuple({})},
                                        {std::int64_t{4}, None{}}}));
  EXPECT_THAT(paths(flat.schema), ElementsAre("b[0]", "b[1].\"x.y\"", "a", "4"));
  const auto leaves = flat.schema.leaves();
  EXPECT_EQ(leaves[0].kind, LeafKind::integer);
  EXPECT_EQ(leaves[1].kind, LeafKind::text);
  EXPECT_EQ(leaves[2].kind, LeafKind::tensor);
  EXPECT_EQ(leaves[2].dtype, dtypes::bfloat16);
  EXPECT_EQ(leaves[2].rank, 2);
  EXPECT_EQ(leaves[3].kind, LeafKind::none);
}

TEST(Flatten, DetectsAliases) {
  const auto one = ones(dtypes::float32, {2, 2});
  const auto flat = flatten(Tree::list({one, one.slice(0, 0, 1), one, ones(dtypes::float32, {2, 2}), one}));
  std::vector<int> aliases;
  for (const auto& leaf : flat.schema.leaves()) aliases.push_back(leaf.alias_of);
  EXPECT_THAT(aliases, ElementsAre(-1, -1, 0, -1, 0));
}

TEST(Flatten, DoesNotAliasEmptyTensors) {
  const auto one = ones(dtypes::float32, {0});
  EXPECT_EQ(flatten(Tree::list({one, one})).schema.leaves()[1].alias_of, -1);
}

TEST(Flatten, DetectsAliasesAmongManyLeaves) {
  std::vector<Tree> tensors;
  for (int i = 0; i < 100; ++i) tensors.emplace_back(ones(dtypes::int8, {1}));
  for (int i = 0; i < 100; ++i) tensors.push_back(tensors[static_cast<std::size_t>(i)]);
  const auto flat = flatten(Tree::list(tensors));
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(flat.schema.leaves()[static_cast<std::size_t>(i)].alias_of, i < 100 ? -1 : i - 100);
  }
}

TEST(Flatten, SharesThePreviousSchemaOnlyIfNothingDiffers) {
  const auto a = ones(dtypes::float32, {2});
  const auto b = ones(dtypes::float32, {2});
  const auto first = flatten(Tree::dict({{"a", a}, {"b", b}, {"n", 1}}));
  const auto shares = [&first](const Tree& tree) {
    const auto flat = flatten(tree, first.schema);
    EXPECT_EQ(flat.schema.fingerprint(), flatten(tree).schema.fingerprint());
    EXPECT_EQ(unflatten(flat), tree);
    return flat.schema.leaves().data() == first.schema.leaves().data();
  };
  EXPECT_TRUE(shares(Tree::dict({{"a", b}, {"b", ones(dtypes::float32, {9})}, {"n", 2}})));
  EXPECT_FALSE(shares(Tree::dict({{"a", a}, {"b", a}, {"n", 1}})));
  EXPECT_FALSE(shares(Tree::dict({{"a", a}, {"b", ones(dtypes::float32, {2, 1})}, {"n", 1}})));
  EXPECT_FALSE(shares(Tree::dict({{"a", a}, {"b", ones(dtypes::int32, {2})}, {"n", 1}})));
  EXPECT_FALSE(shares(Tree::dict({{"a", a}, {"b", b}, {"n", 1.0}})));
  EXPECT_FALSE(shares(Tree::dict({{"a", a}, {"c", b}, {"n", 1}})));
  EXPECT_FALSE(shares(Tree::dict({{"a", a}, {"b", b}})));
  EXPECT_FALSE(shares(Tree::list({a, b, 1})));
  EXPECT_FALSE(shares(a));
}

TEST(Flatten, RejectsTreesThatAreTooDeep) {
  EXPECT_NO_THROW(flatten(nested(64)));
  EXPECT_THROW(flatten(nested(65)), InvalidArgument);
}

TEST(Flatten, RejectsTensorsOfUnknownType) {
  EXPECT_THROW(flatten(Tree::dict({{"x", Tensor()}})), InvalidArgument);
}

TEST(Flatten, RejectsPathsThatWouldFillMemory) {
  Tree tree = Tree::list(std::vector<Tree>(2000));
  for (int i = 0; i < 10; ++i) tree = Tree::dict({{std::string(10000, 'k'), tree}});
  EXPECT_THROW(flatten(tree), InvalidArgument);
}

TEST(Unflatten, AliasesShareOneTensor) {
  const auto one = ones(dtypes::float32, {2});
  const auto tree = unflatten(flatten(Tree::list({one, one})));
  EXPECT_EQ(tree.tensor("[0]").view().data(), tree.tensor("[1]").view().data());
}

TEST(Unflatten, RejectsLeavesThatDoNotFit) {
  auto flat = flatten(Tree::list({1, ones(dtypes::float32, {2})}));
  const auto refused = [&flat](const std::vector<Leaf>& leaves) {
    EXPECT_THROW(unflatten({flat.schema, leaves}), InvalidArgument);
  };
  refused({std::int64_t{1}});
  refused({1.0, ones(dtypes::float32, {2})});
  refused({std::int64_t{1}, ones(dtypes::float64, {2})});
  refused({std::int64_t{1}, ones(dtypes::float32, {2, 1})});
}

TEST(Schema, DefaultIsTheSchemaOfNone) {
  EXPECT_EQ(Schema().fingerprint(), flatten(None{}).schema.fingerprint());
  EXPECT_THAT(paths(Schema()), ElementsAre(""));
  EXPECT_EQ(unflatten({Schema(), {None{}}}), Tree());
}

TEST(Schema, DoesNotDependOnExtentsAndValues) {
  const auto a = flatten(Tree::dict({{"x", ones(dtypes::int64, {2, 2})}, {"n", 1}})).schema;
  const auto b = flatten(Tree::dict({{"x", ones(dtypes::int64, {3, 5})}, {"n", 2}})).schema;
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
}

TEST(Schema, DiffersWithEveryPartOfTheStructure) {
  const auto x = ones(dtypes::int64, {2});
  const std::vector<Tree> trees = {
      Tree::dict({{"x", x}}),
      Tree::dict({{"y", x}}),
      Tree::dict({{std::int64_t{1}, x}}),
      Tree::dict({{"1", x}}),
      Tree::list({x}),
      Tree::tuple({x}),
      Tree(Container{ContainerKind::record, {}, {"x"}, {x}, {}}),
      Tree(Container{ContainerKind::record, "m:C", {"x"}, {x}, {}}),
      Tree(Container{ContainerKind::record, "m:C", {"x"}, {x}, {std::byte{1}}}),
      Tree::dict({{"x", ones(dtypes::int32, {2})}}),
      Tree::dict({{"x", ones(dtypes::int64, {2, 2})}}),
      Tree::dict({{"x", 1}}),
      Tree::dict({{"x", x}, {"y", x}}),
      Tree::dict({{"x", x}, {"y", ones(dtypes::int64, {2})}}),
  };
  std::vector<std::uint64_t> seen;
  for (const auto& tree : trees) seen.push_back(flatten(tree).schema.fingerprint());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

TEST(Schema, RoundTrips) {
  RandomTrees trees(1);
  for (int i = 0; i < 300; ++i) {
    const auto schema = flatten(trees.next()).schema;
    const auto read = Schema::decode(schema.encoded());
    EXPECT_EQ(read.fingerprint(), schema.fingerprint());
    EXPECT_EQ(hash64(read.encoded()), schema.fingerprint());
    EXPECT_EQ(copy_of(read.encoded()), copy_of(schema.encoded()));
    EXPECT_TRUE(std::ranges::equal(read.leaves(), schema.leaves()));
  }
}

TEST(SchemaDecode, RejectsEveryTruncation) {
  const auto bytes =
      copy_of(flatten(Tree::dict({{"x", ones(dtypes::int64, {2})}, {"y", Tree::list({1, "a"})}})).schema.encoded());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(Schema::decode(cut), CorruptMessage) << size;
  }
}

TEST(SchemaDecode, RejectsInvalidNodes) {
  auto version = ByteWriter();
  version.put(std::uint8_t{9});
  expect_corrupt(version, "a schema of version 9");
  auto unknown = schema_bytes();
  unknown.put(std::uint8_t{8});
  expect_corrupt(unknown, "a node of unknown kind 8");
  auto beyond = schema_bytes();
  beyond.put(std::uint8_t{21});
  expect_corrupt(beyond, "a node of unknown kind 21");
  auto more = schema_bytes();
  more.put(std::uint16_t{0});
  expect_corrupt(more, "1 bytes too many");
}

TEST(SchemaDecode, RejectsImpossibleTensors) {
  auto unknown = schema_bytes();
  unknown.put(LeafKind::tensor);
  unknown.put(std::uint32_t{0x00010000 | 64 << 8 | 3});
  unknown.put(std::uint8_t{1});
  expect_corrupt(unknown, "unknown dtype");
  auto rank = schema_bytes();
  rank.put(LeafKind::tensor);
  rank.put(std::uint32_t{0x00010000 | 64 << 8 | 0});
  rank.put(std::uint8_t{17});
  expect_corrupt(rank, "a tensor of rank 17");
}

TEST(SchemaDecode, RejectsAliasesThatDoNotReferToAnEarlierTensor) {
  auto itself = schema_bytes();
  itself.put(std::uint8_t{7});
  itself.put(std::uint32_t{0});
  expect_corrupt(itself, "an alias of leaf 0");
  auto value = schema_bytes();
  put_container(value, ContainerKind::list, 2);
  value.put(LeafKind::integer);
  value.put(std::uint8_t{7});
  value.put(std::uint32_t{0});
  expect_corrupt(value, "an alias of leaf 0");
}

TEST(SchemaDecode, RejectsACountLargerThanTheRest) {
  auto bytes = schema_bytes();
  put_container(bytes, ContainerKind::list, 0xffffffff);
  expect_corrupt(bytes, "a count of 4294967295 exceeds the remaining bytes");
}

TEST(SchemaDecode, RejectsInvalidKeys) {
  const auto with_key = [](ContainerKind kind, std::uint8_t tag) {
    auto bytes = schema_bytes();
    put_container(bytes, kind, 1);
    bytes.put(tag);
    bytes.put(std::int64_t{5});
    bytes.put(LeafKind::none);
    return bytes;
  };
  EXPECT_NO_THROW(Schema::decode(with_key(ContainerKind::dict, 1).view()));
  expect_corrupt(with_key(ContainerKind::dict, 2), "a key of unknown kind 2");
  expect_corrupt(with_key(ContainerKind::record, 1), "a record's field that is no name");

  auto twice = schema_bytes();
  put_container(twice, ContainerKind::dict, 2);
  for (int i = 0; i < 2; ++i) {
    twice.put(std::uint8_t{0});
    twice.put_sized("key");
    twice.put(LeafKind::none);
  }
  expect_corrupt(twice, "a repeated key");
}

TEST(SchemaDecode, RejectsNodesThatAreTooDeep) {
  const auto of_depth = [](int depth) {
    auto bytes = schema_bytes();
    for (int i = 0; i < depth; ++i) put_container(bytes, ContainerKind::tuple, 1);
    bytes.put(LeafKind::none);
    return bytes;
  };
  EXPECT_NO_THROW(Schema::decode(of_depth(64).view()));
  expect_corrupt(of_depth(65), "deeper than 64");
  expect_corrupt(of_depth(100000), "deeper than 64");
}

TEST(SchemaDecode, RejectsSchemasThatWouldFillMemory) {
  auto many = schema_bytes();
  put_container(many, ContainerKind::list, max_tree_nodes);
  for (std::size_t i = 0; i < max_tree_nodes; ++i) many.put(LeafKind::none);
  expect_corrupt(many, "more than 262144 nodes");

  auto paths_too_long = schema_bytes();
  put_container(paths_too_long, ContainerKind::dict, 1);
  paths_too_long.put(std::uint8_t{0});
  paths_too_long.put_sized(std::string(1 << 20, 'k'));
  put_container(paths_too_long, ContainerKind::list, 100);
  for (int i = 0; i < 100; ++i) paths_too_long.put(LeafKind::none);
  expect_corrupt(paths_too_long, "whose paths take more than 64.0 MiB");
}

// Returns keep[i] for each leaf, from `choice`.
template <typename Choice>
std::unique_ptr<bool[]> choose(std::size_t count, Choice choice) {
  auto keep = std::make_unique<bool[]>(count);
  for (std::size_t i = 0; i < count; ++i) keep[i] = choice(i);
  return keep;
}

// Returns the selected leaves of `flat` in the selected schema.
Tree select(const FlatTree& flat, std::span<const bool> keep) {
  FlatTree selected{flat.schema.select(keep), {}};
  for (const auto number : flat.schema.selected_leaves(keep)) {
    selected.leaves.push_back(number < 0 ? Leaf(None{}) : flat.leaves[static_cast<std::size_t>(number)]);
  }
  return unflatten(selected);
}

TEST(Select, DropsKeysAndReplacesItemsWithNone) {
  const auto flat = flatten(Tree::dict({
      {"a", 1},
      {"b", Tree::dict({{"c", 2}, {"d", 3}})},
      {"e", Tree::list({4, 5})},
      {"f", Tree(Container{ContainerKind::record, "m:C", {"g", "h"}, {6, 7}, {std::byte{9}}})},
  }));
  const std::array<bool, 7> keep = {false, false, false, true, false, false, true};
  EXPECT_EQ(select(flat, keep),
            Tree::dict({
                {"b", Tree::dict({})},
                {"e", Tree::list({4, None{}})},
                {"f", Tree(Container{ContainerKind::record, "m:C", {"g", "h"}, {None{}, 7}, {std::byte{9}}})},
            }));
  EXPECT_THAT(flat.schema.selected_leaves(keep), ElementsAre(3, -1, -1, 6));
}

TEST(Select, ReplacesADroppedRootLeafWithNone) {
  const std::array<bool, 1> keep = {false};
  EXPECT_EQ(select(flatten(Tree(5)), keep), Tree());
}

TEST(Select, AnAliasReplacesItsDroppedTensor) {
  const auto one = ones(dtypes::float32, {2});
  const auto flat = flatten(Tree::dict({{"a", one}, {"b", one}, {"c", 1}, {"d", one}}));
  const std::array<bool, 4> keep = {false, true, true, true};
  const auto selected = flat.schema.select(keep);
  EXPECT_EQ(selected.leaves()[0].alias_of, -1);
  EXPECT_EQ(selected.leaves()[0].dtype, dtypes::float32);
  EXPECT_EQ(selected.leaves()[2].alias_of, 0);
}

TEST(Select, RejectsASelectionOfAnotherSize) {
  const std::array<bool, 2> keep = {true, true};
  EXPECT_THROW(Schema().select(keep), InvalidArgument);
  EXPECT_THROW(Schema().selected_leaves(keep), InvalidArgument);
}

TEST(Select, SelectingAllLeavesIsTheIdentityAndAnySelectionEqualsItsFlattening) {
  RandomTrees trees(2);
  for (int i = 0; i < 300; ++i) {
    const auto flat = flatten(trees.next());
    const auto count = flat.leaves.size();
    const auto all = choose(count, [](std::size_t) { return true; });
    EXPECT_EQ(flat.schema.select({all.get(), count}).fingerprint(), flat.schema.fingerprint());

    const auto some = choose(count, [&trees](std::size_t) { return trees.below(2) == 1; });
    const std::span<const bool> keep(some.get(), count);
    const auto selected = flat.schema.select(keep);
    const auto numbers = flat.schema.selected_leaves(keep);
    EXPECT_EQ(flatten(select(flat, keep)).schema.fingerprint(), selected.fingerprint());
    ASSERT_EQ(numbers.size(), selected.leaves().size());
    EXPECT_EQ(std::ranges::count_if(numbers, [](int number) { return number >= 0; }), std::ranges::count(keep, true));
  }
}

}  // namespace
}  // namespace levada
