#include "levada/sources/block_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <future>
#include <latch>
#include <mutex>
#include <random>
#include <thread>

#include "levada/base/error.h"
#include "levada/base/forked_testing.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::string random_bytes(std::size_t size) {
  std::mt19937 random(7);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

/// Records file operations of all threads.
class Log {
 public:
  struct Read {
    std::uint64_t offset;
    std::size_t bytes;
    bool operator==(const Read&) const = default;
  };

  void add(std::uint64_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    reads_.push_back({offset, bytes});
    changed_.notify_all();
  }
  std::vector<Read> reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& read : reads()) sum += read.bytes;
    return sum;
  }
  /// Returns false after a minute.
  bool wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return reads_.size() >= count; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Read> reads_;
};

/// Unlike a MemoryFile, may be read by several threads at once.
class RemoteFile final : public File {
 public:
  RemoteFile(std::shared_ptr<const std::string> content, std::shared_ptr<Log> log,
             std::function<void(std::uint64_t)> before_read = {})
      : content_(std::move(content)), log_(std::move(log)), before_read_(std::move(before_read)) {}

  const std::string& path() const override { return path_; }
  FileIdentity identity() const override { return {.size = content_->size()}; }
  std::size_t read(std::uint64_t offset, std::span<char> into) const override {
    log_->add(offset, into.size());
    if (before_read_) before_read_(offset);
    const auto count = std::min(into.size(), content_->size() - offset);
    std::copy_n(content_->data() + offset, count, into.data());
    return count;
  }

 private:
  std::shared_ptr<const std::string> content_;  // a fetch may outlast the test
  std::string path_ = "s3://bucket/file";
  std::shared_ptr<Log> log_;
  std::function<void(std::uint64_t)> before_read_;
};

const BlockCacheOptions small{
    .max_bytes = 1024, .ahead_bytes = 512, .block_bytes = 16, .fetch_bytes = 64, .fetches = 3};
const BlockCacheOptions without_threads{.max_bytes = 1024, .block_bytes = 16, .fetches = 0};

struct Cached {
  explicit Cached(const BlockCacheOptions& options, std::size_t size = 10'000,
                  std::function<void(std::uint64_t)> before_read = {})
      : content(std::make_shared<std::string>(random_bytes(size))),
        file(std::make_shared<BlockCache>(options)->wrap(
            std::make_unique<RemoteFile>(content, log, std::move(before_read)))) {}

  /// Returns whether a read yields the right bytes.
  bool reads_right(std::uint64_t offset, std::size_t bytes) const {
    std::string into(bytes, '\0');
    into.resize(read_fully(*file, offset, into));
    return into == content->substr(std::min<std::uint64_t>(offset, content->size()), bytes);
  }

  std::shared_ptr<std::string> content;
  std::shared_ptr<Log> log = std::make_shared<Log>();
  std::unique_ptr<File> file;
};

TEST(BlockCache, ReadsTheSameAsThePlainFileFromManyThreads) {
  const ScratchDir dir;
  for (const auto& folder : {std::string(), dir.path()}) {
    auto options = small;
    options.dir = folder;
    const Cached cached(options);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 6; ++seed) {
      threads.emplace_back([&, seed] {
        std::mt19937 random(seed);
        std::uint64_t next = 0;
        for (int i = 0; i < 2000; ++i) {
          if (random() % 3 == 0) next = random() % 10'100;  // Else further ahead.
          if (random() % 2 == 0) cached.file->will_read(random() % 2 == 0 ? next : random() % 10'100, random() % 900);
          const auto bytes = random() % 200;
          if (!cached.reads_right(next, bytes)) ++wrong;
          next += bytes;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

TEST(BlockCache, EvictsTheLeastRecentlyReadBlockFirst) {
  auto options = without_threads;
  options.max_bytes = 3 * 16;
  const Cached cached(options);
  for (const std::uint64_t offset : {0, 16, 32, 0, 48, 0, 16}) EXPECT_TRUE(cached.reads_right(offset, 16));
  EXPECT_THAT(cached.log->reads(), ElementsAre(Log::Read{0, 16}, Log::Read{16, 16}, Log::Read{32, 16},
                                               Log::Read{48, 16}, Log::Read{16, 16}));
}

TEST(BlockCache, FetchesTheBlocksOfAReadInOneRequest) {
  const Cached cached(without_threads);
  EXPECT_TRUE(cached.reads_right(20, 100));
  EXPECT_THAT(cached.log->reads(), ElementsAre(Log::Read{16, 112}));
}

TEST(BlockCache, ItsFileHasNoNameAndNeverGrowsBeyondTheBound) {
  const ScratchDir dir;
  auto options = small;
  options.dir = dir.file("cache");
  const Cached cached(options);
  for (std::uint64_t offset = 0; offset < 10'000; offset += 40) EXPECT_TRUE(cached.reads_right(offset, 40));
  EXPECT_TRUE(std::filesystem::is_empty(dir.file("cache")));
  std::uint64_t size = 0;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (!std::filesystem::read_symlink(fd.path(), error).string().starts_with(dir.path())) continue;
    struct stat status {};
    ASSERT_EQ(::stat(fd.path().c_str(), &status), 0);
    size = static_cast<std::uint64_t>(status.st_size);
  }
  EXPECT_GT(size, 512U);
  EXPECT_LE(size, 1024U);
}

TEST(BlockCache, SeveralReadersOfABlockWaitForOneFetch) {
  std::atomic<int> begun = 0;
  std::latch all(4);
  Cached cached(without_threads, 100, [&](std::uint64_t) {
    ++begun;
    all.wait();
  });
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      all.count_down();
      if (!cached.reads_right(3, 10)) ++wrong;
    });
  }
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(begun, 1);
}

TEST(BlockCache, PrefetchesAnnouncedRangesConcurrentlyInLargePieces) {
  std::latch three(3);  // Passed only when three fetches run concurrently.
  Cached cached(small, 10'000, [&](std::uint64_t) { three.arrive_and_wait(); });
  cached.file->will_read(0, 192);
  cached.log->wait_for(3);
  for (const std::uint64_t offset : {0, 64, 128}) EXPECT_TRUE(cached.reads_right(offset, 64));
  EXPECT_EQ(cached.log->bytes(), 192U);
}

// A sanitizer ends a process that cannot allocate.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(BlockCache, PrefetchesWithTheThreadsThatTheSystemAllows) {
  for (const std::size_t threads : {0, 1}) {
    EXPECT_EQ(with_room_for_threads(threads,
                                    [&] {
                                      const Cached cached(small);
                                      cached.file->will_read(0, 192);
                                      if (threads > 0 && !cached.log->wait_for(3)) return 1;
                                      return cached.reads_right(0, 192) ? 0 : 2;
                                    }),
              0);
  }
}
#endif

TEST(BlockCache, LimitsThePrefetchDistance) {
  const Cached cached(small);
  cached.file->will_read(0, 10'000);
  cached.log->wait_for(8);
  EXPECT_TRUE(cached.reads_right(0, 512));  // Only this makes space for as many bytes again.
  cached.log->wait_for(16);
  EXPECT_EQ(cached.log->bytes(), 1024U);
}

TEST(BlockCache, UnreadAnnouncementsDoNotEndPrefetching) {
  const Cached cached(small);
  cached.file->will_read(0, 512);
  cached.log->wait_for(8);
  EXPECT_TRUE(cached.reads_right(5000, 1));
  cached.file->will_read(6000, 64);
  cached.log->wait_for(10);
  EXPECT_TRUE(cached.reads_right(6000, 48));
  EXPECT_LE(cached.log->reads().size(), 11U);
}

TEST(BlockCache, UnreadAnnouncementsThatAlmostFillTheBudgetDoNotEndPrefetching) {
  const Cached cached(small);
  cached.file->will_read(0, 480);  // 2 blocks of the budget remain, fewer than a fetch has
  ASSERT_TRUE(cached.log->wait_for(8));
  cached.file->will_read(6000, 208);
  EXPECT_TRUE(cached.reads_right(6000, 16));
  ASSERT_TRUE(cached.log->wait_for(12));
  EXPECT_TRUE(cached.reads_right(6000, 208));
  auto reads = cached.log->reads();
  reads.erase(reads.begin(), reads.begin() + 8);
  EXPECT_THAT(reads,
              UnorderedElementsAre(Log::Read{6000, 16}, Log::Read{6016, 64}, Log::Read{6080, 64}, Log::Read{6144, 64}));
}

TEST(BlockCache, SequentialAnnouncementsArePrefetchedFurther) {
  const Cached cached(small);
  for (std::uint64_t offset = 0; offset < 160; offset += 16) cached.file->will_read(offset, 16);
  while (cached.log->bytes() < 256) std::this_thread::yield();
  EXPECT_TRUE(cached.reads_right(0, 256));
}

TEST(BlockCache, AFaultReachesAllWaitersAndTheNextReadRetries) {
  std::atomic<int> faults = 1;
  const Cached cached(without_threads, 100, [&](std::uint64_t) {
    if (faults-- > 0) throw StorageFault(EIO, "cannot read byte 0 of s3://bucket/file: it fails");
  });
  EXPECT_THROW(cached.reads_right(0, 10), StorageFault);
  EXPECT_TRUE(cached.reads_right(0, 10));
}

TEST(BlockCache, OnlyTheReaderSeesAFaultOfAPrefetch) {
  std::atomic<bool> fails = true;
  const Cached cached(small, 10'000, [&](std::uint64_t offset) {
    if (fails && offset == 64) throw StorageFault(EIO, "cannot read byte 64 of s3://bucket/file: it fails");
  });
  cached.file->will_read(0, 192);
  cached.log->wait_for(2);
  EXPECT_TRUE(cached.reads_right(0, 64));
  EXPECT_THROW(cached.reads_right(64, 1), StorageFault);
  fails = false;
  EXPECT_TRUE(cached.reads_right(0, 192));
}

TEST(BlockCache, AnEarlyEndOfTheFileIsAnError) {
  Cached cached(without_threads, 100);
  cached.content->resize(50);
  EXPECT_TRUE(cached.reads_right(0, 16));
  try {
    cached.reads_right(40, 16);
    FAIL();
  } catch (const SourceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("s3://bucket/file ends at byte 50, 50 bytes short"));
  }
}

TEST(BlockCache, AFileMayCloseDuringAPrefetch) {
  std::latch begun(1), proceed(1);
  auto options = small;
  options.fetches = 1;
  Cached cached(options, 10'000, [&](std::uint64_t) {
    begun.count_down();
    proceed.wait();
  });
  const std::weak_ptr<Log> log = cached.log;
  cached.file->will_read(0, 10);
  begun.wait();
  cached.file.reset();
  cached.log.reset();
  EXPECT_FALSE(log.expired());  // The running fetch still needs the file.
  proceed.count_down();
  while (!log.expired()) std::this_thread::yield();
}

/// A file whose destructor waits for a lock, as that of a Python object waits for the interpreter's.
class LockingFile final : public File {
 public:
  struct State {
    std::mutex lock;
    std::latch begun{1}, proceed{1}, closing{1};
  };
  explicit LockingFile(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~LockingFile() override {
    state_->closing.count_down();
    const std::lock_guard lock(state_->lock);
  }

  const std::string& path() const override { return path_; }
  FileIdentity identity() const override { return {.size = 16}; }
  std::size_t read(std::uint64_t /*offset*/, std::span<char> into) const override {
    state_->begun.count_down();
    state_->proceed.wait();
    std::ranges::fill(into, ' ');
    return into.size();
  }

 private:
  std::string path_ = "s3://bucket/locking";
  std::shared_ptr<State> state_;
};

TEST(BlockCache, AFileMayCloseWhileTheDestructorOfAnotherWaitsForALock) {
  auto options = small;
  options.fetches = 1;
  const auto cache = std::make_shared<BlockCache>(options);
  const auto state = std::make_shared<LockingFile::State>();
  auto file = cache->wrap(std::make_unique<LockingFile>(state));
  auto other = cache->wrap(std::make_unique<MemoryFile>("s3://bucket/other", "text"));
  file->will_read(0, 16);
  state->begun.wait();
  file.reset();
  std::unique_lock lock(state->lock);
  state->proceed.count_down();
  state->closing.wait();
  auto closed = std::async(std::launch::async, [&] { other.reset(); });
  EXPECT_EQ(closed.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  lock.unlock();
}

TEST(BlockCache, AForkedProcessMustOpenTheFileItself) {
  const Cached cached(small);
  cached.file->will_read(0, 64);
  EXPECT_TRUE(cached.reads_right(0, 64));
  const auto child = ::fork();
  if (child == 0) {
    try {
      cached.reads_right(0, 64);
      ::_exit(1);
    } catch (const SourceError&) {
      ::_exit(0);
    }
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(BlockCache, NamesTheRemedyForAnUnwritableFolder) {
  auto options = small;
  options.dir = "/proc/none";
  try {
    BlockCache cache(options);
    FAIL();
  } catch (const SourceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/proc/none: "));
    EXPECT_THAT(error.what(), HasSubstr("name another folder (--cache-dir"));
  }
}

}  // namespace
}  // namespace levada
