#include "levada/tokens/sentencepiece/sentencepiece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <unordered_map>

#include "levada/base/fault_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

using Settings = std::unordered_map<std::string, std::string>;

/// Trains a model of a few words, with these additional settings, and returns its path.
std::string train(const ScratchDir& dir, const std::string& name, Settings settings = {}) {
  std::string words;
  for (int i = 0; i < 200; ++i) words += "the quick brown fox " + std::to_string(i) + " jumps over the lazy dog\n";
  settings.insert({{"input", dir.write("words.txt", words)},
                   {"model_prefix", dir.file(name)},
                   {"vocab_size", "60"},
                   {"minloglevel", "2"}});
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return dir.file(name + ".model");
}

TEST(SentencePiece, MatchesTheSentencePieceLibrary) {
  const ScratchDir dir;
  const Settings bytes = {{"model_type", "bpe"}, {"byte_fallback", "true"}, {"vocab_size", "320"}};
  for (const auto& settings : {Settings{}, bytes}) {
    const auto path = train(dir, "a", settings);
    sentencepiece::SentencePieceProcessor own;
    ASSERT_TRUE(own.Load(path).ok());
    const auto tokenizer = open_sentencepiece(path);
    EXPECT_EQ(tokenizer->vocabulary_size(), own.GetPieceSize());
    Texts texts;
    TokenIds tokens, wanted;
    for (const auto* text : {"the lazy  fox\n", "", "caf\xc3\xa9 \U0001f600", "dog"}) {
      texts.add(text);
      for (const int id : own.EncodeAsIds(text)) wanted.ids.push_back(id);
      wanted.ends.push_back(wanted.ids.size());
    }
    tokenizer->encode(texts, tokens);
    tokenizer->encode(texts, tokens);  // Replaces the previous content.
    EXPECT_EQ(tokens.ids, wanted.ids);
    EXPECT_EQ(tokens.ends, wanted.ends);
    EXPECT_EQ(tokens.ends[1], tokens.ends[0]) << "an empty text has no tokens";
  }
}

TEST(SentencePiece, FindsTokensByText) {
  const ScratchDir dir;
  const auto tokenizer = open_sentencepiece(train(dir, "a", {{"user_defined_symbols", "<sep>"}}));
  EXPECT_EQ(tokenizer->id_of("</s>"), 2);
  EXPECT_EQ(tokenizer->id_of("<sep>"), 3);
  EXPECT_EQ(tokenizer->id_of("<unk>"), 0);
  EXPECT_EQ(tokenizer->id_of("<none>"), std::nullopt);
  EXPECT_EQ(tokenizer->end_of_document(), 2);
  EXPECT_EQ(open_sentencepiece(train(dir, "b", {{"eos_id", "-1"}}))->end_of_document(), std::nullopt);
}

TEST(SentencePiece, DigestDependsOnTheModelNotOnItsName) {
  const ScratchDir dir;
  const auto path = train(dir, "a");
  std::filesystem::copy_file(path, dir.file("copy.model"));
  const auto digest = open_sentencepiece(path)->digest();
  EXPECT_EQ(open_sentencepiece(dir.file("copy.model"))->digest(), digest);
  EXPECT_NE(open_sentencepiece(train(dir, "b", {{"vocab_size", "50"}}))->digest(), digest);
}

TEST(SentencePiece, NamesAFileThatIsNotAModel) {
  const ScratchDir dir;
  EXPECT_THAT(fault_of([&] { open_sentencepiece(dir.file("none.model")); }), HasSubstr("none.model: No such file"));
  const auto junk = dir.write("junk.model", "this is none");
  EXPECT_THAT(fault_of([&] { open_sentencepiece(junk); }),
              HasSubstr("SourceError: " + junk + " is not a SentencePiece model, or is damaged: name"));
  const auto path = train(dir, "a");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THAT(fault_of([&] { open_sentencepiece(path); }), HasSubstr("is not a SentencePiece model"));
  EXPECT_THAT(fault_of([&] { open_sentencepiece(dir.write("empty.model", "")); }), HasSubstr("is not a SentencePiece"));
}

}  // namespace
}  // namespace levada
