#include "levada/sources/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"
#include "levada/sources/memory_file.h"
#include "levada/sources/scratch_dir.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string fault_of(const std::string& path, const std::string& content) {
  try {
    open_token_file(std::make_unique<MemoryFile>(path, content), {});
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
  const auto file = open_token_file(std::make_unique<MemoryFile>("a.txt", std::string("a\0\n", 3)), {.stride = 2});
  EXPECT_EQ(file->contents().documents, 1);
  EXPECT_EQ(file->contents().tokens, 4);
  std::vector<std::int64_t> tokens(3), labels(3);
  TokenWriter to(tokens, labels);
  ReadStats stats;
  file->read(0, 4, to, stats);
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{'a', 0, '\n'}));
  EXPECT_EQ(labels, (std::vector<std::int64_t>{0, '\n', end_of_document}));
  EXPECT_EQ(stats.bytes_read, 3);
  EXPECT_EQ(stats.bytes_consumed, 3);
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
  const auto first = open_token_file(open_file(path), options);
  EXPECT_EQ(first->index_bytes(), 17);
  const auto again = open_token_file(open_file(path), options);
  EXPECT_EQ(again->index_bytes(), 0);
  EXPECT_EQ(again->contents(), first->contents());
  // A name for the same file finds it, too.
  std::filesystem::create_symlink(path, dir.file("b.jsonl"));
  EXPECT_EQ(open_token_file(open_file(dir.file("b.jsonl")), options)->index_bytes(), 0);
  dir.write("a.jsonl", "{\"text\":\"hello, you\"}\n");
  const auto changed = open_token_file(open_file(path), options);
  EXPECT_EQ(changed->index_bytes(), 22);
  EXPECT_EQ(changed->contents().tokens, 11);
}

}  // namespace
}  // namespace levada
