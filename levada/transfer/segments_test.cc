#include "levada/transfer/segments.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "levada/base/error.h"
#include "levada/plan/plan.h"
#include "levada/transfer/portion.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

Tensor numbers(const Shape& shape) {
  Tensor tensor = Tensor::empty(dtypes::int64, shape);
  const auto values = tensor.mutable_as<std::int64_t>();
  std::iota(values.begin(), values.end(), 0);
  return tensor;
}

/// Returns the part of one field that a cp rank gets when zigzag divides it along `dim`.
std::vector<std::int64_t> part_of(const Tree& tree, const std::string& field, int dim = 1, int index = 0, int cp = 2) {
  const FlatTree batch = flatten(tree);
  const Layout layout = {
      .name = "test", .rules = {{field, {Zigzag{"cp", dim}}}}, .otherwise = {Replicate{"cp"}}, .stages = {}};
  const Audience audience[] = {{.from = 0, .to = {index}, .unit = 0}};
  const auto fields = fields_of(batch, PackedSegments(batch));
  for (const Move& move : plan_unit(fields, layout, Mesh({{"cp", cp}}), audience, {})) {
    if (fields[static_cast<std::size_t>(move.field)].path != field) continue;
    std::vector<std::int64_t> part(move.region.element_count());
    copy_region(tree.tensor(field).view(), move.region, reinterpret_cast<std::byte*>(part.data()));
    return part;
  }
  return {};
}

std::string refusal(const Tree& tree, const std::string& field = "tokens") {
  try {
    static_cast<void>(part_of(tree, field));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

template <typename T>
Tensor boundaries(const Shape& shape, std::initializer_list<T> values) {
  return Tensor::of<T>(shape, values);
}

const std::vector<std::int64_t> by_segment = {0, 1, 6, 7, 8, 9, 14, 15};
const std::vector<std::int64_t> by_row = {0, 1, 2, 3, 12, 13, 14, 15};

TEST(PackedSegments, AreFoundByEveryNameTypeAndShapeThatAttentionAccepts) {
  const Tensor shapes[] = {boundaries<std::int32_t>({1, 3}, {0, 8, 16}), boundaries<std::int32_t>({3}, {0, 8, 16}),
                           boundaries<std::int64_t>({1, 3}, {0, 8, 16}), boundaries<std::int64_t>({3}, {0, 8, 16})};
  for (const char* name : {"cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_kv", "cu_seqlens_q_padded",
                           "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens_unpadded"}) {
    for (const Tensor& tensor : shapes) {
      SCOPED_TRACE(std::string(name) + " " + std::string(tensor.dtype().name()) + " " + tensor.shape().to_string());
      EXPECT_EQ(part_of(Tree::dict({{"tokens", numbers({1, 16})}, {name, tensor}}), "tokens"), by_segment);
      EXPECT_EQ(part_of(Tree::dict({{"tokens", numbers({16})}, {name, tensor}}), "tokens", 0), by_segment);
      const Tree nested = Tree::dict({{"tokens", numbers({1, 16})}, {"attention", Tree::dict({{name, tensor}})}});
      EXPECT_EQ(part_of(nested, "tokens"), by_segment);
    }
  }
  const Tree of_mapping = Tree::dict({{"tokens", numbers({1, 16})}, {"cu_seqlens", Tree::dict({{"q", shapes[1]}})}});
  EXPECT_EQ(part_of(of_mapping, "tokens"), by_segment);
}

TEST(PackedSegments, MayBeStrided) {
  const Tree tree =
      Tree::dict({{"tokens", numbers({2, 16})},
                  {"cu_seqlens", boundaries<int>({2, 5}, {9, 0, 8, 16, 9, 9, 0, 16, 16, 9}).slice(1, 1, 4)}});
  EXPECT_THAT(part_of(tree, "tokens"),
              ::testing::ElementsAre(0, 1, 6, 7, 8, 9, 14, 15, 16, 17, 18, 19, 28, 29, 30, 31));
}

TEST(PackedSegments, DivideTheLastDimensionOfOneRow) {
  const Tree tree = Tree::dict({{"tokens", numbers({3, 1, 16})}, {"cu_seqlens", boundaries<int>({3}, {0, 8, 16})}});
  auto expected = by_segment;
  for (const int plane : {16, 32}) {
    for (std::size_t i = 0; i < by_segment.size(); ++i) expected.push_back(by_segment[i] + plane);
  }
  EXPECT_EQ(part_of(tree, "tokens", 2), expected);
}

TEST(PackedSegments, ThatAreEmptyLeaveTheRowWhole) {
  const Tensor count = boundaries<std::int64_t>({1}, {2});
  for (const Tree& tree :
       {Tree::dict({{"tokens", numbers({1, 16})}}), Tree::dict({{"tokens", numbers({1, 16})}, {"cu_seqlens", Tree()}}),
        Tree::dict({{"tokens", numbers({1, 16})}, {"cu_seqlens_argmin", count}})}) {
    EXPECT_EQ(part_of(tree, "tokens"), by_row);
  }
}

TEST(PackedSegments, PreferThePaddedOnes) {
  const Tensor padded = boundaries<std::int32_t>({3}, {0, 8, 16}), real = boundaries<std::int32_t>({3}, {0, 5, 12});
  const Tree transformer_engine =
      Tree::dict({{"tokens", numbers({1, 16})}, {"cu_seqlens_q", real}, {"cu_seqlens_q_padded", padded}});
  const Tree megatron =
      Tree::dict({{"tokens", numbers({1, 16})}, {"cu_seqlens", padded}, {"cu_seqlens_unpadded", real}});
  EXPECT_EQ(part_of(transformer_engine, "tokens"), by_segment);
  EXPECT_EQ(part_of(megatron, "tokens"), by_segment);
}

TEST(PackedSegments, ComeFromTheNearestMapping) {
  const auto sample = [](std::initializer_list<std::int32_t> cu_seqlens) {
    const auto entries = static_cast<std::int64_t>(cu_seqlens.size());
    return Tree::dict({{"tokens", numbers({1, 16})}, {"cu_seqlens", Tensor::of<std::int32_t>({entries}, cu_seqlens)}});
  };
  const Tree pair =
      Tree::dict({{"chosen", sample({0, 8, 16})}, {"rejected", sample({0, 16})}, {"x", numbers({1, 16})}});
  EXPECT_EQ(part_of(pair, "chosen.tokens"), by_segment);
  EXPECT_EQ(part_of(pair, "rejected.tokens"), by_row);
  EXPECT_THAT(refusal(pair, "x"), HasSubstr("chosen.cu_seqlens and rejected.cu_seqlens differ"));
}

TEST(PackedSegments, ThatDifferAreRejectedByName) {
  const Tree tree = Tree::dict({{"tokens", numbers({1, 16})},
                                {"cu_seqlens_q", boundaries<std::int32_t>({3}, {0, 8, 16})},
                                {"cu_seqlens_kv", boundaries<std::int32_t>({3}, {0, 4, 16})}});
  EXPECT_THAT(refusal(tree), HasSubstr("cu_seqlens_q and cu_seqlens_kv differ"));
}

TEST(PackedSegments, ThatAreInvalidAreRejectedByName) {
  const Tree unusable[] = {Tree(Tensor::zeros(dtypes::float32, {3})), Tree(Tensor::zeros(dtypes::int32, {})),
                           Tree(Tensor::zeros(dtypes::int32, {1, 1, 3})), Tree(Tensor::zeros(dtypes::int16, {3})),
                           Tree(std::int64_t{16})};
  for (const Tree& value : unusable) {
    EXPECT_THAT(refusal(Tree::dict({{"tokens", numbers({1, 16})}, {"cu_seqlens_q", value}})),
                HasSubstr("cu_seqlens_q is "));
  }
  const Tree list = Tree::list({Tree(std::int64_t{0}), Tree(std::int64_t{16})});
  EXPECT_THAT(refusal(Tree::dict({{"tokens", numbers({1, 16})}, {"cu_seqlens", list}})),
              HasSubstr("cu_seqlens[0] is no tensor"));
  const Tensor two_rows = boundaries<std::int32_t>({2, 2}, {0, 16, 0, 16});
  EXPECT_THAT(refusal(Tree::dict({{"tokens", numbers({1, 16})}, {"cu_seqlens", two_rows}})), HasSubstr("2 row(s)"));
  const Tensor of_two = boundaries<std::int32_t>({3}, {0, 16, 32});
  EXPECT_NE(refusal(Tree::dict({{"tokens", numbers({2, 16})}, {"cu_seqlens", of_two}})), "");
}

TEST(PackedSegments, AreEachDividedLikeASequence) {
  std::mt19937 random(7);
  const auto draw = [&](int lowest, int highest) { return std::uniform_int_distribution(lowest, highest)(random); };
  for (int trial = 0; trial < 300; ++trial) {
    const int cp = draw(2, 4), rows = draw(1, 3), entries = draw(2, 6);
    // Rows have equal lengths, but their segments do not.
    const std::int64_t length = std::int64_t{2} * cp * draw(1, 8);
    Tensor cu_seqlens = Tensor::zeros(dtypes::int64, {rows, entries});
    const auto positions = cu_seqlens.mutable_as<std::int64_t>();
    for (int row = 0; row < rows; ++row) {
      const auto first = positions.begin() + row * entries;
      for (int entry = 1; entry + 1 < entries; ++entry)
        first[entry] = draw(0, static_cast<int>(length) / (2 * cp)) * 2 * cp;
      first[entries - 1] = length;
      std::sort(first, first + entries);
    }
    const Tree tree = Tree::dict({{"tokens", numbers({rows, length})}, {"cu_seqlens", cu_seqlens}});
    for (int index = 0; index < cp; ++index) {
      std::vector<std::int64_t> expected;
      for (int row = 0; row < rows; ++row) {
        for (int entry = 0; entry + 1 < entries; ++entry) {
          const auto begin = positions[static_cast<std::size_t>(row * entries + entry)];
          const auto chunk = (positions[static_cast<std::size_t>(row * entries + entry + 1)] - begin) / (2 * cp);
          for (const int number : {index, 2 * cp - 1 - index}) {
            for (std::int64_t i = 0; i < chunk; ++i) expected.push_back(row * length + begin + number * chunk + i);
          }
        }
      }
      ASSERT_EQ(part_of(tree, "tokens", 1, index, cp), expected) << "trial " << trial << ", rank " << index;
    }
  }
}

}  // namespace
}  // namespace levada
