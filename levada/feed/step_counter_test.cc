#include "levada/feed/step_counter.h"

#include <gtest/gtest.h>

#include "levada/base/copy.h"

namespace levada {
namespace {

StepTotals count(const Tree& batch) {
  return StepCounter().count(flatten(batch));
}

const StepTotals nothing{.samples = 0, .tokens = {}, .labels = {}};

Tensor ids(const Shape& shape, std::initializer_list<std::int64_t> values) {
  return Tensor::of<std::int64_t>(shape, values);
}

TEST(StepCounter, CountsTheTokensAndTheLossMask) {
  const auto totals = count(Tree::dict({{"tokens", ids({2, 3}, {1, 2, 3, 4, 5, 6})},
                                        {"labels", ids({2, 3}, {2, 3, 0, 5, 6, 0})},
                                        {"loss_mask", Tensor::of<float>({2, 3}, {1, 0.5, 0, 1, -0.0F, 0})}}));
  EXPECT_EQ(totals, (StepTotals{.samples = 0, .tokens = 6, .labels = 3}));
}

TEST(StepCounter, CountsLabelsThatAreNotNegative) {
  const auto tokens = ids({2, 3}, {1, 2, 3, 4, 5, 6}), labels = ids({2, 3}, {-100, 2, -100, -100, 5, 6});
  EXPECT_EQ(count(Tree::dict({{"input_ids", tokens}, {"labels", labels}})).labels, 3);
  EXPECT_EQ(count(Tree::dict({{"tokens", tokens}, {"labels", ids({2, 3}, {2, 3, -100, 5, 6, -100})}})).labels, 4);
  EXPECT_EQ(count(Tree::dict({{"input_ids", tokens}, {"labels", tokens}, {"shift_labels", labels}})).labels, 3);
  EXPECT_EQ(count(Tree::dict({{"input_ids", tokens}, {"labels", ids({2}, {0, 1})}})).labels, 2)
      << "a class for each row";
}

TEST(StepCounter, DoesNotGuessWhetherAModelShiftsLabels) {
  const auto tokens = ids({2, 3}, {1, 2, 3, 4, 5, 6}), labels = ids({2, 3}, {-100, 2, 3, 4, 5, 6});
  EXPECT_EQ(count(Tree::dict({{"input_ids", tokens}, {"labels", labels}})).labels, std::nullopt);
  EXPECT_EQ(count(Tree::dict({{"input_ids", tokens}, {"labels", labels}, {"loss_mask", tokens}})).labels, 6);
  EXPECT_EQ(count(Tree::dict({{"input_ids", ids({2, 0}, {})}, {"labels", ids({2, 0}, {})}})).labels, 0);
}

TEST(StepCounter, AddsTheMappingsOfABatch) {
  const auto pair = [&](std::int64_t length) {
    return Tree::dict({{"input_ids", Tree(Tensor::zeros(dtypes::int32, {2, length}))},
                       {"loss_mask", Tree(Tensor::zeros(dtypes::uint8, {2, length}))}});
  };
  const Tree batch = Tree::dict({{"chosen", pair(5)}, {"rejected", Tree::list({pair(2), pair(3)})}});
  EXPECT_EQ(count(batch), (StepTotals{.samples = 0, .tokens = 20, .labels = 0}));
  const Tree unknown = Tree::dict({{"labels", ids({2}, {1, 1})}, {"a", Tree::dict({{"loss_mask", Tree(1.0)}})}});
  EXPECT_EQ(count(unknown).labels, 2) << "a number is no tensor";
  const Tree complex = Tree::dict(
      {{"labels", ids({2}, {1, 1})}, {"a", Tree::dict({{"loss_mask", Tensor::zeros(dtypes::complex64, {2})}})}});
  EXPECT_EQ(count(complex).labels, std::nullopt);
}

TEST(StepCounter, ExcludesPaddedRows) {
  const Tree batch =
      Tree::dict({{"tokens", ids({3, 2}, {1, 2, 3, 4, 5, 6})}, {"labels", ids({3, 2}, {2, -100, 4, 5, 6, 7})}});
  EXPECT_EQ(StepCounter().count(flatten(batch), PaddedRows{2, 3}),
            (StepTotals{.samples = 0, .tokens = 4, .labels = 3}));
  EXPECT_EQ(StepCounter().count(flatten(batch), PaddedRows{2, 4}).tokens, 6) << "these are no rows";
}

TEST(StepCounter, CountsViewsWithoutACopy) {
  const auto row = Tensor::of<std::int64_t>({2, 4}, {1, -2, 3, -100, 5, 6, 7, 8});
  const Tree shifted = Tree::dict({{"tokens", row.slice(1, 0, 3)}, {"labels", row.slice(1, 1, 4)}});
  const auto before = copied_bytes();
  EXPECT_EQ(count(shifted), (StepTotals{.samples = 0, .tokens = 6, .labels = 4}));
  EXPECT_EQ(copied_bytes(), before);
}

TEST(StepCounter, HandlesAChangeOfStructure) {
  StepCounter counter;
  EXPECT_EQ(counter.count(flatten(Tree::dict({{"x", ids({1}, {1})}, {"tokens", ids({2}, {1, 2})}}))).tokens, 2);
  EXPECT_EQ(counter.count(flatten(Tree::dict({{"tokens", ids({3}, {1, 2, 3})}}))).tokens, 3);
  EXPECT_EQ(counter.count(flatten(Tree(std::string("text")))), nothing);
}

TEST(StepCounter, CountsEveryNumericType) {
  const auto labels_of = [](const Tensor& labels) { return count(Tree::dict({{"labels", labels}})).labels; };
  EXPECT_EQ(labels_of(Tensor::of<std::int8_t>({3}, {-1, 0, 1})), 2);
  EXPECT_EQ(labels_of(Tensor::of<std::int16_t>({3}, {-100, 0, 1})), 2);
  EXPECT_EQ(labels_of(Tensor::of<std::int32_t>({3}, {-100, 0, 1})), 2);
  EXPECT_EQ(labels_of(Tensor::of<std::uint8_t>({3}, {255, 0, 1})), 3);
  EXPECT_EQ(labels_of(Tensor::of<float>({3}, {-0.5F, 0, 1})), 3);  // a regression
  const auto masked = [](const Tensor& mask) { return count(Tree::dict({{"loss_mask", mask}})).labels; };
  EXPECT_EQ(masked(Tensor::of<bool>({3}, {true, false, true})), 2);
  EXPECT_EQ(masked(Tensor::of<double>({3}, {-0.0, 0, 1e-300})), 1);
  EXPECT_EQ(masked(Tensor::of<std::uint16_t>({2}, {0x8000, 0})), 1);
}

TEST(StepCounter, IgnoresLeavesThatAreNotNumericTensors) {
  const Tree batch = Tree::dict({{"tokens", Tree(std::string("text"))}, {"labels", Tree::list({Tree(1), Tree(0)})}});
  EXPECT_EQ(count(batch), nothing);
  EXPECT_EQ(count(Tree::dict({{"tokens", Tensor::zeros(dtypes::float4_e2m1fn, {2})}})), nothing);
}

}  // namespace
}  // namespace levada
