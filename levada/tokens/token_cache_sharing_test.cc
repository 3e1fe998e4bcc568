#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <latch>
#include <optional>
#include <utility>

#include "levada/base/refusal_testing.h"
#include "levada/base/threads.h"
#include "levada/tokens/token_caching_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
namespace fs = std::filesystem;

/// Another process, which runs `act` and then exits without any cleanup.
class Child {
 public:
  explicit Child(const std::function<void()>& act) : id_(::fork()) {
    if (id_ != 0) return;
    try {
      act();
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  ~Child() { kill(); }
  /// Returns its exit status, or minus the signal that has ended it.
  int wait() {
    int status = 0;
    EXPECT_EQ(::waitpid(std::exchange(id_, 0), &status, 0) > 0, true);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }
  void kill() {
    if (id_ == 0) return;
    ::kill(id_, SIGKILL);
    wait();
  }

 private:
  pid_t id_;
};

/// An event that another process or thread signals.
class Signal {
 public:
  Signal() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Signal() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void give() const { EXPECT_EQ(::write(ends_[1], "x", 1), 1); }
  void await() const {
    char byte = 0;
    EXPECT_EQ(::read(ends_[0], &byte, 1), 1);
  }

 private:
  int ends_[2] = {};
};

using TokenCacheSharing = TokenCaching;

TEST_F(TokenCacheSharing, OneOfManyThreadsCreatesAnEntry) {
  auto cache = open();
  std::latch all(4);
  std::vector<std::string> prefixes(4);
  {
    ThreadGroup threads;
    for (auto& prefix : prefixes) {
      threads.start("testing", [&] {
        auto own = open();
        all.arrive_and_wait();
        prefix = tokenize(&prefix == prefixes.data() ? own : cache, b_).prefix;
      });
    }
  }
  for (const auto& prefix : prefixes) EXPECT_EQ(prefix, prefixes[0]);
  EXPECT_EQ(tokenizer_->num_texts, 1);
  EXPECT_THAT(names_in_cache(), SizeIs(3));
}

TEST_F(TokenCacheSharing, ThreadsOfFinishedTextsHelpWithTheRest) {
  std::mutex mutex;
  std::condition_variable more;
  int at_once = 0, max_at_once = 0;
  const auto tokenizer = std::make_shared<HookedTokenizer>([&](const Texts& texts) {
    if (texts.size() == 1) return;  // the small one
    std::unique_lock lock(mutex);
    max_at_once = std::max(max_at_once, ++at_once);
    more.notify_all();
    more.wait_for(lock, std::chrono::seconds(10), [&] { return max_at_once == 2; });
    --at_once;
  });
  auto cache = open();
  const auto made = cache.tokenize({write_large(4), b_}, {.tokenizer = tokenizer, .threads = 2});
  EXPECT_EQ(max_at_once, 2);
  EXPECT_EQ(tokens_in(made[1].prefix), tokens_in(tokenize_alone(b_).prefix));
}

TEST_F(TokenCacheSharing, OneOfManyProcessesCreatesAnEntryWhileOthersWait) {
  const Signal begun, waiting;
  Child maker([&] {
    tokenizer_ = std::make_shared<HookedTokenizer>([&](const Texts&) {
      begun.give();
      waiting.await();
    });
    tokenize_alone(b_);
  });
  begun.await();
  TokenCache cache({.dir = dir_.file("cache"), .warn = [&](const std::string& text) {
                      warnings_.push_back(text);
                      waiting.give();
                    }});
  EXPECT_EQ(tokenize(cache, b_).bytes_read, 0);
  EXPECT_EQ(tokenizer_->num_texts, 0);
  EXPECT_THAT(warnings_, ElementsAre("another process is tokenizing " + b_ + ": waiting for its tokens"));
  EXPECT_EQ(maker.wait(), 0);
}

TEST_F(TokenCacheSharing, CreatesAnEntryWhoseCreatorWasKilled) {
  const auto path = write_large(4);
  const auto expected = [&] {
    TokenCache elsewhere({.dir = dir_.file("elsewhere")});
    return tokens_in(tokenize(elsewhere, path).prefix);
  }();
  const Signal begun, waiting;
  Child maker([&] {
    int num_pieces = 0;
    tokenizer_ = std::make_shared<HookedTokenizer>([&](const Texts&) {
      if (++num_pieces < 12) return;  // Some megabytes are written by then.
      begun.give();
      waiting.await();
    });
    tokenize_alone(path);
  });
  begun.await();
  EXPECT_THAT(names_in_cache(), SizeIs(3));
  for (const auto& name : names_in_cache()) EXPECT_THAT(name, EndsWith(".partial"));
  TokenCache cache({.dir = dir_.file("cache"), .warn = [&](const std::string&) { maker.kill(); }});
  EXPECT_THAT(cache.folder().entries(), IsEmpty());
  const auto made = tokenize(cache, path);
  EXPECT_EQ(made.bytes_read, fs::file_size(path));
  EXPECT_EQ(tokens_in(made.prefix), expected);
  EXPECT_THAT(names_in_cache(), SizeIs(3));
}

TEST_F(TokenCacheSharing, RemovesLeftoversButNoUnfinishedEntryOfALiveProcess) {
  const auto kept = tokenize_alone(b_);
  const auto left = tokenize_alone(dir_.write("c.txt", "c"));
  fs::remove(left.prefix + ".json");  // Killed before it wrote that.
  Child killed([&] {
    tokenizer_ = std::make_shared<HookedTokenizer>([](const Texts&) { ::raise(SIGKILL); });
    tokenize_alone(dir_.write("d.txt", "d"));
  });
  EXPECT_EQ(killed.wait(), -SIGKILL);
  EXPECT_THAT(names_in_cache(), SizeIs(3 + 2 + 3));

  const Signal begun, pruned;
  std::string made;
  ThreadGroup threads;
  threads.start("testing", [&] {
    auto cache = open();
    const auto slow = std::make_shared<HookedTokenizer>([&](const Texts&) {
      begun.give();
      pruned.await();
    });
    made = cache.tokenize({dir_.write("e.txt", "ee")}, {.tokenizer = slow, .threads = 1}).at(0).prefix;
  });
  begun.await();
  auto cache = open();
  EXPECT_THAT(cache.folder().prune(UINT64_MAX), IsEmpty());
  EXPECT_THAT(names_in_cache(), SizeIs(3 + 3));
  pruned.give();
  threads.join();
  EXPECT_EQ(tokens_in(made), (std::vector<std::int64_t>{'e', 'e', 256}));
  EXPECT_EQ(tokenize(cache, b_).bytes_read, 0);
  EXPECT_EQ(tokenize(cache, b_).prefix, kept.prefix);
}

TEST_F(TokenCacheSharing, KeepsEntriesInUseByAnotherProcess) {
  const Signal begun, never;
  tokenize_alone(b_);
  Child user([&] {
    auto cache = open();
    tokenize(cache, b_);
    tokenize(cache, dir_.write("c.txt", "c"));
    begun.give();
    never.await();
  });
  begun.await();
  auto cache = open();
  ASSERT_THAT(cache.folder().entries(), SizeIs(2));
  for (const auto& entry : cache.folder().entries()) EXPECT_TRUE(entry.in_use) << entry.source;
  EXPECT_THAT(cache.folder().prune(0), IsEmpty());
  user.kill();
  for (const auto& entry : cache.folder().entries()) EXPECT_FALSE(entry.in_use) << entry.source;
  EXPECT_THAT(cache.folder().prune(0), SizeIs(2));
  EXPECT_THAT(names_in_cache(), IsEmpty());
}

TEST_F(TokenCacheSharing, KeepsTensOfThousandsOfEntriesInUseByOneProcess) {
  std::string list;
  for (int i = 0; i < 40'000; ++i) list += fmt::format("shard-{:05}.jsonl.zst-0123456789abcdef\n", i);
  list += fs::path(tokenize_alone(b_).prefix).filename().string() + "\n";
  const auto path = dir_.write("cache/tokens/in-use-abcdef", list);
  UniqueFd user(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(user.get(), LOCK_EX), 0);
  EXPECT_THAT(open().folder().prune(0), IsEmpty());
  user = {};
  EXPECT_THAT(open().folder().prune(0), SizeIs(1));
}

TEST_F(TokenCacheSharing, RemovesNothingIfAListOfEntriesInUseIsUnreadable) {
  tokenize_alone(b_);
  const auto path = dir_.file("cache/tokens/in-use-abcdef");
  fs::create_directory(path);
  EXPECT_THAT(refusal<SourceError>([&] { open().folder().prune(0); }),
              StartsWith(path + " lists entries of the token cache"));
  auto cache = open(0);
  EXPECT_GT(tokenize(cache, dir_.write("c.txt", "c")).bytes_read, 0);
  EXPECT_THAT(warnings_, ElementsAre(StartsWith(path)));
  EXPECT_THAT(names_in_cache(), SizeIs(2 * 3));
  fs::remove(path);
  EXPECT_THAT(cache.folder().entries(), SizeIs(2));
}

TEST_F(TokenCacheSharing, AForkedProcessDoesNotHoldTheFoldersLock) {
  const Signal never;
  auto cache = open();
  std::optional<FolderLock> held(cache.folder().lock_for_use());
  const Child forked([&] { never.await(); });
  const UniqueFd other(::open(dir_.file("cache/tokens/lock").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  held.reset();
  EXPECT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
}

TEST_F(TokenCacheSharing, AForkedProcessDoesNotReleaseEntriesInUse) {
  auto cache = std::make_unique<TokenCache>(TokenCacheOptions{.dir = dir_.file("cache")});
  tokenize(*cache, b_);
  Child forked([&] { cache.reset(); });
  EXPECT_EQ(forked.wait(), 0);
  EXPECT_THAT(open().folder().prune(0), IsEmpty());
  cache.reset();
  EXPECT_THAT(open().folder().prune(0), SizeIs(1));
}

}  // namespace
}  // namespace levada
