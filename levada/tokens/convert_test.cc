#include "levada/sources/conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "levada/base/fault_testing.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"
#include "levada/sources/token_file.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

std::vector<std::int64_t> all_tokens(const TokenFile& file) {
  const auto count = static_cast<std::size_t>(file.contents().tokens);
  std::vector<std::int64_t> tokens(count - 1), labels(count - 1);
  TokenWriter to(tokens, labels);
  ReadState state;
  file.read(0, static_cast<std::int64_t>(count), to, state);
  tokens.push_back(labels.back());
  return tokens;
}

/// A few thousand documents with escapes of all kinds, and one that is longer than a block.
std::string many_documents() {
  std::string lines;
  for (int i = 0; i < 3000; ++i) {
    lines += "{\"id\":" + std::to_string(i) + ",\"text\":\"";
    for (int word = 0; word < i % 60; ++word)
      lines += "w\\u00e9rd\\n\\t\\\"\\ud83d\\ude00 \xc3\xa9" + std::to_string(word);
    lines += "\"}\n";
  }
  return lines + "{\"text\":\"" + std::string(2'000'000, 'x') + "\"}\n{\"text\":\"\"}";
}

TEST(Conversion, KeepsEveryTokenAndDocument) {
  const ScratchDir dir;
  const auto open = open_from({{"a.jsonl", many_documents()}, {"b.txt", "plain \xc3\xa9 text"}});
  const auto first = open_token_file("a.jsonl", {.by_document = true, .open = open});
  auto wanted = all_tokens(*open_token_file("a.jsonl", {.open = open}));
  const auto text = all_tokens(*open_token_file("b.txt", {.open = open}));
  wanted.insert(wanted.end(), text.begin(), text.end());
  for (const auto dtype : {dtypes::uint16, dtypes::int16, dtypes::int32, dtypes::int64}) {
    const auto done = convert_to_megatron({"a.jsonl", "b.txt"}, dir.file("out"),
                                          {.dtype = dtype, .append_eod = true, .overwrite = true, .open = open});
    EXPECT_EQ(done.documents, 3003);
    const auto made = open_token_file(dir.file("out"), {.by_document = true});
    EXPECT_EQ(all_tokens(*made), wanted) << dtype.name();
    EXPECT_EQ(made->contents().documents, 3003);
    for (std::int64_t i = 0; i < 3002; ++i) ASSERT_EQ(made->document_tokens(i), first->document_tokens(i));
    EXPECT_EQ(done.bytes_written,
              std::filesystem::file_size(done.paths.bin) + std::filesystem::file_size(done.paths.idx));
  }
}

TEST(Conversion, TakesTheNarrowestNumbers) {
  const ScratchDir dir;
  const auto open = open_from({{"a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"\"}\n{\"text\":\"c\"}"}});
  const auto plain = convert_to_megatron({"a.jsonl"}, dir.file("a"), {.open = open});
  EXPECT_EQ(plain.dtype, dtypes::uint8);
  EXPECT_EQ(plain.documents, 3);
  EXPECT_EQ(plain.sequences, 3);
  EXPECT_EQ(all_tokens(*open_token_file(dir.file("a"), {})), (std::vector<std::int64_t>{'a', 'b', 'c'}));
  const auto ended = convert_to_megatron({"a.jsonl"}, dir.file("b"), {.append_eod = true, .open = open});
  EXPECT_EQ(ended.dtype, dtypes::uint16);
  EXPECT_EQ(ended.tokens, 6);
}

TEST(Conversion, RefusesWhatCannotBe) {
  const ScratchDir dir;
  const auto open = open_from({{"a.jsonl", "{\"text\":\"ab\"}"}, {"a.csv", "x"}});
  const auto convert = [&](const std::string& from, ConversionOptions options) {
    options.open = open;
    return fault_of([&] { convert_to_megatron({from}, dir.file("out"), options); });
  };
  EXPECT_THAT(convert("a.jsonl", {.dtype = dtypes::uint8, .append_eod = true}), HasSubstr("choose uint16"));
  EXPECT_THAT(convert("a.jsonl", {.dtype = dtypes::int8}), HasSubstr("bytes do not fit in int8"));
  EXPECT_THAT(convert("a.csv", {}), HasSubstr("InvalidArgument: a.csv is no text"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Conversion, LeavesNothingWhenTheTextIsBad) {
  const ScratchDir dir;
  const auto many = many_documents();
  const auto open = open_from({{"a.jsonl", many + "\n{\"text\":\"\\x\"}\n{\"text\":\"good\"}\n"},
                               {"none.jsonl", "\n \n"},
                               {"empty.txt", ""},
                               {"latin.txt", "caf\xe9"}});
  const auto convert = [&](const std::string& from, bool skip_bad = false) {
    return fault_of([&] {
      const auto done = convert_to_megatron({from}, dir.file("out"), {.skip_bad = skip_bad, .open = open});
      EXPECT_EQ(done.bad_lines, 1);
      EXPECT_EQ(done.documents, 3003);
    });
  };
  EXPECT_THAT(convert("a.jsonl"), HasSubstr("SourceError: a.jsonl:3003: the line cannot be used"));
  EXPECT_THAT(convert("none.jsonl"), HasSubstr("none.jsonl holds no documents"));
  EXPECT_THAT(convert("empty.txt"), HasSubstr("empty.txt is empty"));
  EXPECT_THAT(convert("latin.txt"), HasSubstr("latin.txt is not UTF-8 at byte 3"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_EQ(convert("a.jsonl", true), "no fault");
}

TEST(Conversion, StopsReadingWhenTheDiskIsFullOrTheCallerHasEnough) {
  const ScratchDir dir;
  std::string lines;
  while (lines.size() < std::size_t{16} << 20) lines += "{\"text\":\"" + std::string(1000, 'x') + "\"}\n";
  const auto open = open_from({{"a.jsonl", lines}});
  const auto full = [](int, const void*, std::size_t) -> ssize_t {
    errno = ENOSPC;
    return -1;
  };
  EXPECT_THAT(fault_of([&] { convert_to_megatron({"a.jsonl"}, dir.file("out"), {.open = open, .write = full}); }),
              HasSubstr("the disk is full"));
  struct Enough {};
  const auto stop = [](std::uint64_t /*done*/, std::uint64_t /*in_all*/) { throw Enough(); };
  EXPECT_THROW(convert_to_megatron({"a.jsonl"}, dir.file("out"), {.progress = stop, .open = open}), Enough);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace levada
