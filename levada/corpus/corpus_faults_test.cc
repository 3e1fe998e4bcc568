#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <random>

#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/fault_testing.h"
#include "levada/corpus/corpus_testing.h"
#include "levada/sources/megatron_testing.h"
#include "levada/tokens/token_cache.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// A corpus of one data set in memory, and its .bin, which tests corrupt while it is read.
struct Opened {
  MemoryFile* bin = nullptr;
  Corpus corpus;

  static Opened open(CorpusOptions options = {.sequence = 16}) {
    constexpr std::int32_t length = 1000;
    std::vector<std::int32_t> tokens(length);
    std::iota(tokens.begin(), tokens.end(), 0);
    MemoryFile* bin = nullptr;
    options.open = [&](const std::string& path) {
      const bool is_bin = path == "a.bin";
      auto made =
          std::make_unique<MemoryFile>(path, is_bin ? raw_bin(tokens) : raw_index(4, 4, {length}, {0, 1}).bytes());
      if (is_bin) bin = made.get();
      return made;
    };
    auto corpus = Corpus::open({"a.bin"}, options);
    return {bin, std::move(corpus)};
  }

  void read_all() {
    HeapMemory memory;
    for (std::int64_t i = 0; i < corpus.sequences(); ++i) corpus.read(i, 1, memory);
  }
};

/// Returns a corpus of ten samples of 16.
Corpus open_text() {
  return open_files({{"a.txt", std::string(160, 'a')}}, {.sequence = 16});
}

TEST(CorpusFaults, RejectsInvalidOptions) {
  EXPECT_THAT(fault_of([] { Corpus::open({}); }), HasSubstr("InvalidArgument: a corpus needs a file"));
  EXPECT_THAT(fault_of([] { Corpus::open({"a.txt"}, {.sequence = 0}); }),
              HasSubstr("sequence must be at least 1 token, got 0"));
  EXPECT_THAT(fault_of([] { Corpus::open({"a.txt"}, {.epochs = -1}); }),
              HasSubstr("epochs must be 0 (endless) or positive, got -1"));
}

TEST(CorpusFaults, RejectsMoreSamplesThanCanBeCounted) {
  const auto corpus = open_text();
  EXPECT_THAT(fault_of([&] { corpus.of_epochs(std::int64_t{1} << 61); }),
              HasSubstr("epochs of 10 samples are too many to count"));
  EXPECT_THAT(fault_of([&] { corpus.of_epochs(-1); }), HasSubstr("got -1"));
  EXPECT_EQ(corpus.of_epochs(1'000'000'000'000).size(), 10'000'000'000'000);
}

TEST(CorpusFaults, RejectsACursorAfterTheEnd) {
  auto corpus = open_text();
  EXPECT_EQ(corpus.resume(corpus.cursor(10)), 10);
  EXPECT_EQ(fault_of([&] { corpus.resume(corpus.cursor(11)); }),
            "InvalidArgument: the cursor is at sample 11, but the data ends with sample 9 (epochs: 1, samples of "
            "each: 10): raise the epochs, or load another state");
  EXPECT_EQ(corpus.of_epochs(2).resume(corpus.cursor(11)), 11);
  EXPECT_EQ(corpus.of_epochs(0).resume(corpus.cursor(1'000'000)), 1'000'000);
}

TEST(CorpusFaults, RejectsASampleLongerThanAllData) {
  EXPECT_THAT(fault_of([] {
                open_files({{"a.txt", std::string(15, 'a')}}, {.sequence = 16});
              }),
              HasSubstr("InvalidArgument: the corpus holds 16 tokens, but one sample of sequence 16 takes 17"));
  EXPECT_EQ(fault_of([] { open_files({{"a.txt", std::string(16, 'a')}}, {.sequence = 16}); }), "no fault");
}

TEST(CorpusFaults, NamesAnUnreadableFile) {
  const ScratchDir dir;
  const auto fault = [&](const std::string& path) {
    return fault_of([&] { Corpus::open({path}, {.tokenizer = byte_tokenizer(), .cache_dir = scratch_cache()}); });
  };
  EXPECT_THAT(fault(dir.file("none.jsonl")), AllOf(HasSubstr("SourceError: "), HasSubstr("none.jsonl: No such file")));
  EXPECT_THAT(
      fault(dir.path()),
      HasSubstr("holds no data files: .jsonl, .ndjson, .json of lines, .txt (compressed too: .gz, .zst) or .bin"));
  EXPECT_THAT(fault(dir.write("empty.jsonl", "")), HasSubstr("empty.jsonl is empty"));
  EXPECT_THAT(fault(dir.write("a.jsonl", "{\"text\":\"a\"}\nno\n")), HasSubstr("a.jsonl:2: the line cannot be used"));
  EXPECT_THAT(fault(dir.write("a.csv", "{}")), HasSubstr("a.csv is of unknown kind: a corpus reads .jsonl, .ndjson"));
}

TEST(CorpusFaults, RequiresATokenizerForText) {
  const ScratchDir dir;
  const auto text = dir.write("a.txt", "some text");
  EXPECT_THAT(fault_of([&] { Corpus::open({text}, {.cache_dir = scratch_cache()}); }),
              AllOf(HasSubstr("InvalidArgument: " + text + " is text, and no tokenizer is named"),
                    HasSubstr("(tokenizer=, --tokenizer), or bytes")));
  EXPECT_THAT(fault_of([&] { Corpus::open({dir.path()}, {.cache_dir = scratch_cache()}); }), HasSubstr("is text"));
}

TEST(CorpusFaults, RejectsInvalidBatches) {
  auto opened = Opened::open();
  HeapMemory memory;
  EXPECT_THROW(opened.corpus.read(-1, 1, memory), InvalidArgument);
  EXPECT_THROW(opened.corpus.read(0, 0, memory), InvalidArgument);
}

TEST(CorpusFaults, FailsIfAFileShrinks) {
  const ScratchDir dir;
  dir.write("a.idx", raw_index(1, 1, {1000}, {0, 1}).bytes());
  const auto path = dir.write("a.bin", std::string(1000, 'a'));
  auto corpus = Corpus::open({path}, {.sequence = 16});
  std::filesystem::resize_file(path, 200);
  HeapMemory memory;
  EXPECT_THAT(fault_of([&] { corpus.read(corpus.sequences() - 1, 1, memory); }),
              AllOf(HasSubstr("SourceError: "), HasSubstr("a.bin shrank from 1000 to 200 bytes")));
  EXPECT_THAT(fault_of([&] { corpus.read(0, 1, memory); }), HasSubstr("shrank"));
}

TEST(CorpusFaults, FailsIfAFileEndsEarlyWithTheSameIdentity) {
  auto opened = Opened::open();
  opened.bin->content.resize(200);
  EXPECT_THAT(fault_of([&] { opened.read_all(); }), HasSubstr("SourceError: a.bin ends at byte 200"));
}

TEST(CorpusFaults, ReplacesDamagedTokensInTheCache) {
  const ScratchDir dir;
  std::vector<std::string> warnings;
  CorpusOptions options{.sequence = 16, .tokenizer = byte_tokenizer(), .cache_dir = dir.file("cache")};
  options.io.warn = [&](const std::string& warning) { warnings.push_back(warning); };
  const auto path = dir.write("a.txt", std::string(160, 'a'));
  const auto digest = Corpus::open({path}, options).digest();
  std::string bin;
  for (const auto& file : std::filesystem::directory_iterator(dir.file("cache/tokens"))) {
    if (file.path().extension() == ".bin") bin = file.path();
  }
  std::fstream(bin, std::ios::in | std::ios::out | std::ios::binary).seekp(100).put('b');
  EXPECT_EQ(Corpus::open({path}, options).digest(), digest);
  EXPECT_THAT(warnings, ElementsAre(bin + " is not what was written there: tokenizing " + path + " again"));
  EXPECT_EQ(Corpus::open({path}, options).digest(), digest);
  EXPECT_THAT(warnings, SizeIs(1));
}

TEST(CorpusFaults, FailsIfVerificationFindsDamageInTheCache) {
  const ScratchDir dir;
  const CorpusOptions options{
      .sequence = 16, .epochs = 0, .tokenizer = byte_tokenizer(), .cache_dir = dir.file("cache")};
  const auto path = dir.write("a.txt", std::string(3 << 20, 'a'));
  const auto digest = Corpus::open({path}, options).digest();
  std::string bin;
  for (const auto& file : std::filesystem::directory_iterator(dir.file("cache/tokens"))) {
    if (file.path().extension() == ".bin") bin = file.path();
  }
  std::fstream(bin, std::ios::in | std::ios::out | std::ios::binary).seekp(150'000).put('b');
  auto corpus = Corpus::open({path}, options);
  ASSERT_EQ(corpus.digest(), digest) << "opening is to miss the damage";
  HeapMemory memory;
  std::string fault = "no fault";
  const auto deadline = Deadline::after(std::chrono::minutes(1));
  for (std::int64_t i = 0; fault == "no fault" && !deadline.expired(); ++i) {
    fault = fault_of([&] { corpus.read(i, 1, memory); });
  }
  EXPECT_THAT(fault, AllOf(HasSubstr("SourceError: " + bin + " or its .idx is damaged"),
                           HasSubstr("resume from an earlier state")));
}

TEST(CorpusFaults, AFullCacheKeepsTheTokensOfAnOpenCorpus) {
  const ScratchDir dir;
  const CorpusOptions options{
      .sequence = 16, .tokenizer = byte_tokenizer(), .cache_dir = dir.file("cache"), .cache_bytes = 1};
  auto corpus = Corpus::open({dir.write("a.txt", std::string(160, 'a'))}, options);
  auto epochs = std::make_unique<Corpus>(corpus.of_epochs(2));
  corpus = Corpus::open({dir.write("b.txt", std::string(160, 'b'))}, options);
  EXPECT_EQ(CacheFolder(token_cache_folder(options.cache_dir)).entries().size(), 2);
  epochs.reset();
  EXPECT_EQ(CacheFolder(token_cache_folder(options.cache_dir)).prune(0).size(), 1);
}

TEST(CorpusFaults, ForwardsTheCauseOfAFailedRead) {
  auto opened = Opened::open();
  opened.bin->before_read = [](std::uint64_t) { throw SourceError("cannot read a.bin: Input/output error"); };
  EXPECT_EQ(fault_of([&] { opened.read_all(); }), "SourceError: cannot read a.bin: Input/output error");
  opened.bin->before_read = nullptr;
  EXPECT_EQ(fault_of([&] { opened.read_all(); }), "no fault");
}

TEST(CorpusFaults, ShortReadsDoNotChangeTheData) {
  auto whole = Opened::open();
  auto opened = Opened::open();
  opened.bin->max_at_once = 3;
  HeapMemory memory;
  EXPECT_EQ(opened.corpus.read(0, opened.corpus.sequences(), memory),
            whole.corpus.read(0, whole.corpus.sequences(), memory));
}

TEST(CorpusFaults, AnyChangeOfStoredBytesYieldsTokensOrAnError) {
  std::mt19937 random(1);
  for (const auto packing : {Packing::cut, Packing::best_fit}) {
    int errors = 0;
    for (int round = 0; round < 200; ++round) {
      auto opened = Opened::open({.sequence = 16, .packing = packing});
      auto& content = opened.bin->content;
      for (int i = 0; i < 1 + round % 5; ++i) content[random() % content.size()] = static_cast<char>(random());
      const auto fault = fault_of([&] { opened.read_all(); });
      if (fault == "no fault") continue;
      EXPECT_THAT(fault,
                  ::testing::MatchesRegex("SourceError: a.bin: token [0-9]+ is negative, and cannot be fed: .*"));
      ++errors;
    }
    EXPECT_GT(errors, 20);
    EXPECT_LT(errors, 180) << "other tokens are no error";
  }
}

TEST(CorpusFaults, ReportsItsActivity) {
  auto opened = Opened::open();
  EXPECT_EQ(opened.corpus.activity(), "between two batches");
  std::string heard;
  opened.bin->before_read = [&](std::uint64_t) { heard = opened.corpus.activity(); };
  opened.read_all();
  EXPECT_EQ(heard, "reading a.bin");
  opened.bin->before_read = [](std::uint64_t) { throw SourceError("broken"); };
  EXPECT_THROW(opened.read_all(), SourceError);
  EXPECT_EQ(opened.corpus.activity(), "between two batches");
}

}  // namespace
}  // namespace levada
