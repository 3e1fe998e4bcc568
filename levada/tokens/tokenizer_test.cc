#include "levada/tokens/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "levada/base/fault_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Knows some tokens by name, but cannot encode.
class Vocabulary final : public Tokenizer {
 public:
  explicit Vocabulary(std::map<std::string, std::int64_t, std::less<>> tokens,
                      std::optional<std::int64_t> end_of_document = {})
      : tokens_(std::move(tokens)), end_of_document_(end_of_document) {}

  const std::string& name() const override { return name_; }
  const std::string& digest() const override { return name_; }
  std::int64_t vocabulary_size() const override { return 1000; }
  std::optional<std::int64_t> id_of(std::string_view token) const override {
    const auto found = tokens_.find(token);
    return found == tokens_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<std::int64_t> end_of_document() const override { return end_of_document_; }
  void encode(const Texts& /*texts*/, TokenIds& /*tokens*/) const override {}

 private:
  std::string name_ = "words.model";
  std::map<std::string, std::int64_t, std::less<>> tokens_;
  std::optional<std::int64_t> end_of_document_;
};

TEST(ByteTokenizer, EncodesEachByteOfUtf8AsAToken) {
  Texts texts;
  for (const auto* text : {"a\xc3\xa9", "", "b"}) texts.add(text);
  TokenIds tokens{.ids = {7, 7, 7, 7, 7}, .ends = {1}};
  const auto bytes = byte_tokenizer();
  bytes->encode(texts, tokens);
  EXPECT_THAT(tokens.ids, ElementsAre('a', 0xc3, 0xa9, 'b'));
  EXPECT_THAT(tokens.ends, ElementsAre(3, 3, 4));
  EXPECT_EQ(bytes->vocabulary_size(), 257);
  EXPECT_EQ(bytes->id_of("\xff"), 255);
  EXPECT_EQ(bytes->id_of("ab"), std::nullopt);
}

TEST(EndOfDocument, IsFoundByNumberOrText) {
  const Vocabulary words({{"<end>", 5}, {"17", 9}}, 2);
  EXPECT_EQ(choose_end_of_document(words, "<end>"), 5);
  EXPECT_EQ(choose_end_of_document(words, "17"), 17);
  EXPECT_EQ(choose_end_of_document(words, "18"), 18);
  EXPECT_EQ(choose_end_of_document(*byte_tokenizer(), "256"), 256);
  for (const auto* none : {"1000", "-1", "<none>", "1x", "\x1b"}) {
    EXPECT_THAT(fault_of([&] { choose_end_of_document(words, none); }),
                HasSubstr("InvalidArgument: words.model has no token "))
        << none;
  }
  EXPECT_EQ(
      fault_of([&] { choose_end_of_document(words, "\x1b"); }),
      "InvalidArgument: words.model has no token \\x1b to end documents with: name one of its 1000 tokens, by its "
      "number or its text");
}

TEST(EndOfDocument, DefaultsToTheTokenizersOwnOrACommonOne) {
  EXPECT_EQ(choose_end_of_document(*byte_tokenizer(), ""), 256);
  EXPECT_EQ(choose_end_of_document(Vocabulary({{"</s>", 5}}, 2), ""), 2);
  EXPECT_EQ(choose_end_of_document(Vocabulary({{"</s>", 5}, {"<|endoftext|>", 6}, {"<eod>", 7}}), ""), 6);
  EXPECT_EQ(choose_end_of_document(Vocabulary({{"</s>", 5}, {"<eod>", 7}}), ""), 5);
  EXPECT_EQ(choose_end_of_document(Vocabulary({{"<eod>", 7}}), ""), 7);
  EXPECT_EQ(fault_of([] {
              choose_end_of_document(Vocabulary({{"a", 0}}), "");
            }),
            "InvalidArgument: words.model does not say which token ends a document: name it (--eod TOKEN, "
            "eod=\"TOKEN\")");
}

}  // namespace
}  // namespace levada
