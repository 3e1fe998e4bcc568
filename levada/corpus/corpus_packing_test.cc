#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "levada/base/error.h"
#include "levada/base/fault_testing.h"
#include "levada/corpus/corpus_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Corpus open_packed(const Files& files, CorpusOptions options) {
  options.packing = Packing::best_fit;
  return open_files(files, std::move(options));
}

/// Returns each segment of a row as its tokens and the label after them. Checks the properties of every row.
std::vector<std::vector<std::int64_t>> documents_in(const Tree& batch, std::size_t row, std::size_t length) {
  const auto tokens = batch.tensor("tokens").as<std::int64_t>().subspan(row * length, length);
  const auto labels = batch.tensor("labels").as<std::int64_t>().subspan(row * length, length);
  const auto positions = batch.tensor("position_ids").as<std::int64_t>().subspan(row * length, length);
  const auto mask = batch.tensor("loss_mask").as<float>().subspan(row * length, length);
  const auto width = static_cast<std::size_t>(batch.tensor("cu_seqlens").shape()[1]);
  const auto begins = batch.tensor("cu_seqlens").as<std::int32_t>().subspan(row * width, width);
  EXPECT_EQ(begins.front(), 0);
  EXPECT_EQ(static_cast<std::size_t>(begins.back()), length);
  std::vector<std::vector<std::int64_t>> found;
  std::int32_t longest = 0;
  for (std::size_t s = 0; s + 1 < width; ++s) {
    EXPECT_LE(begins[s], begins[s + 1]);
    longest = std::max(longest, begins[s + 1] - begins[s]);
    std::vector<std::int64_t> document;
    for (auto at = static_cast<std::size_t>(begins[s]); at < static_cast<std::size_t>(begins[s + 1]); ++at) {
      EXPECT_EQ(positions[at], static_cast<std::int64_t>(at) - begins[s]);
      if (mask[at] == 0) {
        EXPECT_EQ(tokens[at], 0);
        EXPECT_EQ(labels[at], 0);
        continue;
      }
      EXPECT_EQ(mask[at], 1);
      if (document.empty()) document.push_back(tokens[at]);
      EXPECT_EQ(document.back(), tokens[at]) << "padding stands only at the end, and labels are the next tokens";
      document.push_back(labels[at]);
    }
    if (!document.empty()) found.push_back(document);
  }
  EXPECT_EQ(batch.tensor("max_seqlen").as<std::int32_t>()[row], longest);
  return found;
}

/// Expects that the samples together contain every label of every document exactly once.
void expect_each_label_once(const std::vector<std::string>& texts, Corpus& corpus, std::size_t length) {
  std::multiset<std::vector<std::int64_t>> wanted, found;
  for (const auto& text : texts) {
    if (text.empty()) continue;
    std::vector<std::int64_t> tokens(text.begin(), text.end());
    tokens.push_back(256);
    for (std::size_t from = 0; from + 1 < tokens.size(); from += length) {
      const auto end = std::min(from + length + 1, tokens.size());
      wanted.emplace(tokens.begin() + static_cast<std::ptrdiff_t>(from),
                     tokens.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  HeapMemory memory;
  for (std::int64_t g = 0; g < corpus.sequences(); ++g) {
    const auto batch = corpus.read(g, 1, memory).value();
    for (auto& document : documents_in(batch, 0, length)) found.insert(std::move(document));
  }
  EXPECT_EQ(found, wanted);
}

TEST(CorpusPacking, ReturnsEveryTokenOnceAsALabelOfItsOwnDocument) {
  std::mt19937 random(3);
  std::vector<std::string> first, second;
  for (int d = 0; d < 300; ++d) first.push_back(document(d, random() % (random() % 10 == 0 ? 500 : 60)));
  for (int d = 300; d < 400; ++d) second.push_back(document(d, random() % 40));
  auto all = first;
  all.insert(all.end(), second.begin(), second.end());
  all.push_back(document(999, 333));
  const Files files = {{"a.jsonl", lines_of(first)}, {"b.jsonl", lines_of(second)}, {"c.txt", all.back()}};
  for (const std::int64_t length : {1, 2, 16, 64, 1024}) {
    for (const std::int64_t pad_to : {1, 2, 16}) {
      if (length % pad_to != 0) continue;
      for (const auto seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(9)}) {
        auto corpus = open_packed(files, {.sequence = length, .shuffle_seed = seed, .pad_to = pad_to});
        expect_each_label_once(all, corpus, static_cast<std::size_t>(length));
      }
    }
  }
}

TEST(CorpusPacking, ReturnsEveryFieldInTheCallersMemory) {
  auto corpus = open_packed({{"a.jsonl", lines_of({"abc", "x", "", "de"})}}, {.sequence = 6, .attention_mask = true});
  EXPECT_EQ(corpus.sequences(), 1);
  HeapMemory memory;
  const auto batch = corpus.read(0, 1, memory).value();
  EXPECT_THAT(values<std::int64_t>(batch, "tokens"), ElementsAre('a', 'b', 'c', 'x', 'd', 'e'));
  EXPECT_THAT(values<std::int64_t>(batch, "labels"), ElementsAre('b', 'c', 256, 256, 'e', 256));
  EXPECT_THAT(values<std::int64_t>(batch, "position_ids"), ElementsAre(0, 1, 2, 0, 0, 1));
  EXPECT_THAT(values<float>(batch, "loss_mask"), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(values<std::int32_t>(batch, "cu_seqlens"), ElementsAre(0, 3, 4, 6));
  EXPECT_THAT(values<std::int32_t>(batch, "max_seqlen"), ElementsAre(3));
  EXPECT_THAT(values<bool>(batch, "attention_mask"), ElementsAre(false, true, true, true, true, true,    //
                                                                 false, false, true, true, true, true,   //
                                                                 false, false, false, true, true, true,  //
                                                                 true, true, true, false, true, true,    //
                                                                 true, true, true, true, false, true,    //
                                                                 true, true, true, true, false, false));
  EXPECT_EQ(corpus.padding_share(), 0);
}

TEST(CorpusPacking, RoundsDocumentsUpAndPadsTheRow) {
  auto corpus = open_packed({{"a.jsonl", lines_of({"abc", "x"})}}, {.sequence = 12, .pad_to = 4});
  HeapMemory memory;
  const auto batch = corpus.read(0, 1, memory).value();
  EXPECT_THAT(values<std::int64_t>(batch, "tokens"), ElementsAre('a', 'b', 'c', 0, 'x', 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(values<std::int64_t>(batch, "labels"), ElementsAre('b', 'c', 256, 0, 256, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(values<std::int64_t>(batch, "position_ids"), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(values<float>(batch, "loss_mask"), ElementsAre(1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(values<std::int32_t>(batch, "cu_seqlens"), ElementsAre(0, 4, 8, 12));
  EXPECT_NEAR(corpus.padding_share(), 8.0 / 12, 1e-12);
}

TEST(CorpusPacking, ReadingABatchEqualsReadingItsRows) {
  std::mt19937 random(4);
  std::vector<std::string> texts;
  for (int d = 0; d < 200; ++d) texts.push_back(document(d, random() % 50));
  auto corpus =
      open_packed({{"a.jsonl", lines_of(texts)}}, {.sequence = 32, .shuffle_seed = 1, .attention_mask = true});
  HeapMemory memory;
  const auto all = corpus.read(0, corpus.sequences(), memory).value();
  for (std::int64_t g = 0; g < corpus.sequences(); ++g) {
    const auto alone = corpus.read(g, 1, memory).value();
    for (const auto* field :
         {"tokens", "labels", "position_ids", "loss_mask", "cu_seqlens", "max_seqlen", "attention_mask"}) {
      EXPECT_EQ(Tree(Tensor::copy_of(all.tensor(field).slice(0, g, g + 1))), alone.at(field)) << field << " of " << g;
    }
  }
}

TEST(CorpusPacking, ReadsLittleMoreThanItReturns) {
  std::mt19937 random(5);
  std::vector<std::string> texts;
  for (int d = 0; d < 500; ++d) texts.push_back(document(d, 500 + random() % 9000));
  const auto content = lines_of(texts);
  auto corpus = open_packed({{"a.jsonl", content}}, {.sequence = 1024, .shuffle_seed = 3});
  HeapMemory memory;
  for (std::int64_t g = 0; g < corpus.size(); ++g) corpus.read(g, 1, memory);
  EXPECT_LE(corpus.stats().bytes_consumed, 2 * content.size());
  EXPECT_GE(corpus.stats().bytes_consumed, 2 * content.size() * 9 / 10);
  EXPECT_LE(corpus.stats().bytes_read, corpus.stats().bytes_consumed * 103 / 100);
}

TEST(CorpusPacking, RejectsOptionsThatCannotBePacked) {
  const Files files = {{"a.jsonl", lines_of({"abc"})}};
  EXPECT_THAT(fault_of([&] { open_packed(files, {.sequence = 10, .pad_to = 4}); }),
              HasSubstr("InvalidArgument: documents cannot be padded to multiples of 4: the sequence of 10 must"));
  EXPECT_THAT(fault_of([&] { open_packed(files, {.sequence = 10, .pad_to = 0}); }), HasSubstr("multiples of 0"));
  EXPECT_THAT(fault_of([&] { Corpus::open({"a.txt"}, {.sequence = 16, .pad_to = 4}); }), HasSubstr("only packed"));
  EXPECT_THAT(fault_of([&] {
                open_packed({{"a.jsonl", lines_of({"", ""})}}, {});
              }),
              HasSubstr("InvalidArgument: the corpus holds only empty documents"));
  EXPECT_THAT(fault_of([&] { parse_packing("worst-fit"); }),
              HasSubstr("packing must be cut, best-fit or documents, got worst-fit"));
}

TEST(CorpusPacking, RejectsACursorOfAnotherPacking) {
  const Files files = {{"a.jsonl", lines_of({document(1, 50), document(2, 60)})}};
  auto corpus = open_packed(files, {.sequence = 16});
  EXPECT_EQ(corpus.resume(corpus.cursor(3)), 3);
  EXPECT_THAT(fault_of([&] { open_packed(files, {.sequence = 16, .pad_to = 4}).resume(corpus.cursor(3)); }),
              HasSubstr("packing is best-fit (window 16384, padded to 4, version 1), there best-fit (window 16384, "
                        "padded to 1, version 1)"));
}

}  // namespace
}  // namespace levada
