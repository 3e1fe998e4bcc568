#include "levada/pipeline/item_sources.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "levada/base/error.h"
#include "levada/corpus/corpus_testing.h"
#include "levada/pipeline/open_graph_testing.h"
#include "levada/sources/megatron_testing.h"

namespace levada::pipeline::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t row_tokens = 64;

std::string jsonl() {
  std::string file;
  for (int i = 0; i < 400; ++i) file += "{\"text\":\"" + std::string(100, static_cast<char>('a' + i % 26)) + "\"}\n";
  return file;
}
Files megatron() {
  std::vector<std::uint16_t> tokens(40000);
  std::iota(tokens.begin(), tokens.end(), 0);
  return {{"a.bin", raw_bin(tokens)}, {"a.idx", raw_index(8, 2, {15000, 25000}, {0, 1, 2}).bytes()}};
}

/// Opens a corpus repeatedly, and keeps its sources to inspect what they have read.
class CountedCorpus {
 public:
  CountedCorpus(Files files, std::vector<std::string> paths, CorpusOptions options = {.sequence = row_tokens})
      : files_(std::move(files)), paths_(std::move(paths)), options_(std::move(options)) {
    options_.cache_dir = scratch_cache();
    if (std::ranges::any_of(paths_, [](const auto& path) { return is_text(path); }))
      options_.tokenizer = byte_tokenizer();
    options_.open = [this](const std::string& path) { return std::make_unique<MemoryFile>(path, files_.at(path)); };
  }

  Graph graph() {
    const auto open = [this] {
      opened.push_back(std::make_shared<Corpus>(Corpus::open(paths_, options_)));
      return opened.back();
    };
    return Graph::source(samples(open));
  }
  std::vector<std::shared_ptr<Corpus>> opened;

 private:
  Files files_;
  std::vector<std::string> paths_;
  CorpusOptions options_;
};

TEST(ItemSources, RangesAscendAndDescend) {
  EXPECT_THAT(numbers_of(Graph::source(range(3, 9, 2))), ElementsAre(3, 5, 7));
  EXPECT_THAT(numbers_of(Graph::source(range(3, -4, -3))), ElementsAre(3, 0, -3));
  EXPECT_THAT(numbers_of(Graph::source(range(3, 3))), IsEmpty());
  EXPECT_THAT(numbers_of(Graph::source(range(3, 9, -1))), IsEmpty());
  constexpr auto least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(numbers_of(Graph::source(range(least, most, most))), ElementsAre(least, -1, most - 1));
  EXPECT_THAT(numbers_of(Graph::source(range(most, least, least))), ElementsAre(most, -1));
  EXPECT_THROW(range(0, 1, 0), InvalidArgument);
  EXPECT_THROW(range(least, most), InvalidArgument);
}

TEST(ItemSources, YieldGivenTrees) {
  EXPECT_THAT(items_of(Graph::source(trees({1, "b", Tree::list({2.5})}))), ElementsAre(1, "b", Tree::list({2.5})));
}

TEST(ItemSources, ASampleIsOneRowOfABatch) {
  for (const bool binary : {false, true}) {
    CountedCorpus corpus(binary ? megatron() : Files{{"a.jsonl", jsonl()}}, {binary ? "a.bin" : "a.jsonl"});
    const auto items = items_of(corpus.graph());
    ASSERT_EQ(static_cast<std::int64_t>(items.size()), corpus.opened[0]->sequences());
    HeapMemory memory;
    const auto batch = corpus.opened[0]->read(0, static_cast<std::int64_t>(items.size()), memory);
    for (const auto* field : {"tokens", "labels", "position_ids", "loss_mask"}) {
      for (std::size_t i = 0; i < items.size(); ++i) {
        const auto& sample = items[i].tensor(field);
        ASSERT_EQ(sample.shape(), Shape({row_tokens}));
        const auto row = batch->tensor(field).slice(0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1);
        ASSERT_TRUE(std::ranges::equal(sample.bytes(), row.bytes())) << field << " of sample " << i;
      }
    }
  }
}

TEST(ItemSources, AWorkerReadsNoBytesThatItDiscards) {
  for (const bool binary : {false, true}) {
    const auto make = [&] {
      return CountedCorpus(binary ? megatron() : Files{{"a.jsonl", jsonl()}}, {binary ? "a.bin" : "a.jsonl"});
    };
    auto alone = make();
    const auto all = items_of(alone.graph());
    const auto in_all = alone.opened[0]->stats();

    constexpr int workers = 4;
    auto shared = make();
    const auto graph = shared.graph().then(Shard{});
    std::vector<std::vector<Tree>> parts;
    for (int worker = 0; worker < workers; ++worker) {
      parts.push_back(Opened(graph, {.role = Role::worker, .worker = worker, .workers = workers}).items());
    }
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(parts[i % workers][i / workers], all[i]);
    std::uint64_t read = 0, consumed = 0;
    for (const auto& corpus : shared.opened) {
      const auto stats = corpus->stats();
      EXPECT_LT(stats.bytes_read, in_all.bytes_read / workers * 11 / 10);
      read += stats.bytes_read;
      consumed += stats.bytes_consumed;
    }
    EXPECT_EQ(read, in_all.bytes_read);
    EXPECT_EQ(consumed, in_all.bytes_consumed);
  }
}

TEST(ItemSources, CorporaContinueWithTheNextEpochsOrder) {
  const Files files = {{"a.jsonl", jsonl()}};
  int opened = 0;
  const auto source = corpus({"a.jsonl"}, {.sequence = row_tokens,
                                           .shuffle_seed = 3,
                                           .tokenizer = byte_tokenizer(),
                                           .cache_dir = scratch_cache(),
                                           .open = [&](const auto& path) {
                                             ++opened;
                                             return std::make_unique<MemoryFile>(path, files.at(path));
                                           }});
  const auto plain = open_files(files, {.sequence = row_tokens});
  const auto graph = Graph::source(source);
  EXPECT_EQ(source->describe(), "a.jsonl");
  std::set<std::string> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::string order;
    const auto items = Opened(graph, {}, epoch).items();
    EXPECT_EQ(static_cast<std::int64_t>(items.size()), plain.sequences());
    for (const auto& item : items) order += as_text(item.tensor("tokens").bytes());
    orders.insert(order);
    if (epoch == 0) opened = 0;
  }
  EXPECT_EQ(orders.size(), 3u);
  EXPECT_EQ(opened, 0) << "the first epoch's corpus is reused";
}

TEST(ItemSources, SamplesResumeOnlyFromACursorOfTheSameCorpus) {
  const auto make = [](std::int64_t length) {
    const Files files = {{"a.jsonl", jsonl()}};
    return Graph::source(corpus({"a.jsonl"}, {.sequence = length,
                                              .shuffle_seed = 3,
                                              .tokenizer = byte_tokenizer(),
                                              .cache_dir = scratch_cache(),
                                              .open = [files](const auto& path) {
                                                return std::make_unique<MemoryFile>(path, files.at(path));
                                              }}));
  };
  const auto graph = make(row_tokens);
  const auto all = Opened(graph, {}, 2).items();
  Opened opened(graph, {}, 2);
  opened.items(17);
  Opened again(graph, {}, 2);
  again.iterator().restore(opened.iterator().save());
  EXPECT_EQ(again.items(), std::vector<Tree>(all.begin() + 17, all.end()));
  EXPECT_THROW(Opened(make(row_tokens / 2)).iterator().restore(opened.iterator().save()), InvalidArgument);
}

TEST(ItemSources, FailWithTheErrorOfTheSource) {
  auto files = Files{{"a.jsonl", jsonl() + "no json\n"}};
  const auto graph = Graph::source(corpus(
      {"a.jsonl"}, {.sequence = row_tokens,
                    .tokenizer = byte_tokenizer(),
                    .cache_dir = scratch_cache(),
                    .open = [files](const auto& path) { return std::make_unique<MemoryFile>(path, files.at(path)); }}));
  const auto failure = failure_of([&] { Opened opened(graph); });
  EXPECT_EQ(failure.stage, "source");
  EXPECT_EQ(failure.kind, ErrorKind::source);
  EXPECT_THAT(failure.message, HasSubstr("a.jsonl"));
}

}  // namespace
}  // namespace levada::pipeline::testing
