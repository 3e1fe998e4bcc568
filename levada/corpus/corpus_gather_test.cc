// Sizes of samples, and batches of samples in an order chosen by the caller.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "levada/base/error.h"
#include "levada/base/fault_testing.h"
#include "levada/corpus/corpus_testing.h"
#include "levada/sources/megatron_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Packing all_packings[] = {Packing::cut, Packing::best_fit, Packing::documents};

std::vector<std::string> some_texts(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::string> texts;
  for (int d = 0; d < count; ++d) texts.push_back(document(d, random() % (random() % 10 == 0 ? 200 : 40)));
  return texts;
}

Files some_files() {
  return {{"a.jsonl", lines_of(some_texts(60, 1))}, {"b.jsonl", lines_of(some_texts(30, 2))}};
}

std::vector<std::int64_t> shuffled(std::int64_t first, std::size_t count, unsigned seed) {
  std::vector<std::int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(seed));
  return numbers;
}

/// Returns a field's elements [begin, end) as bytes.
std::string bytes_of(const Tree& batch, const char* field, std::int64_t begin, std::int64_t end) {
  const auto& tensor = batch.tensor(field);
  const auto one = tensor.dtype().bytes(1);
  const auto bytes =
      tensor.bytes().subspan(static_cast<std::size_t>(begin) * one, static_cast<std::size_t>(end - begin) * one);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Expects that `packed` is one row with the content of `rows`, a document each, without the padding at their ends.
void expect_packed(const Tree& packed, const std::vector<Tree>& rows) {
  std::vector<std::int32_t> bounds = {0};
  std::int32_t longest = 0;
  for (const auto& row : rows) {
    const auto length = row.tensor("cu_seqlens").as<std::int32_t>()[1];
    longest = std::max(longest, length);
    for (const auto* field : {"tokens", "labels", "position_ids", "loss_mask"}) {
      EXPECT_EQ(bytes_of(packed, field, bounds.back(), bounds.back() + length), bytes_of(row, field, 0, length))
          << field << " of segment " << bounds.size() - 1;
    }
    bounds.push_back(bounds.back() + length);
  }
  for (const auto* field : {"tokens", "labels", "position_ids", "loss_mask"}) {
    EXPECT_EQ(packed.tensor(field).shape(), (Shape{1, bounds.back()}));
  }
  EXPECT_EQ(packed.tensor("cu_seqlens").shape(), (Shape{1, static_cast<std::int64_t>(bounds.size())}));
  EXPECT_EQ(values<std::int32_t>(packed, "cu_seqlens"), bounds);
  EXPECT_EQ(values<std::int32_t>(packed, "max_seqlen"), std::vector{longest});
}

/// Expects that gather() of samples [first, first + count) in some order equals read() of each.
void expect_gathered_as_read(Corpus& corpus, Packing packing, std::int64_t first, std::int64_t count) {
  HeapMemory memory;
  const auto sizes = corpus.sizes(first, count);
  const auto numbers = shuffled(first, sizes.size(), static_cast<unsigned>(first));
  std::vector<Tree> rows;
  for (const auto number : numbers) rows.push_back(corpus.read(number, 1, memory).value());
  const auto gathered = corpus.gather(numbers, memory);
  if (packing == Packing::documents) {
    expect_packed(gathered, rows);
    return;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    for (const auto* field : {"tokens", "labels", "position_ids", "loss_mask", "cu_seqlens", "max_seqlen"}) {
      ASSERT_EQ(gathered.contains(field), rows[i].contains(field));
      if (!rows[i].contains(field)) continue;  // cut samples have no segments
      EXPECT_EQ(Tree(Tensor::copy_of(gathered.tensor(field).slice(0, at, at + 1))), rows[i].at(field))
          << field << " of row " << i;
    }
  }
}

TEST(CorpusGather, ConcatenatesDocumentsIntoOneRow) {
  for (const auto ids : {dtypes::int64, dtypes::int32}) {
    auto corpus =
        open_files({{"a.jsonl", lines_of({"abc", "x", "", "de"})}},
                   {.sequence = 4, .packing = Packing::documents, .pad_to = 2, .attention_mask = true, .ids = ids});
    EXPECT_EQ(corpus.sequences(), 3);
    corpus.sizes(0, 3);
    HeapMemory memory;
    const auto row = corpus.gather(std::vector<std::int64_t>{1, 0}, memory);
    const auto ids_of = [&](const char* field) {
      if (ids == dtypes::int64) return values<std::int64_t>(row, field);
      const auto narrow = values<std::int32_t>(row, field);
      return std::vector<std::int64_t>(narrow.begin(), narrow.end());
    };
    EXPECT_EQ(row.tensor("tokens").shape(), (Shape{1, 6}));
    EXPECT_THAT(ids_of("tokens"), ElementsAre('x', 0, 'a', 'b', 'c', 0));
    EXPECT_THAT(ids_of("labels"), ElementsAre(256, 0, 'b', 'c', 256, 0));
    EXPECT_THAT(ids_of("position_ids"), ElementsAre(0, 1, 0, 1, 2, 3));
    EXPECT_THAT(values<float>(row, "loss_mask"), ElementsAre(1, 0, 1, 1, 1, 0));
    EXPECT_EQ(row.tensor("cu_seqlens").shape(), (Shape{1, 3}));
    EXPECT_THAT(values<std::int32_t>(row, "cu_seqlens"), ElementsAre(0, 2, 6));
    EXPECT_EQ(row.tensor("max_seqlen").shape(), Shape{1});
    EXPECT_THAT(values<std::int32_t>(row, "max_seqlen"), ElementsAre(4));
    EXPECT_EQ(row.tensor("attention_mask").shape(), (Shape{1, 1, 6, 6}));
    EXPECT_THAT(values<bool>(row, "attention_mask"), ElementsAre(false, true, true, true, true, true,    //
                                                                 false, false, true, true, true, true,   //
                                                                 true, true, false, true, true, true,    //
                                                                 true, true, false, false, true, true,   //
                                                                 true, true, false, false, false, true,  //
                                                                 true, true, false, false, false, false));
  }
}

TEST(CorpusGather, ReturnsEachPieceOfEachDocumentInStorageOrder) {
  const auto texts = some_texts(100, 3);
  for (const std::int64_t sequence : {1, 16, 64, 1024}) {
    std::vector<std::vector<std::int64_t>> wanted, found;
    for (const auto& text : texts) {
      if (text.empty()) continue;
      std::vector<std::int64_t> tokens(text.begin(), text.end());
      tokens.push_back(256);
      const auto positions = static_cast<std::ptrdiff_t>(text.size());
      for (std::ptrdiff_t from = 0; from < positions; from += sequence) {
        wanted.emplace_back(tokens.begin() + from, tokens.begin() + std::min(from + sequence, positions) + 1);
      }
    }
    auto corpus = open_files({{"a.jsonl", lines_of(texts)}}, {.sequence = sequence, .packing = Packing::documents});
    ASSERT_EQ(corpus.sequences(), wanted.size());
    HeapMemory memory;
    for (std::int64_t first = 0; first < corpus.sequences(); first += 32) {
      std::vector<std::int64_t> numbers(corpus.sizes(first, 32).size());
      std::iota(numbers.begin(), numbers.end(), first);
      const auto row = corpus.gather(numbers, memory);
      const auto tokens = values<std::int64_t>(row, "tokens"), labels = values<std::int64_t>(row, "labels");
      const auto bounds = values<std::int32_t>(row, "cu_seqlens");
      for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
        found.emplace_back(tokens.begin() + bounds[i], tokens.begin() + bounds[i + 1]);
        found.back().push_back(labels[static_cast<std::size_t>(bounds[i + 1]) - 1]);
      }
    }
    EXPECT_EQ(found, wanted) << sequence;
  }
}

TEST(CorpusGather, ReturnsWhatReadingReturnsInAnyOrderOverSeveralEpochs) {
  for (const auto packing : all_packings) {
    for (const auto seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(4)}) {
      for (const int threads : {1, 3}) {
        auto corpus = open_files(some_files(), {.sequence = 32,
                                                .shuffle_seed = seed,
                                                .epochs = 3,
                                                .packing = packing,
                                                .pad_to = packing == Packing::cut ? 1 : 4,
                                                .io = {.threads = threads}});
        const auto all = corpus.size().value();
        const auto step = corpus.sequences() * 2 / 5;  // only the last step ends with an epoch
        for (std::int64_t first = 0; first < all; first += step) {
          expect_gathered_as_read(corpus, packing, first, step);
        }
      }
    }
  }
}

TEST(CorpusGather, ReturnsWhatReadingReturnsForAMixWithCaps) {
  for (const auto packing : all_packings) {
    const auto files = some_files();
    CorpusOptions options{.sequence = 32, .shuffle_seed = 5, .epochs = 0, .packing = packing};
    options.tokenizer = byte_tokenizer();
    options.cache_dir = scratch_cache();
    options.open = open_from(files);
    auto corpus = Corpus::open_mix({.sources = {{.name = "a", .paths = {"a.jsonl"}, .weight = 3, .max_samples = 150},
                                                {.name = "b", .paths = {"b.jsonl"}, .weight = 1, .max_samples = 70}}},
                                   options);
    ASSERT_EQ(corpus.size(), 220);
    for (std::int64_t first = 0; first < 220; first += 50) expect_gathered_as_read(corpus, packing, first, 50);
  }
}

TEST(CorpusGather, ReturnsEachDocumentOfAPartOfASplitOnce) {
  const auto texts = some_texts(80, 6);
  std::multiset<std::vector<std::int64_t>> wanted, found;
  for (const auto& text : texts) {
    if (!text.empty()) wanted.emplace(text.begin(), text.end());
  }
  for (const auto* part : {"train", "valid"}) {
    auto corpus =
        open_files({{"a.jsonl", lines_of(texts)}},
                   {.sequence = 256, .shuffle_seed = 7, .packing = Packing::documents, .split = {3, 1}, .part = part});
    HeapMemory memory;
    const auto sizes = corpus.sizes(0, 100);
    const auto row = corpus.gather(shuffled(0, sizes.size(), 8), memory);
    const auto tokens = values<std::int64_t>(row, "tokens");
    const auto bounds = values<std::int32_t>(row, "cu_seqlens");
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      found.emplace(tokens.begin() + bounds[i], tokens.begin() + bounds[i + 1]);
    }
  }
  EXPECT_EQ(found, wanted);
}

TEST(CorpusGather, ResumesFromACursor) {
  for (const auto packing : all_packings) {
    const CorpusOptions options{.sequence = 32, .shuffle_seed = 9, .epochs = 2, .packing = packing};
    auto whole = open_files(some_files(), options), resumed = open_files(some_files(), options);
    const auto next = whole.sequences() - 5;
    ASSERT_EQ(resumed.resume(whole.cursor(next)), next);
    EXPECT_EQ(resumed.sizes(next, 10), whole.sizes(next, 10));
    HeapMemory memory;
    const auto numbers = shuffled(next, 10, 1);
    EXPECT_EQ(resumed.gather(numbers, memory), whole.gather(numbers, memory));
  }
}

TEST(CorpusGather, OtherPackingsRejectACursorOfDocuments) {
  const auto open = [](Packing packing, std::int64_t pad_to) {
    return open_files(some_files(), {.sequence = 32, .packing = packing, .pad_to = pad_to});
  };
  auto saved = open(Packing::documents, 4);
  EXPECT_EQ(open(Packing::documents, 4).resume(saved.cursor(3)), 3);
  EXPECT_THAT(fault_of([&] { open(Packing::best_fit, 4).resume(saved.cursor(3)); }),
              HasSubstr("packing is best-fit (window 16384, padded to 4, version 1), there documents (padded to 4, "
                        "version 1)"));
  EXPECT_THAT(fault_of([&] { open(Packing::documents, 1).resume(saved.cursor(3)); }), HasSubstr("padded to 4"));
}

TEST(CorpusSizes, MatchTheSegmentsThatAreRead) {
  for (const auto packing : all_packings) {
    for (const std::int64_t pad_to : {1, 4}) {
      if (packing == Packing::cut && pad_to > 1) continue;
      auto corpus = open_files(some_files(), {.sequence = 32, .shuffle_seed = 2, .packing = packing, .pad_to = pad_to});
      const auto sizes = corpus.sizes(0, corpus.sequences());
      EXPECT_EQ(corpus.stats().bytes_read, 0);
      ASSERT_EQ(sizes.size(), corpus.sequences());
      HeapMemory memory;
      for (std::int64_t g = 0; g < corpus.sequences(); ++g) {
        std::vector<std::int32_t> bounds = {0, 32};
        const auto row = corpus.read(g, 1, memory).value();
        if (packing != Packing::cut) bounds = values<std::int32_t>(row, "cu_seqlens");
        if (packing == Packing::documents) bounds.resize(2);  // the rest of the row does not belong to the sample
        SampleSize wanted{.tokens = bounds.back(), .squares = 0};
        for (std::size_t i = 1; i < bounds.size(); ++i) {
          const std::int64_t length = bounds[i] - bounds[i - 1];
          wanted.squares += length * length;
        }
        const auto mask = values<float>(row, "loss_mask");
        wanted.padding = std::count(mask.begin(), mask.begin() + bounds.back(), 0.0F);
        EXPECT_EQ(sizes[static_cast<std::size_t>(g)], wanted) << "of sample " << g;
      }
    }
  }
}

TEST(CorpusSizes, AreFewerAtTheEndAndNoneAfterIt) {
  for (const auto packing : all_packings) {
    auto corpus = open_files(some_files(), {.sequence = 32, .packing = packing});
    const auto all = corpus.sequences();
    EXPECT_EQ(corpus.sizes(all - 3, 10).size(), 3);
    EXPECT_TRUE(corpus.sizes(all, 10).empty());
    EXPECT_EQ(corpus.of_epochs(2).sizes(all - 3, 10).size(), 10);
    EXPECT_EQ(corpus.of_epochs(0).sizes(100 * all, 10).size(), 10);
  }
}

TEST(CorpusGather, RejectsUnknownSamplesAndEmptyBatches) {
  auto corpus = open_files(some_files(), {.sequence = 32, .packing = Packing::documents});
  HeapMemory memory;
  const auto gather = [&](const std::vector<std::int64_t>& numbers) {
    return fault_of([&] { corpus.gather(numbers, memory); });
  };
  EXPECT_EQ(gather({7, 0}), "no fault");
  corpus.sizes(8, 8);
  EXPECT_EQ(gather({15, 8, 3, 20}), "no fault");
  EXPECT_THAT(gather({corpus.size().value()}), HasSubstr("cannot be gathered"));
  EXPECT_THAT(gather({-1}), HasSubstr("sample -1"));
  EXPECT_THAT(gather({}), HasSubstr("InvalidArgument: gather() takes at least one sample"));
  EXPECT_THAT(fault_of([&] { corpus.sizes(-1, 1); }), HasSubstr("InvalidArgument"));
  EXPECT_THAT(fault_of([&] { corpus.sizes(0, 0); }), HasSubstr("InvalidArgument"));
  corpus.resume(corpus.cursor(3));
  EXPECT_EQ(gather({8}), "no fault");
}

TEST(CorpusGather, RejectsARowLongerThanCuSeqlensCanCount) {
  constexpr auto sequence = std::int64_t{1} << 30;
  auto corpus = open_files({{"a.jsonl", lines_of({"abc", "x"})}},
                           {.sequence = sequence, .packing = Packing::documents, .pad_to = sequence});
  const SampleSize three{.tokens = sequence, .squares = sequence * sequence, .padding = sequence - 3};
  auto one = three;
  one.padding = sequence - 1;
  EXPECT_EQ(corpus.sizes(0, 2), (std::vector{three, one}));
  HeapMemory memory;
  EXPECT_THAT(fault_of([&] {
                corpus.gather(std::vector<std::int64_t>{0, 1}, memory);
              }),
              HasSubstr("InvalidArgument: the 2 documents of a packed row have 2147483648 positions"));
}

TEST(CorpusGather, FailsIfAFileChangesDuringReading) {
  for (const auto packing : all_packings) {
    for (const int threads : {1, 3}) {
      const ScratchDir dir;
      const auto path = dir.write("a.bin", std::string(1000, 'a'));
      dir.write("a.idx", raw_index(1, 1, {400, 600}, {0, 1, 2}).bytes());
      auto corpus = Corpus::open({path}, {.sequence = 700, .packing = packing, .io = {.threads = threads}});
      const auto count = static_cast<std::int64_t>(corpus.sizes(0, 2).size());
      HeapMemory memory;
      std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
      std::iota(numbers.begin(), numbers.end(), 0);
      EXPECT_EQ(fault_of([&] { corpus.gather(numbers, memory); }), "no fault");
      std::filesystem::resize_file(path, 200);
      EXPECT_THAT(fault_of([&] { corpus.gather(numbers, memory); }), HasSubstr("a.bin shrank from 1000 to 200 bytes"));
    }
  }
}

}  // namespace
}  // namespace levada
