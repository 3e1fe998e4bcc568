#include <gmock/gmock.h>

#include <map>
#include <random>

#include "levada/corpus/packing.h"
#include "levada/pipeline/collate.h"
#include "levada/pipeline/open_graph_testing.h"

namespace levada::pipeline::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ints = std::vector<std::int64_t>;

template <typename T = std::int64_t>
Tensor tensor_of(const std::vector<T>& values) {
  auto tensor = Tensor::empty(dtype_of<T>(), {std::ssize(values)});
  std::ranges::copy(values, tensor.template mutable_as<T>().begin());
  return tensor;
}

Graph documents(const std::vector<Ints>& tokens) {
  std::vector<Tree> items;
  for (const auto& each : tokens) items.emplace_back(tensor_of(each));
  return Graph::source(trees(std::move(items)));
}

template <typename T = std::int64_t>
std::vector<T> field(const Tree& row, const char* name) {
  const auto values = row.tensor(name).as<T>();
  return {values.begin(), values.end()};
}

TEST(Pack, ConcatenatesAndCutsDocuments) {
  const auto rows = items_of(documents({{1, 2, 3}, {}, {4}, {5, 6, 7, 8, 9, 10, 11}}).then(Pack{.sequence = 4}));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_THAT(field(rows[0], "tokens"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(field(rows[0], "labels"), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(field(rows[1], "tokens"), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(field(rows[1], "labels"), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(field(rows[1], "position_ids"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(field<float>(rows[1], "loss_mask"), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(field<std::int32_t>(rows[1], "cu_seqlens"), ElementsAre(0, 4, 4));
  EXPECT_THAT(field<std::int32_t>(rows[1], "max_seqlen"), ElementsAre(4));
  EXPECT_EQ(rows[1].tensor("max_seqlen").shape().rank(), 0u);
  EXPECT_THAT(field(rows[2], "tokens"), ElementsAre(9, 10, 0, 0));
  EXPECT_THAT(field(rows[2], "labels"), ElementsAre(10, 11, 0, 0));
  EXPECT_THAT(field(rows[2], "position_ids"), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(field<float>(rows[2], "loss_mask"), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(field<std::int32_t>(rows[2], "cu_seqlens"), ElementsAre(0, 2, 4));
}

TEST(Pack, DropsOrPadsAPartialRow) {
  const auto source = documents({{1, 2, 3, 4, 5}, {6}});
  EXPECT_EQ(items_of(source.then(Pack{.sequence = 3, .partial = PartialRow::drop})).size(), 1u);
  EXPECT_EQ(items_of(source.then(Pack{.sequence = 3})).size(), 2u);
  EXPECT_EQ(items_of(source.then(Pack{.sequence = 5})).size(), 1u) << "the last token is only a label";
  EXPECT_THAT(items_of(documents({{1}}).then(Pack{.sequence = 5})), IsEmpty()) << "it is not a label of any token";
  const auto padded = items_of(source.then(Pack{.sequence = 9, .pad_to = 3}));
  EXPECT_THAT(field<std::int32_t>(padded[0], "cu_seqlens"), ElementsAre(0, 6, 9));
  EXPECT_THAT(field(padded[0], "tokens"), ElementsAre(1, 2, 3, 4, 5, 0, 0, 0, 0));
}

TEST(Pack, PacksWholeDocumentsByBestFit) {
  const Pack pack{.sequence = 6, .method = Packing::best_fit, .pad_to = 2, .max_documents = 3};
  const auto rows = items_of(documents({{1, 2, 3, 4}, {5}, {6, 7, 8}, {9, 10, 11, 12, 13}}).then(pack));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(field(rows[0], "tokens"), ElementsAre(1, 2, 3, 0, 6, 7));
  EXPECT_THAT(field(rows[0], "labels"), ElementsAre(2, 3, 4, 0, 7, 8));
  EXPECT_THAT(field(rows[0], "position_ids"), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(field<float>(rows[0], "loss_mask"), ElementsAre(1, 1, 1, 0, 1, 1));
  EXPECT_THAT(field<std::int32_t>(rows[0], "cu_seqlens"), ElementsAre(0, 4, 6, 6, 6));
  EXPECT_THAT(field<std::int32_t>(rows[0], "max_seqlen"), ElementsAre(4));
  EXPECT_THAT(field(rows[1], "tokens"), ElementsAre(9, 10, 11, 12, 0, 0));
  EXPECT_THAT(field<std::int32_t>(rows[1], "cu_seqlens"), ElementsAre(0, 4, 6, 6, 6));
}

TEST(Pack, CutsOrRejectsADocumentThatIsTooLong) {
  Pack pack{.sequence = 3, .method = Packing::best_fit};
  const auto source = documents({{1, 2}, {3, 4, 5, 6, 7, 8, 9, 10, 11}, {12, 13, 14, 15}});
  const auto rows = items_of(source.then(pack));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_THAT(field(rows[0], "tokens"), ElementsAre(3, 4, 5));
  EXPECT_THAT(field(rows[1], "tokens"), ElementsAre(6, 7, 8));
  EXPECT_THAT(field(rows[2], "tokens"), ElementsAre(12, 13, 14));
  EXPECT_THAT(field(rows[3], "tokens"), ElementsAre(1, 9, 10));
  EXPECT_THAT(field(rows[3], "labels"), ElementsAre(2, 10, 11));
  pack.too_long = LongDocument::error;
  const auto failure = failure_of([&] { items_of(source.then(pack, "rows")); });
  EXPECT_EQ(failure.stage, "rows");
  EXPECT_EQ(failure.item, 1);
  EXPECT_THAT(failure.message, HasSubstr("the document has 9 tokens, and a row holds 4; raise sequence"));
}

TEST(Pack, PacksOtherFieldsWithTheTokens) {
  const auto document = [](Ints tokens, Ints labels, const std::vector<std::uint8_t>& mask,
                           const std::vector<std::int16_t>& role) {
    return Tree::dict({{"role", tensor_of(role)},
                       {"ids", tensor_of(tokens)},
                       {"labels", tensor_of(labels)},
                       {"loss_mask", tensor_of(mask)}});
  };
  const auto source = Graph::source(
      trees({document({1, 2, 3}, {-100, 12, 13}, {1, 1, 0}, {7, 7, 8}), document({4, 5}, {14, -100}, {1, 1}, {9, 9})}));
  const auto whole = items_of(source.then(Pack{.sequence = 5, .tokens = "ids"}));
  EXPECT_THAT(field(whole[0], "tokens"), ElementsAre(1, 2, 3, 4, 0));
  EXPECT_THAT(field(whole[0], "labels"), ElementsAre(12, 13, 14, -100, -100));
  EXPECT_THAT(field<float>(whole[0], "loss_mask"), ElementsAre(1, 0, 1, 0, 0));
  EXPECT_THAT(field<std::int16_t>(whole[0], "role"), ElementsAre(7, 7, 8, 9, 0));
  EXPECT_FALSE(whole[0].contains("ids"));
  const auto apart = items_of(source.then(Pack{.sequence = 4, .method = Packing::best_fit, .tokens = "ids"}));
  EXPECT_THAT(field(apart[0], "tokens"), ElementsAre(1, 2, 4, 0));
  EXPECT_THAT(field(apart[0], "labels"), ElementsAre(12, 13, -100, -100));
  EXPECT_THAT(field<float>(apart[0], "loss_mask"), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(field<std::int16_t>(apart[0], "role"), ElementsAre(7, 7, 9, 0));
}

TEST(Pack, AcceptsAnyIntegersAndStrides) {
  const Pack pack{.sequence = 3};
  const auto of = [&](const Tensor& tensor) {
    return field(items_of(Graph::source(trees({tensor})).then(pack))[0], "tokens");
  };
  EXPECT_THAT(of(tensor_of<std::uint16_t>({65535, 1, 2, 3})), ElementsAre(65535, 1, 2));
  EXPECT_THAT(of(tensor_of<std::int32_t>({5, 1, 2, 3})), ElementsAre(5, 1, 2));
  EXPECT_THAT(of(tensor_of<std::uint64_t>({5, 1, 2, 3})), ElementsAre(5, 1, 2));
  const auto even = tensor_of<std::int64_t>({1, 0, 2, 0, 3, 0, 4, 0});
  EXPECT_THAT(of(Tensor(TensorView(dtypes::int64, {4}, {2}, even.view().data()), even.owner())), ElementsAre(1, 2, 3));
}

TEST(Pack, NarrowsIdsOnRequestAndRejectsLargeOnes) {
  const auto labels = tensor_of<std::int64_t>({-100, 2, -1, 4});
  const auto row_of = [&](std::int64_t last) {
    const Tree document = Tree::dict({{"tokens", tensor_of<std::int64_t>({1, 2, 3, last})}, {"labels", labels}});
    return items_of(Graph::source(trees({document})).then(Pack{.sequence = 4, .ids = dtypes::int32})).at(0);
  };
  const auto row = row_of(2147483647);
  EXPECT_THAT(field<std::int32_t>(row, "tokens"), ElementsAre(1, 2, 3, 0));
  EXPECT_THAT(field<std::int32_t>(row, "labels"), ElementsAre(2, -1, 4, -100));
  EXPECT_THAT(field<std::int32_t>(row, "position_ids"), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(failure_of([&] { row_of(2147483648); }).message,
              HasSubstr("element 3 of tokens is 2147483648; it must be from 0 to 2147483647"));
}

TEST(Pack, ExplainsInvalidDocuments) {
  const auto says = [](const Tree& document, const Pack& pack = {.sequence = 3}) {
    const Tree good = Tree::dict({{"tokens", tensor_of<std::int64_t>({1})}, {"role", tensor_of<std::int8_t>({1})}});
    return describe(failure_of([&] { items_of(Graph::source(trees({good, document})).then(pack)); }));
  };
  const auto tokens = tensor_of<std::int64_t>({1, 2, 3});
  EXPECT_EQ(says(tensor_of<float>({1, 2})),
            "stage pack, item 1, in process 42: the item is float32 [2]; it must be integers");
  EXPECT_THAT(says(Tensor::zeros(dtypes::int64, {2, 3})),
              HasSubstr("the item is int64 [2, 3]; a document is an array of one"));
  EXPECT_THAT(says(Tensor::zeros(dtypes::int64, {})), HasSubstr("the item is int64 []; a document is an array of one"));
  EXPECT_THAT(says(Tree::dict({{"tokens", tensor_of<std::int32_t>({1, -7})}})),
              HasSubstr("item 1, in process 42: element 1 of tokens is -7; it must be from 0 to 9223372036854775807"));
  EXPECT_THAT(says(tensor_of<std::uint64_t>({1, std::uint64_t{1} << 63})),
              HasSubstr("is 9223372036854775808; it must be"));
  EXPECT_THAT(says(Tree::dict({{"tokens", tokens}, {"role", tensor_of<std::int8_t>({1})}})),
              HasSubstr("role has 1 elements, but the document has 3 tokens"));
  EXPECT_THAT(says(Tree::dict({{"tokens", tokens}})),
              HasSubstr("besides tokens it has no other fields, but earlier documents have role (int8)"));
  EXPECT_THAT(says(Tree::dict({{"tokens", tokens}, {"role", tokens}})), HasSubstr("it has role (int64), but"));
  EXPECT_THAT(says(Tree::dict({{"tokens", tokens}, {"role", "user"}})), HasSubstr("role is not an array"));
  EXPECT_THAT(says(Tree::dict({{"tokens", tokens}, {"cu_seqlens", tokens}})),
              HasSubstr("packing makes the field cu_seqlens itself"));
  EXPECT_THAT(says(Tree::dict({{"ids", tokens}, {"role", tokens}})),
              HasSubstr("no field tokens, but ids, role; set tokens to"));
  EXPECT_THAT(says(Tree::dict({{"tokens", tokens}, {"labels", tensor_of<float>({1, 2, 3})}})),
              HasSubstr("labels is float32 [3]; it must be integers"));
  EXPECT_THAT(says(7), HasSubstr("the item is not an array"));
}

std::vector<Ints> some_documents(std::size_t count, int longest, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Ints> tokens(count);
  std::int64_t next = 1;
  for (auto& document : tokens) {
    document.resize(random() % static_cast<unsigned>(longest));
    for (auto& token : document) token = next++;
  }
  return tokens;
}

TEST(Pack, YieldsEachPositionOnceInSegmentsOfOneDocument) {
  for (const auto& pack : {Pack{.sequence = 32, .method = Packing::best_fit, .buffer = 20},
                           Pack{.sequence = 32, .method = Packing::best_fit, .buffer = 7, .pad_to = 4},
                           Pack{.sequence = 32, .method = Packing::best_fit, .buffer = 1},
                           Pack{.sequence = 32, .method = Packing::best_fit, .buffer = 50, .max_documents = 2}}) {
    const auto given = some_documents(500, 70, 3);
    std::map<std::int64_t, std::int64_t> wanted, found;  // labels by token
    for (const auto& document : given) {
      for (std::size_t i = 0; i + 1 < document.size(); ++i) wanted[document[i]] = document[i + 1];
    }
    for (const auto& row : items_of(documents(given).then(pack))) {
      const auto tokens = field(row, "tokens"), labels = field(row, "labels"), positions = field(row, "position_ids");
      const auto begins = field<std::int32_t>(row, "cu_seqlens");
      ASSERT_EQ(std::ssize(begins), pack.max_documents.value_or(pack.default_max_documents()) + 2);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (field<float>(row, "loss_mask")[i] == 0) continue;
        ASSERT_TRUE(found.emplace(tokens[i], labels[i]).second) << tokens[i] << " appears twice";
        const bool begins_here = std::ranges::find(begins, static_cast<std::int32_t>(i)) != begins.end();
        ASSERT_EQ(positions[i] == 0, begins_here);
      }
    }
    ASSERT_EQ(found, wanted);
  }
}

TEST(Pack, FillsRowsAsWellAsBestFitPerWindow) {
  const Pack pack{.sequence = 256, .method = Packing::best_fit, .buffer = 200};
  const auto given = some_documents(4000, 200, 5);
  const auto rows = std::ssize(items_of(documents(given).then(pack)));
  std::int64_t by_windows = 0, positions = 0;
  for (std::size_t first = 0; first < given.size(); first += 200) {
    Ints sizes;
    for (std::size_t i = first; i < first + 200; ++i) {
      if (given[i].size() > 1) sizes.push_back(std::ssize(given[i]) - 1);
    }
    by_windows += pack_best_fit(sizes, 256).bins;
    positions += std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  }
  EXPECT_LE(rows, by_windows);
  EXPECT_LE(rows, positions / 256 + positions / 256 / 50) << "2% of padding";
}

TEST(Pack, HoldsNoDocumentLongerThanEightRounds) {
  // The first fits with no other, and the others fill their rows better.
  std::vector<Ints> given(1, {1, 2, 3});
  given.resize(1000, {4, 5, 6, 7, 8});
  const auto place_of_first = [&](std::int64_t sequence) {
    const Pack pack{.sequence = sequence, .method = Packing::best_fit, .buffer = 10};
    const auto rows = items_of(documents(given).then(pack));
    return std::ranges::find_if(rows, [](const Tree& row) { return field(row, "tokens")[0] == 1; }) - rows.begin();
  };
  EXPECT_EQ(place_of_first(5), 8 * 5) << "each round yields half of ten rows";
  EXPECT_EQ(place_of_first(4), 9) << "the others need no buffer";
}

TEST(Pack, RowsOfAnyDocumentsCollate) {
  const auto rows =
      items_of(documents(some_documents(50, 30, 9)).then(Pack{.sequence = 64, .method = Packing::best_fit}));
  HeapMemory memory;
  const auto batch = collate(rows, 0, memory);
  const auto count = std::ssize(rows);
  EXPECT_EQ(batch.tensor("tokens").shape(), Shape({count, 64}));
  EXPECT_EQ(batch.tensor("cu_seqlens").shape(), Shape({count, 66}));
  EXPECT_EQ(batch.tensor("max_seqlen").shape(), Shape({count}));
}

TEST(Pack, RejectsInvalidOptions) {
  const auto says = [](const Pack& pack) {
    try {
      documents({}).then(pack);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(says({.sequence = 0}), HasSubstr("stage \"pack\": sequence is 0; it is at least 1"));
  EXPECT_THAT(says({.sequence = std::int64_t{1} << 31}), HasSubstr("it is at most 2^31 - 1"));
  EXPECT_THAT(says({.buffer = 0}), HasSubstr("buffer is 0"));
  EXPECT_THAT(says({.sequence = 10, .pad_to = 4}), HasSubstr("sequence is 10, which is not a multiple of pad_to, 4"));
  EXPECT_THAT(says({.ids = dtypes::uint16}), HasSubstr("dtype is uint16; it must be int64 or int32"));
  EXPECT_THAT(says({.method = Packing::documents}), HasSubstr("method is documents, which only a corpus supports"));
  EXPECT_THAT(says({.max_documents = 0}), HasSubstr("max_documents is 0"));
  EXPECT_THAT(says({.sequence = 8, .max_documents = 9}),
              HasSubstr("max_documents is 9; no more than 8 fit into a row"));
}

}  // namespace
}  // namespace levada::pipeline::testing
