#include "levada/tokens/token_cache.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <latch>
#include <sstream>

#include "levada/base/fault_testing.h"
#include "levada/base/threads.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"
#include "levada/tokens/tokenizer_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
namespace fs = std::filesystem;

std::string content(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

/// Another process, which runs `act` and then ends without a word to anyone.
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
  /// Its exit status, or minus the signal that has ended it.
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

/// What a process waits for until another one, or another thread, gives it.
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

/// Texts and a cache in a folder.
class TokenCaching : public ::testing::Test {
 protected:
  TokenCache open(std::optional<std::uint64_t> max_bytes = {}) {
    return TokenCache({.dir = dir_.file("cache"), .max_bytes = max_bytes, .warn = [this](const std::string& text) {
                         const std::lock_guard lock(mutex_);
                         warnings_.push_back(text);
                       }});
  }
  CachedTokens tokenize(TokenCache& cache, const std::string& path) const {
    return cache.tokenize({path}, {.tokenizer = tokenizer_, .threads = 1}).at(0);
  }
  /// By a cache that is closed behind it.
  CachedTokens tokenize_alone(const std::string& path) {
    auto cache = open();
    return tokenize(cache, path);
  }

  /// Of some lines, `megabytes` of them.
  std::string write_large(std::size_t megabytes) const {
    std::string lines;
    while (lines.size() < megabytes << 20)
      lines += "{\"text\":\"" + std::string(1000, char('a' + lines.size() % 26)) + "\"}\n";
    return dir_.write("large.jsonl", lines);
  }

  std::vector<std::string> names_in_cache() const {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(dir_.file("cache/tokens"))) {
      const auto name = file.path().filename().string();
      if (name != "lock" && !name.starts_with("in-use-")) names.push_back(name);
    }
    return names;
  }

  ScratchDir dir_;
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::shared_ptr<HookedTokenizer> tokenizer_ = std::make_shared<HookedTokenizer>();
  const std::string a_ = dir_.write("a.jsonl", "{\"text\":\"hello\"}\n{\"text\":\"\"}\nbad\n{\"text\":\"you\"}\n");
  const std::string b_ = dir_.write("b.txt", "some more");
};

TEST_F(TokenCaching, TokenizesATextOnceAndFindsItsTokensLater) {
  const TokenizeTexts how{.tokenizer = tokenizer_, .text = {.skip_bad = true}, .threads = 2};
  auto cache = open();
  const auto made = cache.tokenize({a_, b_}, how);
  EXPECT_EQ(made[0].bytes_read, fs::file_size(a_));
  EXPECT_EQ(made[0].bad_lines, 1);
  EXPECT_EQ(tokens_in(made[0].prefix), (std::vector<std::int64_t>{'h', 'e', 'l', 'l', 'o', 256, 'y', 'o', 'u', 256}));
  EXPECT_EQ(made[1].bytes_read, fs::file_size(b_));
  EXPECT_EQ(tokens_in(made[1].prefix).size(), 10);
  EXPECT_EQ(tokenizer_->num_texts, 4);
  for (auto* again : {&cache, new TokenCache({.dir = dir_.file("cache")})}) {
    const auto found = again->tokenize({b_, a_}, how);
    EXPECT_EQ(found[1].prefix, made[0].prefix);
    EXPECT_EQ(found[1].bad_lines, 1);
    EXPECT_EQ(found[1].digest, made[0].digest);
    EXPECT_EQ(found[1].digest, TokenFile(made[0].prefix, {}).contents().digest);
    EXPECT_EQ(found[0].bytes_read + found[1].bytes_read, 0);
    if (again != &cache) delete again;
  }
  EXPECT_EQ(tokenizer_->num_texts, 4);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(TokenCaching, KeepsApartWhatBecomesOtherTokens) {
  auto cache = open();
  std::vector<std::string> prefixes;
  const auto add = [&](const std::string& path, const TokenizeTexts& how) {
    const auto made = cache.tokenize({path}, how).at(0);
    EXPECT_GT(made.bytes_read, 0);
    prefixes.push_back(made.prefix);
  };
  const auto path = dir_.write("c.jsonl", "{\"text\":\"hello\",\"body\":\"you\"}\n");
  const auto written = fs::last_write_time(path);
  add(path, {.tokenizer = tokenizer_});
  add(path, {.tokenizer = std::make_shared<HookedTokenizer>(nullptr, "other")});
  add(path, {.tokenizer = tokenizer_, .end_of_document = 0});
  add(path, {.tokenizer = tokenizer_, .text = {.text_field = "body"}});
  add(path, {.tokenizer = tokenizer_, .text = {.skip_bad = true}});
  fs::copy_file(path, dir_.file("d.jsonl"));
  add(dir_.file("d.jsonl"), {.tokenizer = tokenizer_});
  // As long and as old as it was.
  dir_.write("c.jsonl", "{\"text\":\"HELLO\",\"body\":\"you\"}\n");
  fs::last_write_time(path, written);
  add(path, {.tokenizer = tokenizer_});
  fs::last_write_time(path, written - std::chrono::seconds(1));
  add(path, {.tokenizer = tokenizer_});
  std::ranges::sort(prefixes);
  EXPECT_EQ(std::ranges::adjacent_find(prefixes), prefixes.end());
  EXPECT_THAT(cache.entries(), SizeIs(8));
}

TEST_F(TokenCaching, KnowsAFileByAnyOfItsNames) {
  const auto made = tokenize_alone(b_);
  fs::create_symlink(b_, dir_.file("link.txt"));
  for (const auto& name : {dir_.file("link.txt"), dir_.file("cache/../b.txt"), fs::proximate(b_).string()}) {
    const auto found = tokenize_alone(name);
    EXPECT_EQ(found.bytes_read, 0) << name;
    EXPECT_EQ(found.prefix, made.prefix);
  }
}

TEST_F(TokenCaching, ListsItsEntriesTheLastUsedFirst) {
  const auto made = tokenize_alone(b_);
  auto cache = open();
  tokenize(cache, dir_.write("a b\n.txt", "x"));
  fs::last_write_time(made.prefix + ".json", fs::file_time_type::clock::now() - std::chrono::hours(1));
  const auto entries = cache.entries();
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].source, fs::canonical(dir_.path()) / "a b\n.txt");
  EXPECT_THAT(entries[0].prefix, HasSubstr("/cache/tokens/a_b_.txt-"));
  EXPECT_TRUE(entries[0].in_use);
  EXPECT_FALSE(entries[1].in_use);
  EXPECT_EQ(entries[1].prefix, made.prefix);
  EXPECT_EQ(entries[1].tokenizer, "hooked");
  EXPECT_EQ(entries[1].documents, 1);
  EXPECT_EQ(entries[1].tokens, 10);
  EXPECT_EQ(entries[1].bytes, fs::file_size(made.prefix + ".bin") + fs::file_size(made.prefix + ".idx"));
  EXPECT_GT(entries[0].last_used, entries[1].last_used + 3000);
}

TEST_F(TokenCaching, LeavesNothingOfATextThatCannotBeTokenized) {
  auto cache = open();
  const auto fault = [&](const TokenizeTexts& how) {
    return fault_of([&] { cache.tokenize({b_, a_, "/none"}, how); });
  };
  for (const int threads : {1, 2}) {
    EXPECT_THAT(fault({.threads = threads, .open = [&](const std::string& path) { return open_file(path); }}),
                HasSubstr("/none: No such file"));
  }
  EXPECT_EQ(fault_of([&] {
              cache.tokenize({b_, a_}, {.threads = 2});
            }),
            "SourceError: " + a_ +
                ":3: the line cannot be used: it is not JSON: a comma, colon, brace or value is "
                "missing or out of place");
  for (const auto& name : names_in_cache()) EXPECT_THAT(name, HasSubstr("b.txt-")) << "the other text is whole";
  const auto empty = dir_.write("empty.txt", "");
  EXPECT_EQ(fault_of([&] { tokenize(cache, empty); }), "SourceError: " + empty + " is empty");
}

TEST_F(TokenCaching, TellsHowMuchOfAllTextsIsRead) {
  tokenize_alone(b_);
  const auto large = write_large(2);
  auto cache = open();
  std::vector<std::uint64_t> done;
  cache.tokenize({b_, large}, {.tokenizer = tokenizer_, .threads = 1, .progress = [&](const PrepareProgress& progress) {
                                 EXPECT_EQ(progress.path, large);
                                 EXPECT_EQ(progress.bytes_total, fs::file_size(large) + fs::file_size(b_));
                                 done.push_back(progress.bytes_done);
                               }});
  EXPECT_GT(done.size(), 2);
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(done.back(), fs::file_size(large) + fs::file_size(b_));
  const auto stop = [](const PrepareProgress&) { throw InvalidArgument("enough"); };
  EXPECT_EQ(fault_of([&] { cache.tokenize({dir_.write("c.txt", "c")}, {.progress = stop}); }),
            "InvalidArgument: enough");
}

TEST_F(TokenCaching, NoticesATextThatChangesWhileItIsTokenized) {
  const auto fault = [&](const std::function<void()>& change) {
    dir_.write("c.txt", "before");
    const auto changing = std::make_shared<HookedTokenizer>([&](const Texts&) { change(); });
    auto cache = open();
    const auto said = fault_of([&] { cache.tokenize({dir_.file("c.txt")}, {.tokenizer = changing, .threads = 1}); });
    EXPECT_THAT(names_in_cache(), IsEmpty());
    return said;
  };
  const auto expected = HasSubstr("c.txt was changed while it was tokenized: start again with a file that stays");
  EXPECT_THAT(fault([&] { dir_.write("c.txt", "longer than before"); }), expected);
  EXPECT_THAT(fault([&] {
                dir_.write("d.txt", "behind");
                fs::rename(dir_.file("d.txt"), dir_.file("c.txt"));
              }),
              expected);
}

TEST_F(TokenCaching, HasOneOfManyThreadsMakeAnEntry) {
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

TEST_F(TokenCaching, HasOneOfManyProcessesMakeAnEntryForWhichOthersWait) {
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

TEST_F(TokenCaching, MakesAnEntryWhoseMakerWasKilled) {
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
  for (const auto& name : names_in_cache()) EXPECT_THAT(name, ::testing::EndsWith(".partial"));
  TokenCache cache({.dir = dir_.file("cache"), .warn = [&](const std::string&) { maker.kill(); }});
  EXPECT_THAT(cache.entries(), IsEmpty());
  const auto made = tokenize(cache, path);
  EXPECT_EQ(made.bytes_read, fs::file_size(path));
  EXPECT_EQ(tokens_in(made.prefix), expected);
  EXPECT_THAT(names_in_cache(), SizeIs(3));
}

TEST_F(TokenCaching, RemovesWhatKilledProcessesHaveLeftAndNothingThatIsBeingMade) {
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
  EXPECT_THAT(cache.prune(UINT64_MAX), IsEmpty());
  EXPECT_THAT(names_in_cache(), SizeIs(3 + 3));
  pruned.give();
  threads.join();
  EXPECT_EQ(tokens_in(made), (std::vector<std::int64_t>{'e', 'e', 256}));
  EXPECT_EQ(tokenize(cache, b_).bytes_read, 0);
  EXPECT_EQ(tokenize(cache, b_).prefix, kept.prefix);
}

TEST_F(TokenCaching, KeepsWhatAnotherProcessHasInUse) {
  const Signal begun, never;
  Child user([&] {
    auto cache = open();
    tokenize(cache, b_);
    begun.give();
    never.await();
  });
  begun.await();
  auto cache = open();
  ASSERT_THAT(cache.entries(), SizeIs(1));
  EXPECT_TRUE(cache.entries()[0].in_use);
  EXPECT_THAT(cache.prune(0), IsEmpty());
  user.kill();
  EXPECT_FALSE(cache.entries()[0].in_use);
  EXPECT_THAT(cache.prune(0), SizeIs(1));
  EXPECT_THAT(names_in_cache(), IsEmpty());
}

TEST_F(TokenCaching, KeepsWhatIsInUseThoughAForkedProcessLetsGoOfIt) {
  auto cache = std::make_unique<TokenCache>(TokenCacheOptions{.dir = dir_.file("cache")});
  tokenize(*cache, b_);
  Child forked([&] { cache.reset(); });
  EXPECT_EQ(forked.wait(), 0);
  EXPECT_THAT(open().prune(0), IsEmpty());
  cache.reset();
  EXPECT_THAT(open().prune(0), SizeIs(1));
}

TEST_F(TokenCaching, RemovesTheLeastRecentlyUsedWhenItIsFull) {
  std::vector<std::string> paths, prefixes;
  const auto day = std::chrono::hours(24);
  for (const int i : {0, 1, 2}) {
    paths.push_back(dir_.write(fmt::format("{}.txt", i), std::string(1000, 'x')));
    prefixes.push_back(tokenize_alone(paths.back()).prefix);
    fs::last_write_time(prefixes.back() + ".json", fs::file_time_type::clock::now() - day * (9 - i));
  }
  EXPECT_EQ(tokenize_alone(paths[0]).bytes_read, 0);  // Uses it.
  const auto each = fs::file_size(prefixes[0] + ".bin") + fs::file_size(prefixes[0] + ".idx");
  {
    auto cache = open(3 * each);
    EXPECT_GT(tokenize(cache, dir_.write("3.txt", std::string(1000, 'y'))).bytes_read, 0);
  }
  EXPECT_EQ(tokenize_alone(paths[0]).bytes_read, 0);
  EXPECT_EQ(tokenize_alone(paths[2]).bytes_read, 0);
  EXPECT_GT(tokenize_alone(paths[1]).bytes_read, 0);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(TokenCaching, WarnsOnceThatItIsLargerThanItMayBe) {
  auto cache = open(100);
  const auto texts = {dir_.write("1.txt", std::string(1000, 'x')), dir_.write("2.txt", std::string(1000, 'y'))};
  for (const auto& text : texts) tokenize(cache, text);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("the token cache " + dir_.file("cache/tokens") + " holds 2.0 KiB"),
                                           HasSubstr("more than the 100 B that it may have: raise that"))));
  for (const auto& text : texts) EXPECT_EQ(tokenize(cache, text).bytes_read, 0);
}

TEST_F(TokenCaching, AsksForAnotherFolderWhereItCannotWrite) {
  EXPECT_EQ(fault_of([&] { TokenCache({.dir = b_ + "/cache"}); }),
            "SourceError: cannot write to the token cache " + b_ +
                "/cache/tokens: Not a directory; name another folder (--cache-dir, cache_dir=)");
}

/// Files of this process grow no further than `bytes` as long as it lives.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : before_(::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &limit_), 0);
    const rlimit now{.rlim_cur = bytes, .rlim_max = limit_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~FullDisk() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit_), 0);
    ::signal(SIGXFSZ, before_);
  }

 private:
  void (*before_)(int);
  rlimit limit_{};
};

TEST_F(TokenCaching, SaysHowToMakeRoomWhereTheDiskIsFullAndLeavesNothing) {
  const auto path = write_large(2);
  auto cache = open();
  std::string fault;
  {
    const FullDisk full(1 << 20);
    fault = fault_of([&] { tokenize(cache, path); });
  }
  EXPECT_THAT(fault, AllOf(HasSubstr("SourceError: cannot write " + dir_.file("cache/tokens/large.jsonl-")),
                           HasSubstr("; make room (levada cache --prune) or name another folder (--cache-dir, ")));
  EXPECT_THAT(names_in_cache(), IsEmpty());
  EXPECT_GT(tokenize(cache, path).bytes_read, 0);
}

TEST_F(TokenCaching, TokenizesAgainWhereAnEntryIsNotWhole) {
  const auto whole = tokenize_alone(b_);
  const auto tokens = tokens_in(whole.prefix);
  const std::vector<std::function<void()>> damages = {
      [&] { fs::remove(whole.prefix + ".bin"); },
      [&] { fs::remove(whole.prefix + ".idx"); },
      [&] { fs::resize_file(whole.prefix + ".bin", 4); },
      [&] { fs::resize_file(whole.prefix + ".idx", 0); },
      [&] { fs::resize_file(whole.prefix + ".json", 50); },
      [&] { std::ofstream(whole.prefix + ".json") << "[{}]"; },
      [&] { std::ofstream(whole.prefix + ".json") << R"({"version":1,"key":5})"; },
      [&] {
        auto json = content(whole.prefix + ".json");
        json[json.find("\"key\":\"") + 8] ^= 1;
        std::ofstream(whole.prefix + ".json") << json;
      },
      [&] {  // What is no file of one's own may say anything.
        fs::rename(whole.prefix + ".json", dir_.file("real.json"));
        fs::create_symlink(dir_.file("real.json"), whole.prefix + ".json");
      },
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    damages[i]();
    const auto again = tokenize_alone(b_);
    EXPECT_GT(again.bytes_read, 0) << i;
    EXPECT_EQ(again.prefix, whole.prefix);
    EXPECT_EQ(tokens_in(again.prefix), tokens) << i;
  }
}

TEST_F(TokenCaching, BelievesNoEntryOfAnotherUser) {
  const auto made = tokenize_alone(b_);
  const bool is_theirs = ::chown((made.prefix + ".json").c_str(), 12345, 12345) == 0;  // Only root can do that.
  EXPECT_EQ(tokenize_alone(b_).bytes_read > 0, is_theirs);
}

TEST_F(TokenCaching, FindsAnyByteThatIsDamagedWhenItIsAskedTo) {
  const auto made = tokenize_alone(write_large(1));
  const auto cache = open();
  const auto entry = cache.entries().at(0);
  const auto check = [&] { return fault_of([&] { cache.check(entry); }); };
  EXPECT_EQ(check(), "no fault");
  for (const std::string extension : {".bin", ".idx"}) {
    const auto whole = content(made.prefix + extension);
    for (const auto at : {std::size_t{30}, whole.size() / 2 + 777, whole.size() - 1}) {
      auto damaged = whole;
      damaged[at] ^= 1;
      std::ofstream(made.prefix + extension, std::ios::binary) << damaged;
      EXPECT_EQ(check(),
                "SourceError: " + made.prefix +
                    ".bin or its .idx is not what was written there: remove it, and the text is tokenized again")
          << extension << " at " << at;
    }
    std::ofstream(made.prefix + extension, std::ios::binary) << whole;
  }
  EXPECT_EQ(check(), "no fault");
  fs::remove(made.prefix + ".bin");
  EXPECT_THAT(check(), HasSubstr("SourceError: cannot open " + made.prefix + ".bin"));
}

/// An environment variable as it was before, when this is gone.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }

 private:
  void set(const char* value) const {
    if (value != nullptr) ::setenv(name_, value, 1);
    else ::unsetenv(name_);
  }

  const char* name_;
  std::optional<std::string> before_;
};

TEST_F(TokenCaching, LiesWhereTheCachesOfTheUserLie) {
  const Variable home("HOME", dir_.path().c_str()), cache("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(TokenCache({}).dir(), dir_.file(".cache/levada/tokens"));
  const Variable other("XDG_CACHE_HOME", dir_.file("xdg").c_str());
  EXPECT_EQ(TokenCache({}).dir(), dir_.file("xdg/levada/tokens"));
  EXPECT_EQ(TokenCache({.dir = dir_.file("mine")}).dir(), dir_.file("mine/tokens"));
  const Variable none("HOME", nullptr), relative("XDG_CACHE_HOME", "cache");
  EXPECT_EQ(
      fault_of([] { TokenCache({}); }),
      "SourceError: text is tokenized into a cache, and neither XDG_CACHE_HOME nor HOME says where: name a folder "
      "(--cache-dir, cache_dir=)");
}

}  // namespace
}  // namespace levada
