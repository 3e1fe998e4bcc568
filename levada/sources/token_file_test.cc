#include "levada/sources/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "levada/base/fault_testing.h"
#include "levada/sources/megatron_testing.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<std::int64_t>;

TokenFile open_bytes(const std::string& idx, const std::string& bin, DocumentShare documents = {}) {
  return {"a.bin", {.documents = documents, .open = open_from({{"a.idx", idx}, {"a.bin", bin}})}};
}

Tokens document_lengths(const TokenFile& file) {
  Tokens lengths;
  file.visit_documents([&](std::int64_t tokens) { lengths.push_back(tokens); });
  return lengths;
}

/// Reads at least two tokens [position, end) through a writer that has already received `before` tokens.
Tokens read(const TokenFile& file, std::int64_t position, std::int64_t end, ReadState& state, std::size_t before = 0) {
  const auto count = before + static_cast<std::size_t>(end - position);
  Tokens tokens(count - 1), labels(count - 1);
  TokenWriter to({tokens}, {labels});
  for (std::size_t i = 0; i < before; ++i) to.write(7);
  file.read(position, end, to, state);
  EXPECT_EQ(to.missing(), 0);
  tokens.push_back(labels.back());
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(before));
  return tokens;
}

TEST(TokenWriter, WritesTokensAndLabelsForAnyChunks) {
  const std::string text = "abcdefghij";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      std::vector<std::int64_t> tokens(9), labels(9);
      TokenWriter to({tokens}, {labels});
      to.write_stored<std::uint8_t>(text.substr(0, first), false);
      EXPECT_EQ(to.missing(), 10 - first);
      for (const char byte : text.substr(first, second - first)) to.write(byte);
      to.write_stored<std::uint8_t>(text.substr(second), false);
      EXPECT_EQ(to.missing(), 0);
      EXPECT_EQ(tokens, std::vector<std::int64_t>(text.begin(), text.end() - 1));
      EXPECT_EQ(labels, std::vector<std::int64_t>(text.begin() + 1, text.end()));
    }
  }
}

TEST(TokenWriter, WritesInt32IfRequested) {
  std::vector<std::int32_t> tokens(3), labels(3);
  TokenWriter to({tokens}, {labels});
  EXPECT_EQ(to.largest(), 2147483647);
  EXPECT_TRUE(to.write_stored<std::uint64_t>(raw_bin<std::int64_t>({5, 2147483647}), true));
  to.write(6);
  EXPECT_TRUE(to.write_stored<std::uint8_t>("\xff", false));
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{5, 2147483647, 6}));
  EXPECT_EQ(labels, (std::vector<std::int32_t>{2147483647, 6, 255}));
  for (const std::int64_t no_id : {std::int64_t{1} << 31, std::int64_t{1} << 40, std::int64_t{-1}}) {
    EXPECT_FALSE(
        TokenWriter({tokens}, {labels}).write_stored<std::uint64_t>(raw_bin<std::int64_t>({1, no_id, 1}), true));
  }
  EXPECT_FALSE(TokenWriter({tokens}, {labels}).write_stored<std::uint16_t>(raw_bin<std::int16_t>({1, -2, 1}), true));
}

TEST(TokenWriter, MasksLabelsThatAreNotToBeLearned) {
  std::vector<std::int64_t> tokens(5), labels(5);
  std::vector<float> loss_mask(5, 1);
  TokenWriter to({tokens}, {labels}, loss_mask);
  to.write_masked(raw_bin<std::int32_t>({~7, 8, ~9}));
  to.write_masked(raw_bin<std::int32_t>({~0, 1, std::numeric_limits<std::int32_t>::min()}));
  EXPECT_EQ(tokens, (Tokens{7, 8, 9, 0, 1}));
  EXPECT_EQ(labels, (Tokens{8, 9, 0, 1, 2147483647}));
  EXPECT_EQ(loss_mask, (std::vector<float>{1, 0, 0, 1, 0}));
}

template <typename T>
void expect_all_reads(std::uint8_t code) {
  const std::vector<T> numbers = {1, 0, 99, std::numeric_limits<T>::max(), 5, 6, 7};
  const auto file = open_bytes(raw_index(code, sizeof(T), {4, 3}, {0, 1, 2}).bytes(), raw_bin(numbers));
  EXPECT_EQ(file.contents().tokens, 7);
  EXPECT_EQ(file.contents().documents, 2);
  for (std::size_t from = 0; from < numbers.size(); ++from) {
    for (auto end = from + 2; end <= numbers.size(); ++end) {
      for (const std::size_t before : {0, 3}) {
        ReadState state;
        EXPECT_EQ(read(file, static_cast<std::int64_t>(from), static_cast<std::int64_t>(end), state, before),
                  Tokens(numbers.begin() + static_cast<std::ptrdiff_t>(from),
                         numbers.begin() + static_cast<std::ptrdiff_t>(end)))
            << from << " to " << end << " of dtype " << int{code};
        EXPECT_EQ(state.stats.bytes_read, (end - from) * sizeof(T));
        EXPECT_EQ(state.stats.bytes_consumed, (end - from - 1) * sizeof(T));
      }
    }
  }
}

TEST(TokenFile, ReadsEveryIntegerTypeAtAnyOffset) {
  expect_all_reads<std::uint8_t>(1);
  expect_all_reads<std::int8_t>(2);
  expect_all_reads<std::int16_t>(3);
  expect_all_reads<std::int32_t>(4);
  expect_all_reads<std::int64_t>(5);
  expect_all_reads<std::uint16_t>(8);
}

TEST(TokenFile, ReadsLongRanges) {
  std::vector<std::int32_t> numbers(1'000'003);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto file = open_bytes(raw_index(4, 4, {1'000'000, 3}, {0, 2}).bytes(), raw_bin(numbers));
  ReadState state;
  EXPECT_EQ(read(file, 1, 1'000'003, state), Tokens(numbers.begin() + 1, numbers.end()));
  EXPECT_EQ(state.stats.bytes_read, 4 * 1'000'002);
}

TEST(TokenFile, ReadsSequencesInIndexOrder) {
  const std::vector<std::int16_t> numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  const RawIndex raw{.dtype = 3, .lengths = {2, 3, 0, 2}, .places = {8, 0, 16, 2}, .documents = {0, 1, 1, 4}};
  const auto file = open_bytes(raw.bytes(), raw_bin(numbers));
  ReadState state;
  EXPECT_EQ(read(file, 0, 7, state), (Tokens{4, 5, 0, 1, 2, 1, 2}));
  EXPECT_EQ(document_lengths(file), (Tokens{2, 0, 5}));
  EXPECT_EQ(read(file, 2, 7, state), (Tokens{0, 1, 2, 1, 2}));
}

TEST(TokenFile, RejectsNegativeTokens) {
  const std::vector<std::int32_t> numbers = {1, 2, 3, -4, 5};
  const auto file = open_bytes(raw_index(4, 4, {5}, {0, 1}).bytes(), raw_bin(numbers));
  ReadState state;
  EXPECT_EQ(read(file, 0, 3, state), (Tokens{1, 2, 3}));
  for (std::int64_t from = 0; from < 4; ++from) {
    EXPECT_EQ(fault_of([&] { read(file, from, 5, state); }),
              "SourceError: a.bin: token 3 is negative, and cannot be fed: write the file again without it");
  }
}

TEST(TokenFile, RejectsTokensOutsideTheVocabulary) {
  const auto numbers = raw_bin<std::uint16_t>({1, 50'256, 50'257, 7});
  const auto idx = raw_index(8, 2, {4}, {0, 1}).bytes();
  const auto fault = [&](std::int64_t vocabulary) {
    return fault_of([&] {
      const TokenFile file("a", {.vocabulary = vocabulary, .open = open_from({{"a.idx", idx}, {"a.bin", numbers}})});
      ReadState state;
      read(file, 0, 4, state);
    });
  };
  for (const auto vocabulary : {0, 50'258, 65'536, 1 << 20}) EXPECT_EQ(fault(vocabulary), "no fault");
  EXPECT_EQ(fault(50'257),
            "SourceError: a.bin: token 2 is 50257, but the tokenizer has 50257 tokens: name the one that the file was "
            "made with (--tokenizer, tokenizer=)");
}

TEST(TokenFile, RejectsTokensTooLargeForInt32) {
  const auto file = open_bytes(raw_index(5, 8, {3}, {0, 1}).bytes(), raw_bin<std::int64_t>({1, 2, 3'000'000'000}));
  std::vector<std::int32_t> tokens(2), labels(2);
  TokenWriter to({tokens}, {labels});
  ReadState state;
  EXPECT_EQ(fault_of([&] { file.read(0, 3, to, state); }),
            "SourceError: a.bin: token 2 is 3000000000, more than int32 holds: use int64 ids (dtype=, --dtype)");
}

TEST(TokenFile, SkipsUnrequestedDocuments) {
  const auto in_order = raw_index(4, 4, {2, 3, 1, 4, 2}, {0, 1, 2, 3, 4, 5});
  auto swapped = in_order;
  std::swap(swapped.places[0], swapped.places[4]);
  const auto bin = raw_bin<std::int32_t>({10, 11, 20, 21, 22, 30, 40, 41, 42, 43, 50, 51});
  for (const auto& raw : {in_order, swapped}) {
    const auto open = [&](double begin, double end) { return open_bytes(raw.bytes(), bin, {begin, end}); };
    const auto some = open(0.2, 0.8);
    EXPECT_EQ(some.contents().documents, 3);
    EXPECT_EQ(some.contents().tokens, 8);
    EXPECT_EQ(some.first_document(), 1);
    EXPECT_EQ(some.contents().digest, open(0, 1).contents().digest);
    ReadState state;
    EXPECT_EQ(read(some, 0, 8, state), (Tokens{20, 21, 22, 30, 40, 41, 42, 43}));
    EXPECT_EQ(read(some, 2, 5, state), (Tokens{22, 30, 40}));
    EXPECT_EQ(document_lengths(some), (Tokens{3, 1, 4}));
    EXPECT_EQ(document_lengths(open(0, 1)), (Tokens{2, 3, 1, 4, 2}));
    EXPECT_EQ(open(0.99, 1).contents().tokens, 0);
    EXPECT_EQ(open(0.8, 1).contents().tokens, 2);
  }
}

TEST(TokenFile, DetectsAnIndexThatChangesBeforeItIsReadAgain) {
  const auto whole = raw_index(1, 1, {2, 3, 1, 4}, {0, 1, 3, 4}).bytes();
  MemoryFile* idx = nullptr;
  const auto open = [&](const std::string& path) {
    const bool is_idx = path == "a.idx";
    auto made = std::make_unique<MemoryFile>(path, is_idx ? whole : "0123456789");
    if (is_idx) idx = made.get();
    return made;
  };
  const TokenFile file("a.idx", {.open = open});
  EXPECT_EQ(document_lengths(file), (Tokens{2, 4, 4}));
  const auto changed = "SourceError: a.idx: it has changed since it was read";
  for (const auto& other : {raw_index(1, 1, {2, 3, 1, 3}, {0, 1, 3, 4}), raw_index(1, 1, {2, 3, 1, 5}, {0, 1, 3, 4}),
                            raw_index(1, 1, {2, -3, 1, 4}, {0, 1, 3, 4}), raw_index(1, 1, {2, 3, 1, 4}, {0, 3, 1, 4}),
                            raw_index(1, 1, {2, 3, 1, 4}, {0, 1, 3, 5}), raw_index(1, 1, {2, 3, 5, 4}, {0, 1, 3, 3})}) {
    idx->content = other.bytes();
    EXPECT_EQ(fault_of([&] { document_lengths(file); }), changed);
  }
  idx->content = whole.substr(0, 40);
  EXPECT_THAT(fault_of([&] { document_lengths(file); }), HasSubstr("it was cut off while it was being read"));
  idx->content = whole;
  idx->now.modified_ns += 1;
  EXPECT_THAT(fault_of([&] { document_lengths(file); }), HasSubstr("a.idx was written to while it was being read"));
}

TEST(TokenFile, RejectsNumbersThatAreNotTokens) {
  const auto idx = raw_index(7, 4, {2}, {0, 1}).bytes();
  EXPECT_EQ(fault_of([&] {
              open_bytes(idx, raw_bin<float>({1, 2}));
            }),
            "SourceError: a.bin holds float32 numbers, and tokens are integers: it cannot be fed");
}

TEST(TokenFile, DetectsAShrinkingBin) {
  MemoryFile* bin = nullptr;
  const auto open = [&](const std::string& path) {
    const bool is_bin = path == "a.bin";
    auto made = std::make_unique<MemoryFile>(path, is_bin ? "0123456789" : raw_index(1, 1, {10}, {0, 1}).bytes());
    if (is_bin) bin = made.get();
    return made;
  };
  const TokenFile file("a.idx", {.open = open});
  bin->content.resize(8);
  ReadState state;
  EXPECT_THAT(fault_of([&] { read(file, 5, 10, state); }), HasSubstr("a.bin ends at byte 8, 2 bytes short"));
  bin->now.size = 8;
  EXPECT_THAT(fault_of([&] { file.check(); }), HasSubstr("a.bin shrank from 10 to 8 bytes"));
}

TEST(TokenFile, IsFoundByItsPrefixOrEitherName) {
  const ScratchDir dir;
  dir.write("my.data.idx", raw_index(1, 1, {3}, {0, 1}).bytes());
  EXPECT_THAT(fault_of([&] { TokenFile(dir.file("my.data"), {}); }), HasSubstr("my.data.bin: No such file"));
  dir.write("my.data.bin", "abc");
  const auto digest = TokenFile(dir.file("my.data"), {}).contents().digest;
  EXPECT_EQ(TokenFile(dir.file("my.data.bin"), {}).contents().digest, digest);
  EXPECT_EQ(TokenFile(dir.file("my.data.idx"), {}).contents().digest, digest);
  EXPECT_THAT(fault_of([&] { TokenFile(dir.file("other.idx"), {}); }), HasSubstr("other.idx: No such file"));
  EXPECT_THAT(fault_of([&] { TokenFile(dir.file("other"), {}); }), HasSubstr("SourceError: cannot open"));
}

TEST(TokenFile, DigestCoversIndexSizeAndSampledTokens) {
  const auto idx = raw_index(1, 1, {1 << 20}, {0, 1}).bytes();
  std::string bin(1 << 20, 'a');
  const auto digest = open_bytes(idx, bin).contents().digest;
  EXPECT_EQ(open_bytes(idx, bin).contents().digest, digest);
  for (const std::size_t at : {std::size_t{0}, std::size_t{4095}, bin.size() - 1}) {
    bin[at] = 'b';
    EXPECT_NE(open_bytes(idx, bin).contents().digest, digest) << at;
    bin[at] = 'a';
  }
  const auto other = raw_index(1, 1, {1 << 19, 1 << 19}, {0, 2}).bytes();
  EXPECT_NE(open_bytes(other, bin).contents().digest, digest);
}

}  // namespace
}  // namespace levada
