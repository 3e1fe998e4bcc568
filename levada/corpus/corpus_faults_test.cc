#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "levada/base/error.h"
#include "levada/base/fault_testing.h"
#include "levada/corpus/corpus.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A corpus of one file in memory, and that file, to be spoilt while it is read.
struct Opened {
  MemoryFile* file = nullptr;
  Corpus corpus;

  static Opened open(const std::string& path, const std::string& content, CorpusOptions options = {.sequence = 16}) {
    MemoryFile* file = nullptr;
    options.cache = false;
    options.open = [&](const std::string& name) {
      auto made = std::make_unique<MemoryFile>(name, content);
      file = made.get();
      return made;
    };
    auto corpus = Corpus::open({path}, options);
    return {file, std::move(corpus)};
  }

  void read_all() {
    HeapMemory memory;
    for (std::int64_t i = 0; i < corpus.sequences(); ++i) corpus.read(i, 1, memory);
  }
};

std::string some_lines() {
  std::string content;
  for (int i = 0; i < 40; ++i) {
    content +=
        fmt::format("{{\"id\":[{}],\"text\":\"line\\n{}\\u00e9 \\ud83d\\ude00 ü\"}}\n", i, std::string(i % 7, 'x'));
  }
  return content;
}

TEST(CorpusFaults, RefusesOptionsThatCannotWork) {
  EXPECT_THAT(fault_of([] { Corpus::open({}); }), HasSubstr("InvalidArgument: a corpus needs a file"));
  EXPECT_THAT(fault_of([] { Corpus::open({"a.txt"}, {.sequence = 0}); }), HasSubstr("a sequence of 0 tokens"));
  EXPECT_THAT(fault_of([] { Corpus::open({"a.txt"}, {.epochs = -1}); }),
              HasSubstr("epochs must be 0, for no end, or above, got -1"));
}

TEST(CorpusFaults, RefusesMoreSamplesThanCanBeCounted) {
  const auto opened = Opened::open("a.txt", std::string(160, 'a'));  // 10 samples
  EXPECT_THAT(fault_of([&] { opened.corpus.of_epochs(std::int64_t{1} << 61); }),
              HasSubstr("epochs of 10 samples are too many to count"));
  EXPECT_THAT(fault_of([&] { opened.corpus.of_epochs(-1); }), HasSubstr("got -1"));
  EXPECT_EQ(opened.corpus.of_epochs(1'000'000'000'000).size(), 10'000'000'000'000);
}

TEST(CorpusFaults, RefusesACursorBehindTheEnd) {
  const auto opened = Opened::open("a.txt", std::string(160, 'a'));
  EXPECT_EQ(opened.corpus.resume(opened.corpus.cursor(10)), 10);
  EXPECT_EQ(
      fault_of([&] { opened.corpus.resume(opened.corpus.cursor(11)); }),
      "InvalidArgument: the cursor stands before sample 11, but the data ends with sample 9 (epochs: 1, samples of "
      "each: 10): raise the epochs, or give another state");
  EXPECT_EQ(opened.corpus.of_epochs(2).resume(opened.corpus.cursor(11)), 11);
  EXPECT_EQ(opened.corpus.of_epochs(0).resume(opened.corpus.cursor(1'000'000)), 1'000'000);
}

TEST(CorpusFaults, SaysWhenOneSampleIsMoreThanAll) {
  EXPECT_THAT(fault_of([] { Opened::open("a.txt", std::string(15, 'a')); }),
              HasSubstr("InvalidArgument: the corpus holds 16 tokens, and one sample of sequence 16 takes 17"));
  EXPECT_EQ(fault_of([] { Opened::open("a.txt", std::string(16, 'a')); }), "no fault");
}

TEST(CorpusFaults, SaysWhichFileCannotBeRead) {
  const ScratchDir dir;
  const auto fault = [&](const std::string& path) { return fault_of([&] { Corpus::open({path}, {.cache = false}); }); };
  EXPECT_THAT(fault(dir.file("none.jsonl")), AllOf(HasSubstr("SourceError: "), HasSubstr("none.jsonl: No such file")));
  EXPECT_THAT(fault(dir.path()), HasSubstr("holds no .jsonl, .txt or .bin file"));
  EXPECT_THAT(fault(dir.write("empty.jsonl", "")), HasSubstr("empty.jsonl is empty"));
  EXPECT_THAT(fault(dir.write("a.jsonl", "{\"text\":\"a\"}\nno\n")), HasSubstr("a.jsonl:2: the line cannot be used"));
  EXPECT_THAT(fault(dir.write("a.csv", "{}")), HasSubstr("a.csv is of no kind that can be read"));
}

TEST(CorpusFaults, KnowsABatchThatIsNone) {
  auto opened = Opened::open("a.jsonl", some_lines());
  HeapMemory memory;
  EXPECT_THROW(opened.corpus.read(-1, 1, memory), InvalidArgument);
  EXPECT_THROW(opened.corpus.read(0, 0, memory), InvalidArgument);
}

TEST(CorpusFaults, StopsWhenAFileOnDiskShrinks) {
  const ScratchDir dir;
  const auto path = dir.write("a.jsonl", some_lines());
  auto corpus = Corpus::open({path}, {.sequence = 16, .cache_dir = dir.file("cache")});
  std::filesystem::resize_file(path, 200);
  HeapMemory memory;
  EXPECT_THAT(fault_of([&] { corpus.read(corpus.sequences() - 1, 1, memory); }),
              AllOf(HasSubstr("SourceError: "), HasSubstr("a.jsonl shrank from "), HasSubstr(" to 200 bytes")));
  EXPECT_THAT(fault_of([&] { corpus.read(0, 1, memory); }), HasSubstr("shrank"));
}

TEST(CorpusFaults, StopsWhenAFileEndsEarlyThoughItLooksTheSame) {
  for (const auto* path : {"a.jsonl", "a.txt"}) {
    auto opened = Opened::open(path, some_lines());
    opened.file->content.resize(200);
    EXPECT_THAT(fault_of([&] { opened.read_all(); }), HasSubstr(fmt::format("SourceError: {} ends at byte 200", path)));
  }
}

TEST(CorpusFaults, PassesOnWhyAReadFailed) {
  auto opened = Opened::open("a.jsonl", some_lines());
  opened.file->before_read = [](std::uint64_t) { throw SourceError("cannot read a.jsonl: Input/output error"); };
  EXPECT_EQ(fault_of([&] { opened.read_all(); }), "SourceError: cannot read a.jsonl: Input/output error");
  opened.file->before_read = nullptr;
  EXPECT_EQ(fault_of([&] { opened.read_all(); }), "no fault");
}

TEST(CorpusFaults, ReadsTheSameThroughShortReads) {
  auto whole = Opened::open("a.jsonl", some_lines());
  auto opened = Opened::open("a.jsonl", some_lines());
  opened.file->most_at_once = 3;
  HeapMemory memory;
  EXPECT_EQ(opened.corpus.read(0, opened.corpus.sequences(), memory),
            whole.corpus.read(0, whole.corpus.sequences(), memory));
}

// Written over without a trace, a file gives other tokens or an error, never anything worse.
TEST(CorpusFaults, SurvivesAnyChangeOfTheBytesBehindItsBack) {
  std::mt19937 random(1);
  const auto content = some_lines();
  int errors = 0;
  for (int round = 0; round < 300; ++round) {
    auto opened = Opened::open("a.jsonl", content);
    for (int i = 0; i < 1 + round % 20; ++i) {
      opened.file->content[random() % content.size()] = "\\\"{}[]:,u\n\0x"[random() % 12];
    }
    const auto fault = fault_of([&] { opened.read_all(); });
    if (fault == "no fault") continue;
    EXPECT_THAT(fault, HasSubstr("SourceError: a.jsonl is no longer what was indexed"));
    ++errors;
  }
  EXPECT_GT(errors, 100);
}

TEST(CorpusFaults, SaysWhatItIsDoing) {
  auto opened = Opened::open("a.jsonl", some_lines());
  EXPECT_EQ(opened.corpus.activity(), "between two batches");
  std::string heard;
  opened.file->before_read = [&](std::uint64_t) { heard = opened.corpus.activity(); };
  opened.read_all();
  EXPECT_EQ(heard, "reading a.jsonl");
  opened.file->before_read = [](std::uint64_t) { throw SourceError("broken"); };
  EXPECT_THROW(opened.read_all(), SourceError);
  EXPECT_EQ(opened.corpus.activity(), "between two batches");
}

}  // namespace
}  // namespace levada
