#include "levada/sources/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string fault_of(const std::string& path, const std::string& content) {
  try {
    open_token_file(path, {.open = open_from({{path, content}})});
  } catch (const Error& error) {
    return std::string(error.name()) + ": " + error.what();
  }
  return "no fault";
}

TEST(TokenWriter, LaysTokensOutWithTheirLabelsHoweverTheyCome) {
  const std::string text = "abcdefghij";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      std::vector<std::int64_t> tokens(9), labels(9);
      TokenWriter to(tokens, labels);
      to.write_bytes(text.substr(0, first));
      EXPECT_EQ(to.missing(), 10 - first);
      for (const char byte : text.substr(first, second - first)) to.write(byte);
      to.write_bytes(text.substr(second));
      EXPECT_EQ(to.missing(), 0);
      EXPECT_EQ(tokens, std::vector<std::int64_t>(text.begin(), text.end() - 1));
      EXPECT_EQ(labels, std::vector<std::int64_t>(text.begin() + 1, text.end()));
    }
  }
}

TEST(TokenFile, SaysWhichKindsAreRead) {
  EXPECT_THAT(fault_of("a.csv", "x"),
              AllOf(HasSubstr("InvalidArgument: a.csv"), HasSubstr(".jsonl"), HasSubstr(".txt")));
}

TEST(TokenFile, RefusesAnEmptyFile) {
  EXPECT_EQ(fault_of("a.txt", ""), "SourceError: a.txt is empty");
  EXPECT_EQ(fault_of("a.jsonl", ""), "SourceError: a.jsonl is empty");
}

TEST(TextFile, IsOneDocument) {
  const auto file = open_token_file("a.txt", {.stride = 2, .open = open_from({{"a.txt", std::string("a\0\n", 3)}})});
  EXPECT_EQ(file->contents().documents, 1);
  EXPECT_EQ(file->contents().tokens, 4);
  std::vector<std::int64_t> tokens(3), labels(3);
  TokenWriter to(tokens, labels);
  ReadState state;
  file->read(0, 4, to, state);
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{'a', 0, '\n'}));
  EXPECT_EQ(labels, (std::vector<std::int64_t>{0, '\n', end_of_document}));
  EXPECT_EQ(state.stats.bytes_read, 3);
  EXPECT_EQ(state.stats.bytes_consumed, 3);
}

TEST(TextFile, NamesTheByteWhereItIsNotUtf8) {
  EXPECT_EQ(fault_of("a.txt", "ab\xff"), "SourceError: a.txt is not UTF-8 at byte 2");
  EXPECT_THAT(fault_of("a.txt", "ab\xe2\x82"), HasSubstr("at byte 2"));
  // Characters and faults at every place about the border of two pieces.
  constexpr std::size_t border = std::size_t{256} << 10;
  for (std::size_t at = border - 8; at < border + 8; ++at) {
    const auto good = std::string(at, 'a') + "\U0001f600" + std::string(1000, 'b');
    EXPECT_EQ(fault_of("a.txt", good), "no fault") << at;
    auto bad = good;
    bad[at + 2] = 'x';
    EXPECT_THAT(fault_of("a.txt", bad), HasSubstr("at byte " + std::to_string(at))) << at;
  }
}

TEST(TokenFile, ReadsTheFileOnceAndFindsItsIndexLater) {
  const ScratchDir dir;
  const auto path = dir.write("a.jsonl", "{\"text\":\"hello\"}\n");
  const TokenFileOptions options{.stride = 2, .cache_dir = dir.file("cache")};
  const auto first = open_token_file(path, options);
  EXPECT_EQ(first->index_bytes(), 17);
  const auto again = open_token_file(path, options);
  EXPECT_EQ(again->index_bytes(), 0);
  EXPECT_EQ(again->contents(), first->contents());
  // A name for the same file finds it, too.
  std::filesystem::create_symlink(path, dir.file("b.jsonl"));
  EXPECT_EQ(open_token_file(dir.file("b.jsonl"), options)->index_bytes(), 0);
  dir.write("a.jsonl", "{\"text\":\"hello, you\"}\n");
  const auto changed = open_token_file(path, options);
  EXPECT_EQ(changed->index_bytes(), 22);
  EXPECT_EQ(changed->contents().tokens, 11);
}

TEST(TokenFile, ReadsLinesThatBeginWithAByteOrderMark) {
  const std::string mark = "\xef\xbb\xbf";
  const auto content =
      mark + "{\"text\":\"ab\"}\n" + mark + "{\"a\":NaN,\"b\":\"\\ud800\",\"text\":\"cd\"}\n" + mark + "\n";
  for (const std::int64_t phase : {0, 1}) {
    const auto file =
        open_token_file("a.jsonl", {.stride = 2, .phase = phase, .open = open_from({{"a.jsonl", content}})});
    ASSERT_EQ(file->contents().tokens, 6);
    std::vector<std::int64_t> tokens(5), labels(5);
    TokenWriter to(tokens, labels);
    ReadState state;
    file->read(0, 6, to, state);
    EXPECT_EQ(tokens, (std::vector<std::int64_t>{'a', 'b', end_of_document, 'c', 'd'}));
    EXPECT_EQ(labels.back(), end_of_document);
  }
}

TEST(TokenFile, NoticesOtherContentOfTheSameSizeAndTimeOfWriting) {
  const ScratchDir dir;
  const auto path = dir.write("a.jsonl", "{\"text\":\"hello\"}\n");
  const auto written = std::filesystem::last_write_time(path);
  const TokenFileOptions options{.stride = 2, .cache_dir = dir.file("cache")};
  const auto digest = open_token_file(path, options)->contents().digest;
  const auto before = open_file(path)->identity().changed_ns;
  while (open_file(path)->identity().changed_ns == before) {  // The clock of a file system may tick slowly.
    dir.write("a.jsonl", "{\"text\":\"there\"}\n");
    std::filesystem::last_write_time(path, written);
  }
  EXPECT_NE(open_token_file(path, options)->contents().digest, digest);
}

TEST(TokenFile, ForgetsAnIndexThatTurnsOutNotToBeOfTheFile) {
  const ScratchDir dir;
  MemoryFile* memory = nullptr;
  const TokenFileOptions options{.stride = 2, .cache_dir = dir.file("cache"), .open = [&](const auto& path) {
                                   auto made = std::make_unique<MemoryFile>(path, "{\"text\":\"hello\"}\n");
                                   memory = made.get();
                                   return made;
                                 }};
  open_token_file("a.jsonl", options);
  const auto again = open_token_file("a.jsonl", options);
  EXPECT_EQ(again->index_bytes(), 0);
  memory->content[10] = '"';
  std::vector<std::int64_t> tokens(5), labels(5);
  TokenWriter to(tokens, labels);
  ReadState state;
  EXPECT_THROW(again->read(0, 6, to, state), SourceError);
  EXPECT_GT(open_token_file("a.jsonl", options)->index_bytes(), 0);
}

TEST(TokenFile, SaysWhyAnIndexCannotBeKept) {
  const ScratchDir dir;
  std::vector<std::string> warnings;
  const auto path = dir.write("a.txt", "hello");
  open_token_file(path,
                  {.cache_dir = path + "/cache", .warn = [&](const auto& warning) { warnings.push_back(warning); }});
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings.front(),
              AllOf(HasSubstr("cannot create " + path + "/cache/"), HasSubstr("every run reads all of " + path)));
}

/// Tokens [from, end) of a document.
std::vector<std::int64_t> part_of(const TokenFile& file, std::int64_t document, std::int64_t from, std::int64_t end,
                                  ReadState& state) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(end - from - 1)), labels(tokens.size());
  TokenWriter to(tokens, labels);
  file.read_document(document, from, end, to, state);
  EXPECT_EQ(to.missing(), 0);
  tokens.push_back(labels.back());
  return tokens;
}

TEST(TokenFile, GivesEachDocumentOnItsOwnFromAnyOfItsCuts) {
  const std::vector<std::string> texts = {"hello, world", "", "a\\u00e9\\ud83d\\ude00\\n", "12345678"};
  std::string content = "bad\n";
  for (const auto& text : texts) content += "{\"id\":[1],\"text\":\"" + text + "\",\"more\":\"text\"}\nbad\n\n";
  const auto plain = [](const std::string& text) {
    std::vector<std::int64_t> tokens;
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    tokens.push_back(end_of_document);
    return tokens;
  };
  const std::vector<std::vector<std::int64_t>> wanted = {plain("hello, world"), plain(""),
                                                         plain("a\xc3\xa9\xf0\x9f\x98\x80\n"), plain("12345678")};
  for (const std::int64_t stride : {1, 2, 3, 4, 8, 100}) {
    const auto file = open_token_file(
        "a.jsonl",
        {.skip_bad = true, .stride = stride, .by_document = true, .open = open_from({{"a.jsonl", content}})});
    ASSERT_EQ(file->contents().documents, 4);
    ReadState state;
    for (std::int64_t document = 0; document < 4; ++document) {
      const auto& tokens = wanted[static_cast<std::size_t>(document)];
      const auto length = static_cast<std::int64_t>(tokens.size());
      ASSERT_EQ(file->document_tokens(document), length);
      for (std::int64_t from = 0; from + 1 < length; from += stride) {
        const auto end = std::min(from + stride + 1, length);
        EXPECT_EQ(part_of(*file, document, from, end, state), std::vector(tokens.begin() + from, tokens.begin() + end))
            << document << " from " << from << " by " << stride;
        EXPECT_EQ(part_of(*file, document, from, length, state), std::vector(tokens.begin() + from, tokens.end()));
      }
    }
  }
}

TEST(TokenFile, KeepsTheIndexOfDocumentsApartFromThatOfCuts) {
  const ScratchDir dir;
  const auto path = dir.write("a.jsonl", "{\"text\":\"hello\"}\n{\"text\":\"you\"}\n");
  TokenFileOptions options{.stride = 2, .by_document = true, .cache_dir = dir.file("cache")};
  open_token_file(path, options);
  const auto again = open_token_file(path, options);
  EXPECT_EQ(again->index_bytes(), 0);
  EXPECT_EQ(again->document_tokens(1), 4);
  ReadState state;
  EXPECT_EQ(part_of(*again, 0, 2, 5, state), (std::vector<std::int64_t>{'l', 'l', 'o'}));
  options.by_document = false;
  EXPECT_GT(open_token_file(path, options)->index_bytes(), 0);
}

TEST(TokenFile, NoticesADocumentOfAnotherLengthThoughTheFileLooksTheSame) {
  const std::string content = "{\"text\":\"hello\"}\n{\"text\":\"you, too\"}\n";
  for (const auto& [at, byte] : {std::pair{9U, '"'}, std::pair{13U, '"'}, std::pair{14U, 'x'}}) {
    MemoryFile* memory = nullptr;
    const auto file = open_token_file("a.jsonl", {.stride = 100, .by_document = true, .open = [&](const auto& path) {
                                                    auto made = std::make_unique<MemoryFile>(path, content);
                                                    memory = made.get();
                                                    return made;
                                                  }});
    memory->content[at] = byte;
    ReadState state;
    EXPECT_THROW(part_of(*file, 0, 0, 6, state), SourceError) << at;
  }
}

}  // namespace
}  // namespace levada
