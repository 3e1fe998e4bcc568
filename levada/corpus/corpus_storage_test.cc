#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <numeric>
#include <random>
#include <set>

#include "levada/base/error.h"
#include "levada/corpus/corpus_testing.h"
#include "levada/sources/megatron_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

/// Returns documents of up to 300 tokens.
Files some_tokens(const std::string& name, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint16_t> tokens;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> documents = {0};
  for (int i = 0; i < 300; ++i) {
    lengths.push_back(static_cast<std::int32_t>(random() % 300));
    for (int length = lengths.back(); length > 0; --length) tokens.push_back(static_cast<std::uint16_t>(random()));
    documents.push_back(i + 1);
  }
  return {{name + ".bin", raw_bin(tokens)}, {name + ".idx", raw_index(8, 2, lengths, documents).bytes()}};
}

/// Opens two data sets in memory. `before_read` runs before each of their reads.
Corpus open_with(CorpusOptions options, const std::function<void(const std::string&, std::uint64_t)>& before_read = {},
                 std::size_t max_at_once = SIZE_MAX) {
  auto files = some_tokens("a", 1);
  files.merge(some_tokens("b", 2));
  options.open = [=](const std::string& path) {
    auto file = std::make_unique<MemoryFile>(path, files.at(path));
    file->max_at_once = max_at_once;
    if (before_read) file->before_read = [=](std::uint64_t offset) { before_read(path, offset); };
    return file;
  };
  return Corpus::open({"a.bin", "b.bin"}, options);
}

std::vector<Tree> batches_of(Corpus& corpus, std::int64_t count) {
  HeapMemory memory;
  std::vector<Tree> batches;
  for (std::int64_t first = 0; first + count <= corpus.sequences(); first += count) {
    batches.push_back(corpus.read(first, count, memory).value());
  }
  return batches;
}

TEST(CorpusStorage, ThreadsAndShortReadsDoNotChangeTheData) {
  for (const auto packing : {Packing::cut, Packing::best_fit, Packing::documents}) {
    for (const auto seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(4)}) {
      const CorpusOptions plain{.sequence = 64, .shuffle_seed = seed, .packing = packing, .attention_mask = true};
      auto alone = open_with(plain);
      const auto wanted = batches_of(alone, 16);
      for (const int threads : {2, 3, 8}) {
        auto options = plain;
        options.io.threads = threads;
        auto corpus = open_with(options, {}, threads == 3 ? 7 : SIZE_MAX);
        EXPECT_EQ(batches_of(corpus, 16), wanted) << threads;
        EXPECT_EQ(corpus.stats().bytes_consumed, alone.stats().bytes_consumed);
      }
    }
  }
}

TEST(CorpusStorage, ReadsRowsConcurrently) {
  std::latch all(4);  // passes only if four reads are in progress at once
  std::atomic<bool> opened = false;
  auto corpus =
      open_with({.sequence = 64, .shuffle_seed = 1, .io = {.threads = 4}}, [&](const std::string&, std::uint64_t) {
        if (opened) all.arrive_and_wait();
      });
  opened = true;
  HeapMemory memory;
  EXPECT_TRUE(corpus.read(0, 4, memory));
}

TEST(CorpusStorage, RetriesATransientFaultAndFailsIfItPersists) {
  auto untouched = open_with({.sequence = 64, .shuffle_seed = 2});
  const auto wanted = batches_of(untouched, 8);
  for (const int threads : {1, 3}) {
    std::mutex mutex;
    std::set<std::pair<std::string, std::uint64_t>> seen;
    bool stays = false;
    auto corpus =
        open_with({.sequence = 64,
                   .shuffle_seed = 2,
                   .io = {.threads = threads, .tries = 3, .retry_after = std::chrono::milliseconds(1)}},
                  [&](const std::string& path, std::uint64_t offset) {
                    const std::lock_guard lock(mutex);
                    if (!seen.emplace(path, offset).second && !stays) return;  // the second read succeeds
                    throw StorageFault(EIO, fmt::format("cannot read byte {} of {}: Input/output error", offset, path));
                  });
    EXPECT_EQ(batches_of(corpus, 8), wanted);
    stays = true;
    HeapMemory memory;
    try {
      corpus.read(0, 8, memory);
      FAIL();
    } catch (const SourceError& error) {
      EXPECT_THAT(error.what(), HasSubstr(".bin: Input/output error (tried 3 times in "));
    }
    stays = false;
    EXPECT_EQ(corpus.read(0, 8, memory), wanted.front());
  }
}

/// Opens the data sets of open_with() in remote storage.
Corpus open_remote(CorpusOptions options, const std::function<void(const std::string&)>& before_read) {
  auto files = some_tokens("s3://bucket/a", 1);
  files.merge(some_tokens("s3://bucket/b", 2));
  options.remote.open = [=](const std::string& url) {
    auto file = std::make_unique<MemoryFile>(url, files.at(url));
    file->before_read = [=](std::uint64_t) { before_read(url); };
    return file;
  };
  options.cache_dir = scratch_cache();
  return Corpus::open({"s3://bucket/a.bin", "s3://bucket/b.bin"}, options);
}

TEST(CorpusStorage, ReturnsTheSameFromRemoteStorage) {
  for (const auto packing : {Packing::cut, Packing::best_fit, Packing::documents}) {
    for (const auto seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(4)}) {
      const CorpusOptions options{.sequence = 64, .shuffle_seed = seed, .packing = packing};
      auto local = open_with(options), remote = open_remote(options, [](const std::string&) {});
      EXPECT_EQ(remote.digest(), local.digest());
      EXPECT_EQ(batches_of(remote, 16), batches_of(local, 16));
      auto unread = open_remote(options, [](const std::string&) {});
      EXPECT_EQ(unread.sizes(0, 16), local.sizes(0, 16));
      HeapMemory memory;
      const std::vector<std::int64_t> numbers = {9, 3, 15, 4};
      EXPECT_EQ(unread.gather(numbers, memory), local.gather(numbers, memory));
    }
  }
}

TEST(CorpusStorage, FetchesGatheredSamplesConcurrentlyFromRemoteStorage) {
  constexpr std::int32_t length = 1 << 16;
  constexpr int documents = 192;  // more than the cache holds
  std::vector<std::int64_t> ends(documents + 1);
  std::iota(ends.begin(), ends.end(), 0);
  const Files files = {{"s3://bucket/a.bin", std::string(std::size_t{length} * documents, 'a')},
                       {"s3://bucket/a.idx", raw_index(1, 1, std::vector(documents, length), ends).bytes()}};
  /// Holds back reads of the wanted blocks until all of them are in progress at once.
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    std::set<std::uint64_t> wanted, under_way;  ///< by offset

    void pass(std::uint64_t offset) {
      std::unique_lock lock(mutex);
      if (!wanted.contains(offset)) return;
      under_way.insert(offset);
      changed.notify_all();
      changed.wait_for(lock, std::chrono::seconds(20), [&] { return under_way == wanted; });
    }
  };
  const auto gate = std::make_shared<Gate>();  // a prefetch may outlive the corpus
  CorpusOptions options{.sequence = length, .packing = Packing::documents, .cache_dir = scratch_cache()};
  options.cache_bytes = std::uint64_t{8} << 20;
  options.remote.open = [&](const std::string& url) {
    auto file = std::make_unique<MemoryFile>(url, files.at(url));
    if (url.ends_with(".bin")) file->before_read = [gate](std::uint64_t offset) { gate->pass(offset); };
    return file;
  };
  auto corpus = Corpus::open({"s3://bucket/a.bin"}, options);
  HeapMemory memory;
  std::vector<std::int64_t> others(documents - 64);
  std::iota(others.begin(), others.end(), 64);
  // Evicts what opening has left in the cache, and waits out late prefetches.
  for (int turn = 0; turn < 3; ++turn) corpus.gather(others, memory);
  const std::vector<std::int64_t> samples = {48, 0, 32, 16};
  {
    const std::lock_guard lock(gate->mutex);
    for (const auto sample : samples) gate->wanted.insert(static_cast<std::uint64_t>(sample * length));
  }
  EXPECT_EQ(corpus.gather(samples, memory).tensor("tokens").shape(), (Shape{1, 4 * (length - 1)}));
  EXPECT_EQ(gate->under_way, gate->wanted);
}

TEST(CorpusStorage, AUrlWithoutRemoteFilesNamesTheRequiredPackage) {
  try {
    Corpus::open({"s3://bucket/a.bin"});
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("s3://bucket/a.idx is a URL, which only the Python package reads"));
  }
}

TEST(CorpusStorage, RejectsInvalidOptions) {
  EXPECT_THROW(open_with({.io = {.threads = 0}}), InvalidArgument);
}

}  // namespace
}  // namespace levada
