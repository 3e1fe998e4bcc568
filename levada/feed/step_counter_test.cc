#include "levada/feed/step_counter.h"

#include <gtest/gtest.h>

namespace levada {
namespace {

StepTotals count(const Tree& batch) {
  return StepCounter().count(batch);
}

Tensor ids(const Shape& shape, std::initializer_list<std::int64_t> values) {
  return Tensor::of<std::int64_t>(shape, values);
}

TEST(StepCounter, CountsTheTokensAndTheLossMask) {
  const auto totals = count(Tree::dict({{"tokens", ids({2, 3}, {1, 2, 3, 4, 5, 6})},
                                        {"labels", ids({2, 3}, {2, 3, 0, 5, 6, 0})},
                                        {"loss_mask", Tensor::of<float>({2, 3}, {1, 0.5, 0, 1, -0.0F, 0})}}));
  EXPECT_EQ(totals, (StepTotals{.samples = 0, .tokens = 6, .labels = 3}));
}

TEST(StepCounter, CountsLabelsAsTheModelUsesThem) {
  const auto tokens = ids({2, 3}, {1, 2, 3, 4, 5, 6}), labels = ids({2, 3}, {1, 2, -100, 4, 5, 6});
  // transformers: a model shifts labels, and nothing predicts the first of a row.
  EXPECT_EQ(count(Tree::dict({{"input_ids", tokens}, {"labels", labels}})).labels, 3);
  // Megatron-LM: labels are the next tokens.
  EXPECT_EQ(count(Tree::dict({{"tokens", tokens}, {"labels", labels}})).labels, 5);
  EXPECT_EQ(count(Tree::dict({{"input_ids", tokens},
                              {"labels", labels},
                              {"shift_labels", ids({2, 3}, {2, -100, -100, 5, 6, -100})}}))
                .labels,
            3);
  // Classes, one for each row.
  EXPECT_EQ(count(Tree::dict({{"input_ids", tokens}, {"labels", ids({2}, {0, 1})}})).labels, 2);
}

TEST(StepCounter, CountsEachMappingOfABatch) {
  const auto pair = [&](std::int64_t length) {
    return Tree::dict({{"input_ids", Tree(Tensor::zeros(dtypes::int32, {2, length}))},
                       {"loss_mask", Tree(Tensor::zeros(dtypes::uint8, {2, length}))}});
  };
  EXPECT_EQ(count(Tree::dict({{"chosen", pair(5)}, {"rejected", Tree::list({pair(2), pair(3)})}})).tokens, 20);
}

TEST(StepCounter, CountsOnlyTheFirstRowsIfAsked) {
  const Tree batch =
      Tree::dict({{"tokens", ids({3, 2}, {1, 2, 3, 4, 5, 6})}, {"labels", ids({3, 2}, {2, -100, 4, 5, 6, 7})}});
  EXPECT_EQ(StepCounter().count(flatten(batch), 2), (StepTotals{.samples = 0, .tokens = 4, .labels = 3}));
  EXPECT_EQ(StepCounter().count(flatten(batch), 0), StepTotals());
}

TEST(StepCounter, FollowsABatchOfAnotherStructure) {
  StepCounter counter;
  EXPECT_EQ(counter.count(Tree::dict({{"x", ids({1}, {1})}, {"tokens", ids({2}, {1, 2})}})).tokens, 2);
  EXPECT_EQ(counter.count(Tree::dict({{"tokens", ids({3}, {1, 2, 3})}})).tokens, 3);
  EXPECT_EQ(counter.count(Tree(std::string("text"))), StepTotals());
}

TEST(StepCounter, CountsEachTypeOfNumber) {
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

TEST(StepCounter, IgnoresWhatIsNoTensorOfNumbers) {
  EXPECT_EQ(
      count(Tree::dict({{"tokens", Tree(std::string("text"))}, {"labels", Tree(None())}, {"loss_mask", Tree(1.0)}})),
      StepTotals());
  EXPECT_EQ(count(Tree::dict({{"tokens", Tensor::zeros(dtypes::float4_e2m1fn, {2})}})), StepTotals());
}

}  // namespace
}  // namespace levada
