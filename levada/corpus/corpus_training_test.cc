// Options that trainers choose: splits, resets at the end of documents, the width of ids.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/fault_testing.h"
#include "levada/corpus/corpus_testing.h"
#include "levada/sources/megatron_testing.h"
#include "levada/tokens/tokenizer_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns a .bin of documents that end with 9.
Files tokens_of(const std::vector<std::vector<std::int32_t>>& documents) {
  std::vector<std::int32_t> all, lengths;
  std::vector<std::int64_t> ends = {0};
  for (const auto& document : documents) {
    all.insert(all.end(), document.begin(), document.end());
    lengths.push_back(static_cast<std::int32_t>(document.size()));
    ends.push_back(static_cast<std::int64_t>(lengths.size()));
  }
  return {{"a.bin", raw_bin(all)}, {"a.idx", raw_index(4, 4, lengths, ends).bytes()}};
}

Corpus open_tokens(const Files& files, CorpusOptions options) {
  options.open = open_from(files);
  return Corpus::open({"a.bin"}, std::move(options));
}

const Files documents = tokens_of({{1, 9}, {2, 3, 9}, {9}, {4, 5, 6, 9}, {7, 9}});

TEST(CorpusDocuments, AreOneSegmentOfACutSampleByDefault) {
  HeapMemory memory;
  const auto batch = open_tokens(documents, {.sequence = 11, .attention_mask = true}).read(0, 1, memory).value();
  EXPECT_THAT(values<std::int64_t>(batch, "tokens"), ElementsAre(1, 9, 2, 3, 9, 9, 4, 5, 6, 9, 7));
  EXPECT_THAT(values<std::int64_t>(batch, "position_ids"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT(values<float>(batch, "loss_mask"), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
}

TEST(CorpusDocuments, RestartAfterTheEndOfDocumentToken) {
  HeapMemory memory;
  auto corpus = open_tokens(documents, {.sequence = 11,
                                        .attention_mask = true,
                                        .reset_position_ids = true,
                                        .reset_attention_mask = true,
                                        .eod_mask_loss = true,
                                        .end_of_document = "9"});
  const auto batch = corpus.read(0, 1, memory).value();
  EXPECT_THAT(values<std::int64_t>(batch, "position_ids"), ElementsAre(0, 1, 0, 1, 2, 0, 0, 1, 2, 3, 0));
  EXPECT_THAT(values<float>(batch, "loss_mask"), ElementsAre(1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1));
  const auto mask = values<bool>(batch, "attention_mask");
  const std::vector<int> document_of = {0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 4};
  for (std::size_t row = 0; row < 11; ++row) {
    for (std::size_t column = 0; column < 11; ++column) {
      EXPECT_EQ(mask[row * 11 + column], column > row || document_of[column] != document_of[row]) << row << column;
    }
  }
}

TEST(CorpusDocuments, EachOptionAffectsOneField) {
  HeapMemory memory;
  const CorpusOptions plain{.sequence = 5, .attention_mask = true, .end_of_document = "9"};
  const auto read = [&](const CorpusOptions& options) {
    return open_tokens(documents, options).read(1, 1, memory).value();
  };
  const auto differ = [&](const CorpusOptions& options) {
    const auto mine = read(options), other = read(plain);
    std::string fields;
    if (values<std::int64_t>(mine, "position_ids") != values<std::int64_t>(other, "position_ids")) fields += "p";
    if (values<bool>(mine, "attention_mask") != values<bool>(other, "attention_mask")) fields += "a";
    if (values<float>(mine, "loss_mask") != values<float>(other, "loss_mask")) fields += "l";
    return fields;
  };
  auto options = plain;
  options.reset_position_ids = true;
  EXPECT_EQ(differ(options), "p");
  (options = plain).reset_attention_mask = true;
  EXPECT_EQ(differ(options), "a");
  (options = plain).eod_mask_loss = true;
  EXPECT_EQ(differ(options), "l");
}

TEST(CorpusDocuments, EndWithTheTokenizersTokenInText) {
  HeapMemory memory;
  auto corpus =
      open_files({{"a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"c\"}\n"}}, {.sequence = 4, .eod_mask_loss = true});
  EXPECT_THAT(values<float>(corpus.read(0, 1, memory).value(), "loss_mask"), ElementsAre(1, 1, 0, 1));
}

TEST(CorpusDocuments, RequireAKnownEndOfDocumentToken) {
  EXPECT_EQ(fault_of([] { open_tokens(documents, {.sequence = 4, .reset_position_ids = true}); }),
            "InvalidArgument: the files hold tokens, and the token that ends a document is unknown: pass its number "
            "(eod=, --eod) or the tokenizer");
  EXPECT_THAT(fault_of([] { open_tokens(documents, {.sequence = 4, .reset_attention_mask = true}); }),
              HasSubstr("requires an attention mask"));
  EXPECT_THAT(
      fault_of([] { open_tokens(documents, {.sequence = 4, .packing = Packing::best_fit, .eod_mask_loss = true}); }),
      HasSubstr("apply only to cut documents that end with a token"));
}

TEST(CorpusIds, AreInt32IfRequested) {
  HeapMemory memory;
  for (const auto packing : {Packing::cut, Packing::best_fit}) {
    const auto wide = open_tokens(documents, {.sequence = 4, .packing = packing}).read(0, 2, memory).value();
    const auto narrow =
        open_tokens(documents, {.sequence = 4, .packing = packing, .ids = dtypes::int32}).read(0, 2, memory).value();
    for (const char* field : {"tokens", "labels", "position_ids"}) {
      const auto numbers = values<std::int64_t>(wide, field);
      EXPECT_EQ(values<std::int32_t>(narrow, field), std::vector<std::int32_t>(numbers.begin(), numbers.end()));
    }
    EXPECT_EQ(values<float>(wide, "loss_mask"), values<float>(narrow, "loss_mask"));
  }
  EXPECT_EQ(fault_of([] { open_tokens(documents, {.sequence = 4, .ids = dtypes::int16}); }),
            "InvalidArgument: tokens cannot be of int16: use int64 or int32");
}

TEST(CorpusSplit, PutsEachDocumentIntoOnePart) {
  std::vector<std::vector<std::int32_t>> numbered;
  for (int i = 0; i < 1000; ++i) numbered.push_back({i, i});
  const auto files = tokens_of(numbered);
  for (const auto packing : {Packing::cut, Packing::best_fit}) {
    std::vector<std::int64_t> seen;
    for (const char* part : {"train", "valid", "test"}) {
      auto corpus = open_tokens(files, {.sequence = 1, .packing = packing, .split = {90, 7, 3}, .part = part});
      EXPECT_EQ(corpus.documents(), part[1] == 'r' ? 900 : part[0] == 'v' ? 70 : 30);
      EXPECT_EQ(corpus.tokens(), 2 * corpus.documents());
      HeapMemory memory;
      for (const auto token : values<std::int64_t>(corpus.read(0, corpus.sequences(), memory).value(), "tokens")) {
        if (seen.empty() || seen.back() != token) seen.push_back(token);
      }
    }
    EXPECT_EQ(seen.size(), 1000U);
    EXPECT_TRUE(std::ranges::is_sorted(seen));
  }
}

TEST(CorpusSplit, SplitsEachFileAndIsPartOfTheOrder) {
  const Files files = {{"a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"}\n"},
                       {"b.jsonl", "{\"text\":\"c\"}\n{\"text\":\"d\"}\n"}};
  const auto open = [&](const char* part) { return open_files(files, {.sequence = 3, .split = {1, 1}, .part = part}); };
  HeapMemory memory;
  EXPECT_THAT(values<std::int64_t>(open("train").read(0, 1, memory).value(), "tokens"), ElementsAre('a', 256, 'c'));
  auto valid = open("valid");
  EXPECT_THAT(values<std::int64_t>(valid.read(0, 1, memory).value(), "tokens"), ElementsAre('b', 256, 'd'));
  EXPECT_EQ(open("valid").resume(valid.cursor(1)), 1);
  EXPECT_THAT(fault_of([&] { open("train").resume(valid.cursor(1)); }),
              HasSubstr("split is 1,1 train (rounding 2), there 1,1 valid (rounding 2)"));
  EXPECT_THAT(fault_of([&] { open("test"); }), HasSubstr("the split 1,1 leaves nothing for test"));
}

TEST(CorpusTokens, AreCheckedAgainstTheNamedTokenizer) {
  HeapMemory memory;
  const auto read = [&](std::int32_t last, CorpusOptions options) {
    options.sequence = 3;
    open_tokens(tokens_of({{1, 2, 3, last}}), options).read(0, 1, memory);
  };
  const CorpusOptions named{.tokenizer = std::make_shared<HookedTokenizer>()};  // it has 257 tokens
  EXPECT_NO_THROW(read(256, named));
  EXPECT_EQ(fault_of([&] { read(257, named); }),
            "SourceError: a.bin: token 3 is 257, but the tokenizer has 257 tokens: name the one that the file was made "
            "with (--tokenizer, tokenizer=)");
  EXPECT_NO_THROW(read(257, {})) << "no tokenizer is named";
}

TEST(CorpusTokens, AreCheckedAgainstTheTokenizerOfTextInTheSameCorpus) {
  auto files = tokens_of({{1, 2, 3, 257}});
  files["b.jsonl"] = "{\"text\":\"abc\"}\n";
  HeapMemory memory;
  auto corpus = open_files(files, {.sequence = 3});
  EXPECT_THAT(fault_of([&] { corpus.read(0, 1, memory); }),
              HasSubstr("a.bin: token 3 is 257, but the tokenizer has 257"));
}

TEST(CorpusSplit, PartsHaveTheirSharesOfManySmallFiles) {
  for (const int in_a_file : {1, 5, 37}) {
    Files files;
    constexpr int num_files = 400;
    for (int i = 0; i < num_files; ++i) {
      std::string text;
      for (int k = 0; k < in_a_file; ++k) text += fmt::format("{{\"text\":\"{:03}-{:02}\"}}\n", i, k);
      files[fmt::format("{:03}.jsonl", i)] = text;
    }
    std::int64_t sum = 0;
    for (const auto& [part, share] : {std::pair{"train", 0.7}, {"valid", 0.2}, {"test", 0.1}}) {
      const auto count = open_files(files, {.sequence = 6, .split = {70, 20, 10}, .part = part}).documents();
      EXPECT_NEAR(static_cast<double>(count) / (num_files * in_a_file), share, 0.075 / in_a_file) << part;
      sum += count;
    }
    EXPECT_EQ(sum, num_files * in_a_file);
  }
}

TEST(CorpusSplit, OtherFilesDoNotChangeADocumentsPart) {
  const auto text_of = [](int i) { return fmt::format("{{\"text\":\"{:03}\"}}\n", i); };
  Files files;
  std::vector<int> trains;
  for (int i = 0; i < 60; ++i) {
    const Files alone = {{"a.jsonl", text_of(i)}};
    const bool is_for_training = fault_of([&] {
                                   open_files(alone, {.sequence = 3, .split = {1, 1}, .part = "train"});
                                 }) == "no fault";
    EXPECT_NE(is_for_training, fault_of([&] {
                                 open_files(alone, {.sequence = 3, .split = {1, 1}, .part = "valid"});
                               }) == "no fault");
    if (is_for_training) trains.push_back(i);
    files[fmt::format("{:03}.jsonl", i)] = text_of(i);
    if (trains.empty()) continue;
    EXPECT_EQ(open_files(files, {.sequence = 3, .split = {1, 1}, .part = "train"}).documents(), std::ssize(trains));
  }
  EXPECT_GT(trains.size(), 10U);
  EXPECT_LT(trains.size(), 50U);
}

TEST(CorpusSplit, NamesASplitWithAnEmptyPart) {
  EXPECT_THAT(
      fault_of([] {
        open_files({{"a.jsonl", "{\"text\":\"a\"}\n"}}, {.sequence = 3, .split = {98, 1, 1}, .part = "test"});
      }),
      HasSubstr("the split 98,1,1 leaves no document of the corpus for test: it has too few for such a small part"));
}

/// A chat is a list of digits; digits from 5 on are learned.
class DigitChats final : public Tokenizer {
 public:
  const std::string& name() const override { return name_; }
  const std::string& digest() const override { return name_; }
  std::int64_t vocabulary_size() const override { return 10; }
  std::optional<std::int64_t> id_of(std::string_view) const override { return std::nullopt; }
  std::optional<std::int64_t> end_of_document() const override { return std::nullopt; }
  bool is_chat() const override { return true; }
  void encode(const Texts& texts, TokenIds& tokens) const override {
    tokens.clear();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      for (const char c : texts[i]) {
        if (c >= '0' && c <= '9') tokens.ids.push_back(c >= '5' ? c - '0' : ~(c - '0'));
      }
      tokens.ends.push_back(tokens.ids.size());
    }
  }

 private:
  std::string name_ = "digits";
};

TEST(CorpusChats, MaskTheTokensThatAreNotToBeLearned) {
  const Files files = {{"a.jsonl", "{\"messages\":[1,5,2]}\n{\"messages\":[6,7,0,8]}\n{\"messages\":[]}\n"}};
  const auto open = [&](CorpusOptions options) {
    options.tokenizer = std::make_shared<DigitChats>();
    return open_files(files, options);
  };
  HeapMemory memory;
  for (const auto ids : {dtypes::int64, dtypes::int32}) {
    auto cut = open({.sequence = 6, .ids = ids});
    EXPECT_EQ(cut.tokens(), 7);  // no token ends a chat
    EXPECT_THAT(values<float>(cut.read(0, 1, memory).value(), "loss_mask"), ElementsAre(1, 0, 1, 1, 0, 1));
  }
  const auto packed = open({.sequence = 6, .packing = Packing::best_fit}).read(0, 1, memory).value();
  EXPECT_THAT(values<std::int64_t>(packed, "tokens"), ElementsAre(1, 5, 6, 7, 0, 0));
  EXPECT_THAT(values<std::int64_t>(packed, "labels"), ElementsAre(5, 2, 7, 0, 8, 0));
  EXPECT_THAT(values<float>(packed, "loss_mask"), ElementsAre(1, 0, 1, 0, 1, 0));
  auto apart = open({.sequence = 6, .packing = Packing::documents, .pad_to = 3});
  EXPECT_EQ(apart.sizes(0, 9).size(), 2);
  const auto row = apart.gather(std::vector<std::int64_t>{1, 0}, memory);
  EXPECT_THAT(values<std::int64_t>(row, "tokens"), ElementsAre(6, 7, 0, 1, 5, 0));
  EXPECT_THAT(values<std::int64_t>(row, "labels"), ElementsAre(7, 0, 8, 5, 2, 0));
  EXPECT_THAT(values<float>(row, "loss_mask"), ElementsAre(1, 0, 1, 1, 0, 0));
  EXPECT_THAT(fault_of([&] { open({.sequence = 6, .eod_mask_loss = true}); }), HasSubstr("end with a token"));
  EXPECT_THAT(fault_of([&] { open({.sequence = 6, .end_of_document = "3"}); }),
              HasSubstr("eod is 3, but a chat template itself ends a chat"));
  EXPECT_EQ(open({.sequence = 3}).resume(open({.sequence = 3}).cursor(1)), 1);
}

}  // namespace
}  // namespace levada
