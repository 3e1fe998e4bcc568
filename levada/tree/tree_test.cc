#include "levada/tree/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "levada/base/refusal_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

Tree example() {
  return Tree::dict({
      {"tokens", Tensor::of<std::int64_t>({2, 2}, {1, 2, 3, 4})},
      {"meta", Tree::dict({{"ids", Tree::list({7, "seven", None{}})}, {std::int64_t{3}, true}})},
      {"pair", Tree::tuple({1.5, Bytes{std::byte{1}}})},
  });
}

TEST(Tree, IsFoundByPath) {
  const auto tree = example();
  EXPECT_EQ(tree.tensor("tokens").shape(), (Shape{2, 2}));
  EXPECT_EQ(tree.at("meta.ids[1]"), Tree("seven"));
  EXPECT_EQ(tree.at("meta.3"), Tree(true));
  EXPECT_EQ(tree.at("pair[0]"), Tree(1.5));
  EXPECT_EQ(&tree.at(""), &tree);
  EXPECT_EQ(Tree::list({Tree::list({5})}).at("[0][0]"), Tree(5));
}

TEST(Tree, ErrorsNameTheExistingKeys) {
  const auto tree = example();
  EXPECT_THAT(refusal([&] { tree.at("token"); }), HasSubstr("the tree has tokens, meta, pair"));
  EXPECT_THAT(refusal([&] { tree.at("meta.id"); }), HasSubstr("'meta' has ids, 3"));
  EXPECT_THAT(refusal([&] { tree.at("meta.ids[3]"); }), HasSubstr("'meta.ids' is a list of 3"));
  EXPECT_THAT(refusal([&] { tree.at("tokens.x"); }), HasSubstr("'tokens' is a leaf (int64 [2, 2])"));
  EXPECT_THAT(refusal([&] { tree.tensor("meta.3"); }), HasSubstr("'meta.3' is not a tensor but true"));
}

TEST(Tree, RejectsInvalidPaths) {
  const auto tree = example();
  for (const auto* path : {".", "tokens.", "meta..ids", "meta.ids[", "meta.ids[x]", "meta.ids[-1]", "meta.ids[01]",
                           "meta.ids[1]x", "meta.\"ids", "\"a\\", "meta.ids]"}) {
    EXPECT_THAT(refusal([&] { tree.at(path); }), HasSubstr("is not a path")) << path;
    EXPECT_FALSE(tree.contains(path)) << path;
  }
}

TEST(Tree, FindsKeysThatLookLikePathsWhenQuoted) {
  const auto tree =
      Tree::dict({{"a.b", 1}, {"", 2}, {"c[0]", 3}, {"q\"\\", 4}, {"0", 5}, {std::int64_t{0}, 6}, {"é", 7}});
  EXPECT_EQ(tree.at("\"a.b\""), Tree(1));
  EXPECT_EQ(tree.at("\"\""), Tree(2));
  EXPECT_EQ(tree.at("\"c[0]\""), Tree(3));
  EXPECT_EQ(tree.at("\"q\\\"\\\\\""), Tree(4));
  EXPECT_EQ(tree.at("\"0\""), Tree(5));
  EXPECT_EQ(tree.at("0"), Tree(6));
  EXPECT_EQ(tree.at("é"), Tree(7));
}

TEST(Tree, RejectsContainersThatDoNotFitTheirKind) {
  using enum ContainerKind;
  EXPECT_THROW(Tree(Container{list, {}, {"a"}, {1}, {}}), InvalidArgument);
  EXPECT_THROW(Tree(Container{dict, {}, {"a"}, {1, 2}, {}}), InvalidArgument);
  EXPECT_THROW(Tree(Container{dict, {}, {"a", "a"}, {1, 2}, {}}), InvalidArgument);
  EXPECT_THROW(Tree(Container{record, {}, {std::int64_t{1}}, {1}, {}}), InvalidArgument);
  EXPECT_NO_THROW(Tree(Container{dict, {}, {"1", std::int64_t{1}}, {1, 2}, {}}));
}

TEST(Tree, DetectsADuplicateAmongManyKeys) {
  Container container;
  for (std::int64_t i = 0; i < 1000; ++i) {
    container.keys.emplace_back(i);
    container.children.emplace_back(i);
  }
  EXPECT_NO_THROW(Tree{container});
  container.keys.back() = std::int64_t{17};
  EXPECT_THAT(refusal([&] { Tree{container}; }), HasSubstr("the key 17 appears twice"));
}

TEST(Tree, RejectsALeafAsContainerAndViceVersa) {
  EXPECT_THROW(Tree(1).container(), InvalidArgument);
  EXPECT_THROW(Tree::list({}).leaf(), InvalidArgument);
}

TEST(Tree, ComparesBitsNotValues) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Tree(nan), Tree(nan));
  EXPECT_FALSE(Tree(0.0) == Tree(-0.0));
  EXPECT_FALSE(Tree(1) == Tree(1.0));
  EXPECT_FALSE(Tree(1) == Tree(true));
  EXPECT_FALSE(Tree::list({}) == Tree::tuple({}));
  EXPECT_FALSE(Tree::dict({{"a", 1}, {"b", 2}}) == Tree::dict({{"b", 2}, {"a", 1}}));
  EXPECT_EQ(Tree(Tensor::of<float>({1}, {1})), Tree(Tensor::of<float>({1}, {1})));
  EXPECT_FALSE(Tree(Tensor::of<float>({1}, {1})) == Tree(Tensor::of<float>({1, 1}, {1})));
}

TEST(Tree, PrintsOneLinePerNode) {
  EXPECT_EQ(example().to_string(),
            "dict of 3\n"
            "  tokens: int64 [2, 2]\n"
            "  meta: dict of 2\n"
            "    ids: list of 3\n"
            "      [0]: 7\n"
            "      [1]: \"seven\"\n"
            "      [2]: None\n"
            "    3: true\n"
            "  pair: tuple of 2\n"
            "    [0]: 1.5\n"
            "    [1]: 1 bytes\n");
}

}  // namespace
}  // namespace levada
