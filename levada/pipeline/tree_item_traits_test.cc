#include "levada/pipeline/tree_item_traits.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/tree/random_tree_testing.h"

namespace levada::pipeline {
namespace {

const TreeItemTraits traits;

/// The aligned copies of a packing that another process receives.
struct Received {
  Bytes head;
  std::vector<Tensor> memory;
  std::vector<std::span<std::byte>> buffers;

  explicit Received(const ItemTraits::Packed& packed) : head(packed.head) {
    for (const auto& buffer : packed.buffers) {
      const TensorView view(dtypes::uint8, {static_cast<std::int64_t>(buffer.size())}, buffer.data());
      memory.push_back(Tensor::copy_of(view));
      buffers.push_back(memory.back().mutable_bytes());
    }
  }
};

std::vector<Tree> carried(const std::vector<Tree>& trees) {
  std::vector<Tree> back;
  const auto received = std::make_shared<Received>(traits.pack(std::vector<Item>(trees.begin(), trees.end())));
  for (auto& item : traits.unpack(received->head, received->buffers, received)) {
    back.push_back(std::get<Tree>(std::move(item)));
  }
  return back;
}

TEST(TreeItemTraits, DetachTensorsThatOthersReferTo) {
  auto reused = Tensor::of<std::int64_t>({2}, {1, 2});
  Item item = Tree::dict({{"reused", reused}, {"own", Tensor::of<std::int64_t>({1}, {5})}, {"text", "a"}});
  const auto* own = std::get<Tree>(item).tensor("own").view().data();
  ASSERT_TRUE(traits.detach(item));
  reused.mutable_as<std::int64_t>()[0] = 7;
  const auto& tree = std::get<Tree>(item);
  EXPECT_EQ(tree.tensor("reused").as<std::int64_t>()[0], 1);
  EXPECT_EQ(tree.tensor("own").view().data(), own);
  EXPECT_TRUE(tree.at("text") == Tree("a"));
}

TEST(TreeItemTraits, LeaveItemsOnOtherDevicesAsTheyAre) {
  const auto memory = std::make_shared<int>();
  Item item = Tree(Tensor(TensorView(dtypes::int32, {1}, nullptr, {.type = 2, .index = 0}), memory));
  EXPECT_FALSE(traits.detach(item));
}

TEST(TreeItemTraits, PackEveryKindOfTree) {
  const std::vector<Tree> trees = {
      Tree(),
      true,
      false,
      std::numeric_limits<std::int64_t>::min(),
      std::numeric_limits<double>::quiet_NaN(),
      -0.0,
      "",
      std::string(1000, 'x'),
      Bytes(300, std::byte{7}),
      Tensor::of<std::int64_t>({2, 2}, {1, 2, 3, 4}),
      Tensor::zeros(dtypes::float32, {1000}),
      Tensor::zeros(dtypes::bfloat16, {3, 0, 2}),
      Tensor::of<double>({}, {1.5}),
      Tree::list({1, Tree::tuple({}), Tree::dict({{"a", 1}, {std::int64_t{-3}, Tree::list({2.5})}})}),
      Tree(Container{ContainerKind::record, "module:Name", {Key("x")}, {Tree(1)}, Bytes(5)}),
  };
  EXPECT_TRUE(carried(trees) == trees);
  EXPECT_TRUE(carried({}).empty());
}

TEST(TreeItemTraits, PackStridedTensorsContiguously) {
  const auto tensor = Tensor::zeros(dtypes::int32, {100, 100});
  const auto column = tensor.slice(1, 3, 5);
  EXPECT_TRUE(carried({column}) == std::vector<Tree>{column});
}

TEST(TreeItemTraits, PackRandomTrees) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RandomTrees random(seed);
    std::vector<Tree> trees;
    for (std::uint64_t i = 0; i < seed % 5; ++i) trees.push_back(random.next());
    ASSERT_TRUE(carried(trees) == trees) << seed;
  }
}

TEST(TreeItemTraits, PackLargeTensorsWithoutCopying) {
  const auto tensor = Tensor::zeros(dtypes::uint8, {100000});
  const std::vector<Item> items = {Tree::list({Tree(tensor), Tree(1)})};
  const auto before = copied_bytes();
  const auto packed = traits.pack(items);
  ASSERT_EQ(packed.buffers.size(), 1u);
  EXPECT_EQ(packed.buffers[0].data(), tensor.bytes().data());
  const Received received(packed);
  const auto hold = std::make_shared<int>(0);
  const auto copied = copied_bytes();
  const auto back = traits.unpack(received.head, received.buffers, hold);
  EXPECT_EQ(copied_bytes(), copied);
  EXPECT_EQ(copied - before, 100000u);  // Only by the test.
  const auto& there = std::get<Tree>(back[0]).tensor("[0]");
  EXPECT_EQ(there.bytes().data(), received.buffers[0].data());
  EXPECT_TRUE(there.is_writable());
  EXPECT_EQ(there.owner(), hold);
}

TEST(TreeItemTraits, RejectTruncatedBytesAndSurviveChangedOnes) {
  const std::vector<Item> items = {
      Tree::dict({{"a", Tensor::zeros(dtypes::float32, {200})}, {"b", Tree::list({1, "x"})}}),
      Tree(Container{ContainerKind::record, "m:N", {Key("x")}, {Tree(1)}, Bytes(2)}),
      Tree(Tensor::of<std::int64_t>({2}, {1, 2}))};
  const Received received(traits.pack(items));
  for (std::size_t size = 0; size < received.head.size(); ++size) {
    EXPECT_THROW(traits.unpack(ByteView(received.head).first(size), received.buffers, nullptr), CorruptMessage);
  }
  EXPECT_THROW(traits.unpack(received.head, {}, nullptr), CorruptMessage);
  for (std::size_t at = 0; at < received.head.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      auto head = received.head;
      head[at] = static_cast<std::byte>(value);
      try {
        traits.unpack(head, received.buffers, nullptr);
      } catch (const CorruptMessage& error) {
        EXPECT_LE(error.offset(), head.size());
      }
    }
  }
}

TEST(TreeItemTraits, ConvertDictsOfArraysToFieldsAndBack) {
  const auto tensor = Tensor::of<std::int32_t>({2}, {1, 2});
  const Tree dict = Tree::dict({{"tokens", tensor}, {"mask", tensor}});
  const auto arrays = traits.arrays_of(dict);
  ASSERT_EQ(arrays.fields.size(), 2u);
  EXPECT_EQ(arrays.fields[1].first, "mask");
  EXPECT_EQ(arrays.fields[1].second.view().data(), tensor.view().data());
  EXPECT_EQ(std::get<Tree>(traits.dict_of(arrays)), dict);
  EXPECT_EQ(traits.arrays_of(Tree(tensor)).fields.at(0).first, "");
  for (const auto& other : {Tree(5), Tree::list({tensor}), Tree::dict({{"a", 1}}), Tree::dict({{7, tensor}})}) {
    EXPECT_THROW(traits.arrays_of(other), InvalidArgument);
  }
}

TEST(TreeItemTraits, RejectItemsThatCannotBePacked) {
  static const LanguageObject::Language language{[](void*) noexcept {}, [](void*) noexcept {}};
  int object = 0;
  const std::vector<Item> foreign = {LanguageObject(&object, language)};
  EXPECT_THROW(traits.pack(foreign), InvalidArgument);
  EXPECT_THROW(traits.list_of(foreign), InvalidArgument);
  EXPECT_THROW(traits.elements(foreign[0]), InvalidArgument);
  EXPECT_THROW(traits.arrays_of(foreign[0]), InvalidArgument);
  EXPECT_THROW(traits.elements(Tree(5)), InvalidArgument);
  EXPECT_THROW(traits.elements(Tree::dict({{"a", 1}})), InvalidArgument);
  const std::vector<Item> elsewhere = {Tree(Tensor(TensorView(dtypes::int8, {4}, nullptr, Device{2, 0}), nullptr))};
  EXPECT_THROW(traits.pack(elsewhere), InvalidArgument);
  Tree deep;
  for (int i = 0; i < 70; ++i) deep = Tree::list({deep});
  EXPECT_THROW(traits.pack(std::vector<Item>{deep}), InvalidArgument);
}

}  // namespace
}  // namespace levada::pipeline
