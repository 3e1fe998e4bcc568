#include "levada/sources/megatron_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/sources/megatron_testing.h"
#include "levada/sources/memory_file_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Decoded {
  MegatronIndex index;
  std::vector<std::int64_t> document_tokens;
};

Decoded decode(const std::string& idx, std::size_t bin_bytes) {
  std::vector<std::int64_t> documents;
  auto index = read_megatron_index(MemoryFile("a.idx", idx), MemoryFile("a.bin", std::string(bin_bytes, '\0')),
                                   {.on_document = [&](std::int64_t tokens) { documents.push_back(tokens); }});
  return {std::move(index), std::move(documents)};
}

std::string index_fault_of(const std::string& idx, std::size_t bin_bytes) {
  try {
    decode(idx, bin_bytes);
  } catch (const SourceError& error) {
    return error.what();
  }
  return "no fault";
}

/// Five two-byte tokens in three sequences, which form two documents.
RawIndex some_index() {
  return raw_index(8, 2, {2, 0, 3}, {0, 2, 3});
}

TEST(MegatronIndex, SupportsAllEightTypes) {
  const std::vector<std::pair<DType, std::int64_t>> types = {
      {dtypes::uint8, 1}, {dtypes::int8, 1},    {dtypes::int16, 2},   {dtypes::int32, 4},
      {dtypes::int64, 8}, {dtypes::float64, 8}, {dtypes::float32, 4}, {dtypes::uint16, 2}};
  for (std::uint8_t code = 1; code <= 8; ++code) {
    const auto& [dtype, bytes] = types[code - 1U];
    const auto index = decode(raw_index(code, bytes, {3, 4}, {0, 1, 2}).bytes(), static_cast<std::size_t>(7 * bytes));
    EXPECT_EQ(index.index.dtype, dtype);
    EXPECT_EQ(index.index.tokens(), 7);
    EXPECT_EQ(index.index.runs.find(3), (TokenRuns::Place{static_cast<std::uint64_t>(3 * bytes), 4}));
    EXPECT_EQ(megatron_code(dtype), code);
  }
  EXPECT_EQ(megatron_code(dtypes::bfloat16), std::nullopt);
}

TEST(MegatronIndex, DistinguishesDocumentsFromSequences) {
  const auto decoded = decode(some_index().bytes(), 10);
  EXPECT_EQ(decoded.index.sequences, 3);
  EXPECT_EQ(decoded.index.documents, 2);
  EXPECT_THAT(decoded.document_tokens, ElementsAre(2, 3));
  EXPECT_FALSE(decoded.index.has_modes);
  const auto empty_documents = decode(raw_index(1, 1, {1}, {0, 0, 1, 1}).bytes(), 1);
  EXPECT_THAT(empty_documents.document_tokens, ElementsAre(0, 1, 0));
  const auto none = decode(raw_index(1, 1, {}, {0}).bytes(), 0);
  EXPECT_EQ(none.index.documents, 0);
  EXPECT_EQ(none.index.tokens(), 0);
}

TEST(MegatronIndex, IsNamedByEitherFileOrTheirPrefix) {
  for (const std::string name : {"d/a", "d/a.bin", "d/a.idx"}) {
    EXPECT_EQ(MegatronPaths::of(name).bin, "d/a.bin");
    EXPECT_EQ(MegatronPaths::of(name).idx, "d/a.idx");
  }
  EXPECT_EQ(MegatronPaths::of("https://h/a.bin?sig=b").bin, "https://h/a.bin?sig=b");
  EXPECT_EQ(MegatronPaths::of("https://h/a.bin?sig=b").idx, "https://h/a.idx?sig=b");
}

TEST(MegatronIndex, DetectsModes) {
  auto raw = some_index();
  raw.modes = {0, 1, -1};
  const auto index = decode(raw.bytes(), 10).index;
  EXPECT_TRUE(index.has_modes);
  EXPECT_EQ(index.tokens(), 5);
  const auto digest = index.digest;
  raw.modes[1] = 2;
  EXPECT_NE(decode(raw.bytes(), 10).index.digest, digest);
}

TEST(MegatronIndex, FollowsSequencesInAnyOrder) {
  RawIndex raw{.dtype = 8, .lengths = {2, 3, 1, 2}, .places = {10, 0, 6, 0}, .documents = {0, 4}};
  const auto runs = decode(raw.bytes(), 20).index.runs;
  EXPECT_EQ(runs.tokens(), 8);
  EXPECT_EQ(runs.find(1), (TokenRuns::Place{12, 1}));
  EXPECT_EQ(runs.find(2), (TokenRuns::Place{0, 4}));  // Contiguous tokens form one run.
  EXPECT_EQ(runs.find(5), (TokenRuns::Place{6, 1}));
  EXPECT_EQ(runs.find(7), (TokenRuns::Place{2, 1}));
}

TEST(MegatronIndex, ReportsTheMemoryForOutOfOrderSequences) {
  constexpr std::int32_t count = 2'000'000;
  RawIndex raw{.dtype = 1, .documents = {0, count}};
  raw.lengths.assign(count, 1);
  for (std::int32_t i = 0; i < count; ++i) raw.places.push_back(i);
  std::uint64_t announced = 0;
  const auto read = [&](RawIndex& index) {
    return read_megatron_index(MemoryFile("a.idx", index.bytes()), MemoryFile("a.bin", std::string(count, ' ')),
                               {.on_more_runs = [&](std::uint64_t bytes) { announced += bytes; }});
  };
  read(raw);
  EXPECT_EQ(announced, 0);
  std::ranges::reverse(raw.places);
  const auto taken = read(raw).runs.bytes();
  EXPECT_GE(taken, 12 * std::uint64_t{count});
  EXPECT_GE(announced + (1 << 20), taken);
  EXPECT_LE(announced, taken + (16 << 20));
}

TEST(MegatronIndex, FindsPositionsAmongManySequencesInAnyOrder) {
  constexpr std::int32_t count = 100'000;
  RawIndex raw{.dtype = 1, .documents = {0, count}};
  for (std::int32_t i = 0; i < count; ++i) {
    raw.lengths.push_back(i % 5);
    raw.places.push_back(std::int64_t{(count - 1 - i)} * 5);
  }
  const auto runs = decode(raw.bytes(), std::size_t{count} * 5).index.runs;
  std::int64_t position = 0;
  for (std::size_t i = 0; i < raw.lengths.size(); ++i) {
    for (std::int32_t at = 0; at < raw.lengths[i]; ++at, ++position) {
      const auto wanted = TokenRuns::Place{static_cast<std::uint64_t>(raw.places[i] + at), raw.lengths[i] - at};
      ASSERT_EQ(runs.find(position), wanted) << position;
    }
  }
  EXPECT_EQ(runs.tokens(), position);
}

TEST(TokenRuns, CountBeyond32Bits) {
  constexpr std::int64_t many = std::int64_t{10} << 30;
  TokenRuns runs(2);
  for (int i = 0; i < 10; ++i) runs.add(static_cast<std::uint64_t>(i * many * 2), many);
  EXPECT_EQ(runs.tokens(), 10 * many);
  for (const std::int64_t position : {std::int64_t{0}, many - 1, many, 7 * many + 3, 10 * many - 1}) {
    const auto place = runs.find(position);
    EXPECT_EQ(place.byte, static_cast<std::uint64_t>(position) * 2);
    EXPECT_GE(place.tokens, 1);
    EXPECT_LE(position + place.tokens, 10 * many);
  }
}

TEST(MegatronIndex, ReadsEachByteOnce) {
  const auto bytes = raw_index(1, 1, std::vector<std::int32_t>(50'000, 1), {0, 50'000}).bytes();
  std::uint64_t done = 0;
  read_megatron_index(MemoryFile("a.idx", bytes), MemoryFile("a.bin", std::string(50'000, ' ')),
                      {.on_progress = [&](std::uint64_t so_far) { done = so_far; }});
  EXPECT_EQ(done, bytes.size());
}

TEST(MegatronIndex, RejectsOtherFiles) {
  EXPECT_EQ(index_fault_of("", 0), "a.idx: it does not begin like an .idx of Megatron-LM");
  EXPECT_THAT(index_fault_of("MMIDI", 0), HasSubstr("ends at byte 5, within its header"));
  auto raw = some_index();
  raw.magic[8] = '\1';
  EXPECT_THAT(index_fault_of(raw.bytes(), 10), HasSubstr("does not begin like an .idx"));
  raw = some_index();
  raw.version = 2;
  EXPECT_EQ(index_fault_of(raw.bytes(), 10), "a.idx: it has version 2; version 1 can be read");
  for (const std::uint8_t dtype : {std::uint8_t{0}, std::uint8_t{9}, std::uint8_t{255}}) {
    raw = some_index();
    raw.dtype = dtype;
    EXPECT_THAT(index_fault_of(raw.bytes(), 10), HasSubstr("its dtype has the number " + std::to_string(dtype)));
  }
}

TEST(MegatronIndex, RejectsFalseCounts) {
  for (const std::uint64_t more : {std::uint64_t{1}, std::uint64_t{1} << 40, std::uint64_t{1} << 61,
                                   (std::uint64_t{1} << 62) / 3, UINT64_MAX - 3, UINT64_MAX / 12 - 2}) {
    auto raw = some_index();
    raw.sequences_more = more;
    EXPECT_THAT(index_fault_of(raw.bytes(), 10), HasSubstr("which do not fit in its 94 bytes")) << more;
    raw = some_index();
    raw.documents_more = more;
    EXPECT_THAT(index_fault_of(raw.bytes(), 10), HasSubstr("which do not fit in its 94 bytes")) << more;
  }
  auto raw = some_index();
  raw.documents.clear();
  EXPECT_THAT(index_fault_of(raw.bytes(), 10), HasSubstr("it has no document indices"));
}

TEST(MegatronIndex, RejectsMissingAndExtraBytes) {
  const auto whole = some_index().bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(index_fault_of(whole.substr(0, size), 10), "no fault") << size;
  }
  for (const std::size_t more : {1, 2, 4, 100}) {
    EXPECT_THAT(index_fault_of(whole + std::string(more, 'x'), 10), HasSubstr(std::to_string(more) + " bytes follow"));
  }
}

TEST(MegatronIndex, RejectsSequencesOutsideTheBin) {
  EXPECT_THAT(index_fault_of(some_index().bytes(), 9),
              HasSubstr("sequence 2 begins at byte 4 and has 3 tokens, but a.bin has only 9 bytes"));
  EXPECT_THAT(index_fault_of(some_index().bytes(), 12), HasSubstr("a.bin has 12 bytes, but a.idx describes 10"));
  auto raw = some_index();
  raw.lengths[1] = -1;
  EXPECT_EQ(index_fault_of(raw.bytes(), 10), "a.idx: sequence 1 has a length of -1 tokens");
  raw = some_index();
  raw.places[2] = -2;
  EXPECT_EQ(index_fault_of(raw.bytes(), 10), "a.idx: sequence 2 begins at byte -2");
  for (const std::int64_t place : {std::int64_t{5}, std::int64_t{11}, INT64_MAX - 1, INT64_MAX}) {
    raw = some_index();
    raw.places[2] = place;
    EXPECT_THAT(index_fault_of(raw.bytes(), 10), HasSubstr("but a.bin has only 10 bytes")) << place;
  }
  raw = some_index();
  raw.lengths[2] = INT32_MAX;
  EXPECT_THAT(index_fault_of(raw.bytes(), 10), HasSubstr("but a.bin has only 10 bytes"));
}

TEST(MegatronIndex, RejectsDocumentsOutOfOrder) {
  const auto with_documents = [](std::vector<std::int64_t> documents) {
    auto raw = some_index();
    raw.documents = std::move(documents);
    return index_fault_of(raw.bytes(), 10);
  };
  EXPECT_THAT(with_documents({1, 3}), HasSubstr("first document begins with sequence 1 and not 0"));
  EXPECT_THAT(with_documents({0, 2, 1, 3}), HasSubstr("document 1 begins with sequence 2 and ends before sequence 1"));
  EXPECT_THAT(with_documents({0, 4}), HasSubstr("document 0 begins with sequence 0 and ends before sequence 4, of 3"));
  EXPECT_THAT(with_documents({0, -1, 3}), HasSubstr("ends before sequence -1"));
  EXPECT_THAT(with_documents({0, INT64_MIN}), HasSubstr("ends before sequence -9223372036854775808"));
  EXPECT_THAT(with_documents({0, 2}), HasSubstr("its documents end at sequence 2, and it has 3"));
  EXPECT_THAT(with_documents({0}), HasSubstr("its documents end at sequence 0, and it has 3"));
}

TEST(MegatronIndex, DetectsAShrinkingFile) {
  MemoryFile idx("a.idx", some_index().bytes());
  idx.content.resize(60);
  try {
    read_megatron_index(idx, MemoryFile("a.bin", std::string(10, '\0')));
    FAIL();
  } catch (const SourceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("it was cut off while it was being read"));
  }
}

}  // namespace
}  // namespace levada
