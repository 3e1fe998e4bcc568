#include "levada/sources/storage.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "levada/base/error.h"
#include "levada/base/forked_testing.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/retry.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using std::chrono::milliseconds;

/// Collects messages of threads, and waits for them.
class Heard {
 public:
  std::function<void(const std::string&)> listener() {
    return [this](const std::string& warning) {
      const std::lock_guard lock(mutex_);
      warnings_.push_back(warning);
      changed_.notify_all();
    };
  }
  /// Returns all so far, once there are at least `count`, or after a generous timeout.
  std::vector<std::string> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return warnings_.size() >= count; });
    return warnings_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> warnings_;
};

/// Returns a file in memory whose first `times` reads fail with `error`.
std::unique_ptr<MemoryFile> failing(int times, int error) {
  auto file = std::make_unique<MemoryFile>("a.txt", "hello");
  file->before_read = [left = times, error](std::uint64_t offset) mutable {
    if (left-- > 0) throw StorageFault(error, fmt::format("cannot read byte {} of a.txt: broken", offset));
  };
  return file;
}

std::string read_through(const IoOptions& options, std::unique_ptr<File> file) try {
  const Storage storage(options, [&](const std::string&) { return std::move(file); });
  std::string into(5, '-');
  read_fully(*storage.open("a.txt"), 0, into);
  return into;
} catch (const SourceError& error) {
  return error.what();
}

TEST(Storage, RetriesTransientFaults) {
  for (const int error : {EIO, ESTALE, ETIMEDOUT, EAGAIN, EINTR}) {
    Heard heard;
    EXPECT_EQ(read_through({.retry_after = milliseconds(1), .warn = heard.listener()}, failing(4, error)), "hello");
    EXPECT_THAT(heard.wait_for(1), ElementsAre("cannot read byte 0 of a.txt: broken; trying again"));
  }
}

TEST(Storage, FailsAfterAllTriesAndReportsTheirNumber) {
  EXPECT_THAT(read_through({.retry_after = milliseconds(1)}, failing(5, EIO)),
              HasSubstr("cannot read byte 0 of a.txt: broken (tried 5 times in "));
  EXPECT_THAT(read_through({.tries = 1}, failing(1, EIO)), HasSubstr("(tried once in "));
  // The pauses alone would exceed the allowed time.
  EXPECT_THAT(
      read_through({.tries = 1000, .retry_after = milliseconds(4), .retry_for = milliseconds(20)}, failing(1000, EIO)),
      AllOf(HasSubstr("(tried "), HasSubstr(" times in ")));
}

TEST(Storage, RetriesEvenAfterASlowFirstTry) {
  auto file = std::make_unique<MemoryFile>("a.txt", "hello");
  file->before_read = [is_first = true](std::uint64_t) mutable {
    if (!std::exchange(is_first, false)) return;
    std::this_thread::sleep_for(milliseconds(60));
    throw StorageFault(ETIMEDOUT, "timed out");
  };
  EXPECT_EQ(read_through({.retry_after = milliseconds(1), .retry_for = milliseconds(50)}, std::move(file)), "hello");
}

TEST(Storage, DoesNotRetryPermanentFaults) {
  EXPECT_EQ(read_through({.retry_after = std::chrono::hours(1)}, failing(1, EACCES)),
            "cannot read byte 0 of a.txt: broken");
  EXPECT_FALSE(may_pass(ENOENT));
}

TEST(Storage, ReopensIfThatMayHelp) {
  int tries = 0;
  const Storage storage({.retry_after = milliseconds(1)}, [&](const std::string& path) -> std::unique_ptr<File> {
    if (++tries < 3) throw StorageFault(ESTALE, "cannot open a.txt: stale");
    return std::make_unique<MemoryFile>(path, "hello");
  });
  EXPECT_EQ(storage.open("a.txt")->identity().size, 5);
  EXPECT_EQ(tries, 3);
}

TEST(Storage, WarnsAboutASlowReadAgainWheneverItsTimeDoubles) {
  Heard heard;
  auto file = std::make_unique<MemoryFile>("slow.txt", "hello");
  std::vector<std::string> warnings;
  file->before_read = [&](std::uint64_t) { warnings = heard.wait_for(3); };
  EXPECT_EQ(read_through({.stall_after = milliseconds(20), .warn = heard.listener()}, std::move(file)), "hello");
  EXPECT_THAT(warnings,
              ElementsAre("reading byte 0 of slow.txt has taken 20.0 ms so far: its storage is slow, or hangs",
                          HasSubstr("has taken 40.0 ms"), HasSubstr("has taken 80.0 ms")));
}

TEST(Storage, DoesNotWarnWhileReadsComplete) {
  Heard heard;
  const Storage storage({.stall_after = std::chrono::seconds(30), .warn = heard.listener()},
                        [](const std::string& path) { return std::make_unique<MemoryFile>(path, "hello"); });
  const auto file = storage.open("a.txt");
  std::string into(5, '-');
  for (int i = 0; i < 1000; ++i) file->read(0, into);
  EXPECT_THAT(heard.wait_for(0), ElementsAre());
}

TEST(SlowReadMonitor, WarnsAgainAfterARest) {
  Heard heard;
  SlowReadMonitor monitor(milliseconds(10), heard.listener());
  const std::string path = "a.txt";
  for (std::size_t round = 1; round <= 3; ++round) {
    const auto before = heard.wait_for(0).size();
    {
      const auto read = monitor.begin(path, round);
      EXPECT_GT(heard.wait_for(before + 1).size(), before);
    }
    std::this_thread::sleep_for(milliseconds(30));  // Long enough for its thread to end, though nothing depends on it.
  }
}

TEST(SlowReadMonitor, IgnoresReadsInAForkedProcess) {
  auto monitor = std::make_unique<SlowReadMonitor>(std::chrono::minutes(5), [](const std::string&) {});
  const std::string path = "a.txt";
  const auto read = monitor->begin(path, 0);
  EXPECT_EQ(in_forked_process([&] {
              { const auto another = monitor->begin(path, 1); }
              monitor.reset();
              return 0;
            }),
            0);
}

// A sanitizer ends a process that cannot allocate.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(SlowReadMonitor, LetsReadsProceedIfItsThreadIsRefused) {
  EXPECT_EQ(with_room_for_threads(0,
                                  [] {
                                    SlowReadMonitor monitor(milliseconds(1), [](const std::string&) {});
                                    const std::string path = "a.txt";
                                    const auto read = monitor.begin(path, 0);
                                    const auto another = monitor.begin(path, 1);
                                    return 0;
                                  }),
            0);
}
#endif

TEST(RateLimit, LimitsTheTotalRateOfAllReaders) {
  RateLimit limit(1000);
  const auto begin = Clock::now();
  // A preceding pause is worth a tenth of a second.
  EXPECT_EQ(limit.take(100, begin), begin);
  EXPECT_EQ(limit.take(500, begin), begin + milliseconds(500));
  EXPECT_EQ(limit.take(500, begin), begin + milliseconds(1000));
  EXPECT_EQ(limit.take(0, begin + milliseconds(1000)), begin + milliseconds(1000));
  EXPECT_EQ(limit.take(200, begin + milliseconds(5000)), begin + milliseconds(5100));
}

TEST(Storage, ReadsNoFasterThanAllowed) {
  const Storage storage({.limit_mb_s = 1}, [](const std::string& path) {
    return std::make_unique<MemoryFile>(path, std::string(150'000, 'a'));
  });
  const auto one = storage.open("a.txt"), other = storage.open("b.txt");
  std::string into(150'000, '-');
  const auto begin = Clock::now();
  read_fully(*one, 0, into);
  read_fully(*other, 0, into);
  EXPECT_GE(Clock::now() - begin, milliseconds(200));
}

TEST(Storage, RejectsInvalidOptions) {
  const auto fault = [](const IoOptions& options) -> std::string {
    try {
      Storage(options, open_file);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no fault";
  };
  EXPECT_THAT(fault({.threads = 0}), HasSubstr("the number of reading threads is 0; it must be from 1 to 256"));
  EXPECT_THAT(fault({.threads = 257}), HasSubstr("reading threads is 257"));
  EXPECT_THAT(fault({.limit_mb_s = -1}), HasSubstr("-1 MB/s"));
  EXPECT_THAT(fault({.limit_mb_s = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("nan MB/s"));
  EXPECT_THAT(fault({.tries = 0}), HasSubstr("tried 0 times"));
}

}  // namespace
}  // namespace levada
