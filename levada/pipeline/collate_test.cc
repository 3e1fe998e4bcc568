#include "levada/pipeline/collate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Tree batch_of(const std::vector<Tree>& samples) {
  HeapMemory memory;
  return collate(samples, 100, memory);
}

template <typename E>
std::string collate_refusal(const std::vector<Tree>& samples) {
  try {
    batch_of(samples);
  } catch (const E& error) {
    return error.what();
  }
  return "(taken)";
}

TEST(Collate, StacksTensorsAlongANewFirstDimension) {
  const auto sample = [](std::int64_t at) {
    return Tree::dict(
        {{"tokens", Tensor::of<std::int64_t>({3}, {at, at + 1, at + 2})}, {"mask", Tensor::of<float>({}, {1})}});
  };
  const Tree batch = batch_of({sample(0), sample(10)});
  EXPECT_EQ(batch.tensor("tokens").shape(), (Shape{2, 3}));
  EXPECT_THAT(batch.tensor("tokens").as<std::int64_t>(), ElementsAre(0, 1, 2, 10, 11, 12));
  EXPECT_EQ(batch.tensor("mask").shape(), (Shape{2}));
}

TEST(Collate, AcceptsStridedTensors) {
  const Tensor square = Tensor::of<std::int32_t>({2, 2}, {1, 2, 3, 4});
  const Tree column = Tree(square.slice(1, 1, 2));
  EXPECT_THAT(batch_of({column, column}).tensor("").as<std::int32_t>(), ElementsAre(2, 4, 2, 4));
}

TEST(Collate, TurnsNumbersIntoTensorsAndTextsIntoLists) {
  const auto sample = [](std::int64_t at) {
    return Tree::tuple({at, static_cast<double>(at) / 2, at > 1, "t" + std::to_string(at), Tree(), Tree::list({})});
  };
  const Tree batch = batch_of({sample(1), sample(2)});
  EXPECT_EQ(batch.container().kind, ContainerKind::tuple);
  EXPECT_THAT(batch.tensor("[0]").as<std::int64_t>(), ElementsAre(1, 2));
  EXPECT_THAT(batch.tensor("[1]").as<double>(), ElementsAre(0.5, 1.0));
  EXPECT_THAT(batch.tensor("[2]").as<bool>(), ElementsAre(false, true));
  EXPECT_EQ(batch.at("[3]"), Tree::list({"t1", "t2"}));
  EXPECT_EQ(batch.at("[4]"), Tree());
  EXPECT_THAT(batch.at("[5]").container().children, IsEmpty());
}

TEST(Collate, KeepsTheClassOfARecord) {
  const Container sample{ContainerKind::record, "train:Sample", {"ids"}, {Tree(3)}, {std::byte{7}}};
  const Tree batch = batch_of({sample, sample});
  EXPECT_EQ(batch.container().type_name, "train:Sample");
  EXPECT_EQ(batch.container().state, sample.state);
  EXPECT_EQ(batch.tensor("ids").shape(), (Shape{2}));
}

TEST(Collate, NamesTheSampleAndFieldThatDiffers) {
  const auto sample = [](Tree tokens) { return Tree::dict({{"text", Tree::dict({{"tokens", std::move(tokens)}})}}); };
  const Tree four = sample(Tensor::zeros(dtypes::int64, {4})), five = sample(Tensor::zeros(dtypes::int64, {5}));
  EXPECT_EQ(collate_refusal<SourceError>({four, four, five}),
            "sample 102: \"text.tokens\" is int64 [5], but in sample 100 it is int64 [4]; all samples of a batch must "
            "be alike: map them to one form");
  EXPECT_THAT(collate_refusal<SourceError>({four, sample(7)}), HasSubstr("is an integer, but"));
  EXPECT_THAT(collate_refusal<SourceError>({four, Tree::dict({})}), HasSubstr("sample 101: it is a dict of 0, but"));
  EXPECT_THAT(collate_refusal<SourceError>({Tree::list({1}), Tree::tuple({1})}), HasSubstr("it is a tuple of 1, but"));
}

TEST(Collate, RejectsValuesThatCannotBeStacked) {
  const Tensor halves = Tensor::zeros(dtypes::float4_e2m1fn, {3});
  EXPECT_THAT(collate_refusal<Unsupported>({Tree(halves)}), HasSubstr("cannot be stacked"));
  Shape deep;
  for (std::size_t i = 0; i < Shape::max_rank; ++i) deep.push_back(1);
  EXPECT_THAT(collate_refusal<Unsupported>({Tree(Tensor::zeros(dtypes::int8, deep))}),
              HasSubstr("too many dimensions to be stacked"));
  EXPECT_THAT(collate_refusal<InvalidArgument>({}), HasSubstr("at least one sample"));
}

TEST(Collate, AllocatesAllMemoryAtOnce) {
  class Counting final : public Memory {
   public:
    void reserve(std::size_t bytes) override { reserved = bytes; }
    Tensor empty(DType dtype, const Shape& shape) override { return Tensor::empty(dtype, shape); }
    std::size_t reserved = 0;
  } memory;
  const std::vector<Tree> samples(5, Tree::list({Tensor::zeros(dtypes::int8, {100}), 3, Tree::list({2.5})}));
  collate(samples, 0, memory);
  EXPECT_EQ(memory.reserved, 512 + 64 + 64);
}

}  // namespace
}  // namespace levada::pipeline
