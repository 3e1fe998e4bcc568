#include "levada/tokens/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "levada/base/fault_testing.h"
#include "levada/base/full_disk_testing.h"
#include "levada/sources/sampled_digest.h"
#include "levada/tokens/token_caching_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;
namespace fs = std::filesystem;

TEST_F(TokenCaching, TokenizesATextOnceAndFindsItsTokensLater) {
  const TokenizeTexts how{.tokenizer = tokenizer_, .text = {.skip_bad = true}, .threads = 2};
  auto cache = open();
  const auto made = cache.tokenize({a_, b_}, how);
  EXPECT_EQ(made[0].bytes_read, fs::file_size(a_));
  EXPECT_THAT(made[0].bad_lines.first, SizeIs(1));
  EXPECT_EQ(tokens_in(made[0].prefix), (std::vector<std::int64_t>{'h', 'e', 'l', 'l', 'o', 256, 'y', 'o', 'u', 256}));
  EXPECT_EQ(made[1].bytes_read, fs::file_size(b_));
  EXPECT_EQ(tokens_in(made[1].prefix).size(), 10);
  EXPECT_EQ(tokenizer_->num_texts, 4);
  for (auto* again : {&cache, new TokenCache({.dir = dir_.file("cache")})}) {
    const auto found = again->tokenize({b_, a_}, how);
    EXPECT_EQ(found[1].prefix, made[0].prefix);
    EXPECT_EQ(found[1].bad_lines.first, made[0].bad_lines.first);
    EXPECT_EQ(found[1].digest, made[0].digest);
    EXPECT_EQ(found[1].digest, TokenFile(made[0].prefix, {}).contents().digest);
    EXPECT_EQ(found[0].bytes_read + found[1].bytes_read, 0);
    if (again != &cache) delete again;
  }
  EXPECT_EQ(tokenizer_->num_texts, 4);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(TokenCaching, DistinguishesTextsThatYieldOtherTokens) {
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
  fs::copy_file(path, dir_.file("c.txt"));  // the same bytes, read as another format
  add(dir_.file("c.txt"), {.tokenizer = tokenizer_});
  // Same length and modification time as before.
  dir_.write("c.jsonl", "{\"text\":\"HELLO\",\"body\":\"you\"}\n");
  fs::last_write_time(path, written);
  add(path, {.tokenizer = tokenizer_});
  std::ranges::sort(prefixes);
  EXPECT_EQ(std::ranges::adjacent_find(prefixes), prefixes.end());
  EXPECT_THAT(cache.folder().entries(), SizeIs(7));
}

TEST_F(TokenCaching, RecognizesAFileByAnyOfItsNames) {
  const auto made = tokenize_alone(b_);
  fs::create_symlink(b_, dir_.file("link.txt"));
  for (const auto& name : {dir_.file("link.txt"), dir_.file("cache/../b.txt"), fs::proximate(b_).string()}) {
    const auto found = tokenize_alone(name);
    EXPECT_EQ(found.bytes_read, 0) << name;
    EXPECT_EQ(found.prefix, made.prefix);
  }
}

TEST_F(TokenCaching, ListsEntriesMostRecentlyUsedFirst) {
  const auto made = tokenize_alone(b_);
  auto cache = open();
  tokenize(cache, dir_.write("a b\n.txt", "x"));
  fs::last_write_time(made.prefix + ".json", fs::file_time_type::clock::now() - std::chrono::hours(1));
  const auto entries = cache.folder().entries();
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].source, fs::canonical(dir_.path()) / "a b\n.txt");
  EXPECT_THAT(entries[0].prefix, HasSubstr("/cache/tokens/text-"));
  EXPECT_TRUE(entries[0].in_use);
  EXPECT_FALSE(entries[1].in_use);
  EXPECT_EQ(entries[1].prefix, made.prefix);
  EXPECT_EQ(entries[1].tokenizer, "hooked");
  EXPECT_EQ(entries[1].documents, 1);
  EXPECT_EQ(entries[1].tokens, 10);
  EXPECT_EQ(entries[1].bytes, fs::file_size(made.prefix + ".bin") + fs::file_size(made.prefix + ".idx"));
  EXPECT_GT(entries[0].last_used, entries[1].last_used + 3000);
}

TEST_F(TokenCaching, LeavesNothingAfterATextThatCannotBeTokenized) {
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
                "missing or out of place; fix the file, or skip such lines (skip_bad=True, --skip-bad)");
  for (const auto& name : names_in_cache()) EXPECT_THAT(name, HasSubstr("text-")) << "the other text is whole";
  const auto empty = dir_.write("empty.txt", "");
  EXPECT_EQ(fault_of([&] { tokenize(cache, empty); }), "SourceError: " + empty + " is empty: leave it out");
}

TEST_F(TokenCaching, NamesAllBadTextsAndTokenizesTheOthers) {
  const auto bad = [&](int number) {
    return dir_.write(fmt::format("bad{:02}.jsonl", number), fmt::format("[{}]\n", number));
  };
  const std::string first = bad(1), second = bad(2);
  for (const int threads : {1, 2}) {
    auto cache = open();
    EXPECT_THAT(fault_of([&] {
                  cache.tokenize({first, a_, b_, second}, {.tokenizer = tokenizer_, .threads = threads});
                }),
                AllOf(HasSubstr("SourceError: 3 of 4 texts cannot be used:\n  " + first + ":1: "),
                      HasSubstr("\n  " + a_ + ":3: "), HasSubstr("\n  " + second + ":1: ")));
    EXPECT_EQ(tokenize(cache, b_).bytes_read, 0U) << "the other text has been tokenized";
  }
  std::vector<std::string> many;
  for (int i = 3; i < 15; ++i) many.push_back(bad(i));
  auto cache = open();
  EXPECT_THAT(fault_of([&] { cache.tokenize(many, {.threads = 2}); }),
              AllOf(HasSubstr("12 of 12 texts cannot be used:"), HasSubstr("bad12.jsonl"),
                    Not(HasSubstr("bad13.jsonl")), HasSubstr("\n  and 2 more")));
}

TEST_F(TokenCaching, NamesAllUnreadableTextsBeforeTokenizingAny) {
  auto cache = open();
  EXPECT_THAT(fault_of([&] {
                cache.tokenize({b_, dir_.file("none"), dir_.write("empty.txt", "")}, {.tokenizer = tokenizer_});
              }),
              AllOf(HasSubstr("2 of 3 texts cannot be used:"), HasSubstr("/none: No such file"),
                    HasSubstr("empty.txt is empty: leave it out")));
  EXPECT_EQ(tokenizer_->num_texts, 0);
}

TEST_F(TokenCaching, TokenizesAFileOnceUnderTwoNames) {
  fs::create_symlink(b_, dir_.file("link.txt"));
  auto cache = open();
  const auto made = cache.tokenize({b_, dir_.file("link.txt"), b_}, {.tokenizer = tokenizer_, .threads = 2});
  EXPECT_EQ(tokenizer_->num_texts, 1);
  for (const auto& each : made) EXPECT_EQ(each.prefix, made[0].prefix);
  EXPECT_THAT(warnings_, IsEmpty());
}

/// Switches to another user, whom permissions restrict unlike root, and gives that user these files. Switches back to
/// root on destruction.
class AnotherUser {
 public:
  explicit AnotherUser(const std::vector<std::string>& paths) {
    constexpr uid_t user = 12345;
    for (const auto& path : paths) was_refused_ |= ::chown(path.c_str(), user, user) != 0;
    was_refused_ |= ::seteuid(user) != 0;
  }
  ~AnotherUser() { EXPECT_EQ(::seteuid(::getuid()), 0); }
  AnotherUser(const AnotherUser&) = delete;
  AnotherUser& operator=(const AnotherUser&) = delete;

  bool may_read(const std::string& path) const {
    return !was_refused_ && ::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0;
  }

 private:
  bool was_refused_ = false;
};

TEST_F(TokenCaching, ServesEntriesFromAReadOnlyFolder) {
  ASSERT_EQ(::chmod(b_.c_str(), 0644), 0);
  const auto made = tokenize_alone(b_);
  const auto folder = dir_.file("cache/tokens");
  std::vector<std::string> paths = {dir_.path(), dir_.file("cache"), folder};
  for (const auto& each : fs::directory_iterator(folder)) paths.push_back(each.path());
  ASSERT_EQ(::chmod(folder.c_str(), 0500), 0);
  {
    std::optional<AnotherUser> user;
    if (::geteuid() == 0) user.emplace(paths);
    if (user && !user->may_read(b_)) {
      GTEST_SKIP() << "nobody else can read the text";  // skipped without: another user
    }
    auto cache = open();
    EXPECT_EQ(tokenize(cache, b_).prefix, made.prefix);
    EXPECT_THAT(cache.folder().entries(), SizeIs(1));
    EXPECT_THAT(fault_of([&] { tokenize(cache, dir_.write("new.txt", "new")); }), HasSubstr("name another folder"));
  }
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
}

TEST_F(TokenCaching, ReportsProgressOverAllTexts) {
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

TEST_F(TokenCaching, DetectsATextThatChangesDuringTokenization) {
  const auto fault = [&](const std::function<void()>& change) {
    dir_.write("c.txt", "before");
    const auto changing = std::make_shared<HookedTokenizer>([&](const Texts&) { change(); });
    auto cache = open();
    auto said = fault_of([&] { cache.tokenize({dir_.file("c.txt")}, {.tokenizer = changing, .threads = 1}); });
    EXPECT_THAT(names_in_cache(), IsEmpty());
    return said;
  };
  const auto expected =
      HasSubstr("c.txt was changed while it was tokenized: start again with a file that does not change");
  EXPECT_THAT(fault([&] { dir_.write("c.txt", "longer than before"); }), expected);
  EXPECT_THAT(fault([&] {
                dir_.write("d.txt", "behind");
                fs::rename(dir_.file("d.txt"), dir_.file("c.txt"));
              }),
              expected);
}

TEST_F(TokenCaching, EvictsTheLeastRecentlyUsedEntryWhenFull) {
  std::vector<std::string> paths, prefixes;
  const auto day = std::chrono::hours(24);
  for (const int i : {0, 1, 2}) {
    paths.push_back(dir_.write(fmt::format("{}.txt", i), std::string(1000, char('a' + i))));
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
  EXPECT_THAT(
      warnings_,
      ElementsAre(AllOf(HasSubstr(
          "--cache-size (cache_size=) is 6.0 KiB: the tokens of 1 text of 2.0 KiB removed from the token cache"))));
}

TEST_F(TokenCaching, WarnsOnceIfItExceedsItsLimit) {
  auto cache = open(100);
  const auto texts = {dir_.write("1.txt", std::string(1000, 'x')), dir_.write("2.txt", std::string(1000, 'y'))};
  for (const auto& text : texts) tokenize(cache, text);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("the token cache " + dir_.file("cache/tokens") + " holds 2.0 KiB"),
                                           HasSubstr("more than its limit of 100 B: raise the limit"))));
  for (const auto& text : texts) EXPECT_EQ(tokenize(cache, text).bytes_read, 0);
}

TEST_F(TokenCaching, AsksForAnotherFolderIfItCannotWrite) {
  EXPECT_EQ(fault_of([&] { TokenCache({.dir = b_ + "/cache"}); }),
            "SourceError: cannot create the token cache " + b_ +
                "/cache/tokens: Not a directory; name another folder (--cache-dir, cache_dir=)");
}

TEST_F(TokenCaching, AFullDiskIsAnErrorWithARemedyAndLeavesNothing) {
  const auto path = write_large(2);
  auto cache = open();
  std::string fault;
  {
    const FullDisk full(1 << 20);
    fault = fault_of([&] { tokenize(cache, path); });
  }
  EXPECT_THAT(fault, AllOf(HasSubstr("SourceError: cannot write " + dir_.file("cache/tokens/text-")),
                           HasSubstr("; make room on that file system, or name another folder (--cache-dir, ")));
  EXPECT_THAT(names_in_cache(), IsEmpty());
  EXPECT_GT(tokenize(cache, path).bytes_read, 0);
}

TEST_F(TokenCaching, NoRoomForAListOrAJsonIsAnErrorWithARemedy) {
  const auto made = tokenize_alone(b_);
  ASSERT_GT(fs::file_size(made.prefix + ".json"), 200);
  const auto fault_with_room = [&](rlim_t bytes, const std::string& path) {
    auto cache = open();
    const FullDisk full(bytes);
    return fault_of([&] { tokenize(cache, path); });
  };
  const auto remedy = HasSubstr("; make room on that file system, or name another folder (--cache-dir, cache_dir=)");
  EXPECT_THAT(fault_with_room(0, b_), AllOf(HasSubstr("cannot write to the token cache "), remedy)) << "of the list";
  EXPECT_THAT(fault_with_room(200, dir_.write("c.txt", "c")), AllOf(HasSubstr(".json: "), remedy));
}

TEST_F(TokenCaching, ReplacesIncompleteEntries) {
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
      [&] {  // A symbolic link may lead to any file, so it is not trusted.
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

TEST_F(TokenCaching, RemovesUnreadableEntriesUnlessInUse) {
  const auto old = tokenize_alone(dir_.write("old.txt", "old")), torn = tokenize_alone(b_);
  std::ofstream(old.prefix + ".json") << R"({"version":0})";
  fs::resize_file(torn.prefix + ".json", 50);
  auto user = open();
  const auto used = tokenize(user, dir_.write("c.txt", "text"));
  std::ofstream(used.prefix + ".json") << R"({"version":0})";
  open().folder().prune(std::uint64_t{1} << 40);
  const auto name = fs::path(used.prefix).filename().string();
  EXPECT_THAT(names_in_cache(), UnorderedElementsAre(name + ".bin", name + ".idx", name + ".json"));
}

TEST_F(TokenCaching, NeverRemovesFilesOfOtherNames) {
  tokenize_alone(b_);
  std::vector<std::string> names = {"web.bin",
                                    "web.idx",
                                    "mix.json",
                                    "b.txt-0123456789abcdeF.bin",
                                    "b.txt-0123456789abcde.idx",
                                    "b.txt_0123456789abcdef.json",
                                    "b.txt-0123456789abcdef.txt",
                                    "b c-0123456789abcdef.bin",
                                    ".notes.partial",
                                    ".partial"};
  for (const auto& name : names) dir_.write("cache/tokens/" + name, "{}");
  const auto notes = dir_.write("cache/tokens/in-use-notes.txt", "of the user");
  EXPECT_THAT(open().folder().prune(0), SizeIs(1));
  EXPECT_THAT(names_in_cache(), UnorderedElementsAreArray(names));
  EXPECT_TRUE(fs::exists(notes));
}

TEST_F(TokenCaching, ReplacesFilesThatAreNotRegular) {
  for (const char* extension : {".json", ".bin", ".idx"}) {
    const auto path = tokenize_alone(b_).prefix + extension;
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_THAT(open().folder().prune(std::uint64_t{1} << 40), IsEmpty());
    EXPECT_GT(tokenize_alone(b_).bytes_read, 0) << extension;
    EXPECT_TRUE(fs::is_regular_file(path)) << extension;
  }
}

TEST_F(TokenCaching, EvictsWhileTokenizingManyFiles) {
  for (int i = 0; i < 8; ++i) tokenize_alone(dir_.write(std::to_string(i) + ".txt", std::string(1000, char('a' + i))));
  const auto one = open().folder().entries().at(0).bytes;
  std::vector<std::string> paths;
  for (int i = 8; i < 16; ++i)
    paths.push_back(dir_.write(std::to_string(i) + ".txt", std::string(1000, char('a' + i))));
  std::size_t most = 0;
  const auto tokenizer =
      std::make_shared<HookedTokenizer>([&](const Texts&) { most = std::max(most, names_in_cache().size()); });
  TokenCache cache({.dir = dir_.file("cache"), .max_bytes = 8 * one});
  cache.tokenize(paths, {.tokenizer = tokenizer, .threads = 1});
  EXPECT_LT(most, std::size_t{3} * 13) << "files of the entries, the lock, the list of uses and those being made";
  EXPECT_EQ(cache.folder().entries().size(), 8);
}

TEST_F(TokenCaching, DetectsAChangeBetweenTheSampledBytes) {
  std::string text(std::size_t{1} << 20, 'a');
  const auto path = dir_.write("long.txt", text);
  const auto written = fs::last_write_time(path);
  tokenize_alone(path);
  EXPECT_EQ(tokenize_alone(path).bytes_read, 0);
  const auto sampled = sampled_digest(*open_file(path), text.size());
  std::size_t at = 0;
  for (; at < text.size(); at += 1000) {
    auto changed = text;
    changed[at] = 'b';
    if (sampled_digest(*open_file(dir_.write("long.txt", changed)), text.size()) == sampled) break;
  }
  ASSERT_LT(at, text.size()) << "every byte is sampled";
  fs::last_write_time(path, written + std::chrono::seconds(1));
  EXPECT_GT(tokenize_alone(path).bytes_read, 0);
}

TEST_F(TokenCaching, CheckFindsAnyDamagedByte) {
  const auto made = tokenize_alone(write_large(1));
  auto cache = open();
  const auto entry = cache.folder().entries().at(0);
  const auto check = [&] { return fault_of([&] { cache.folder().check(entry.prefix); }); };
  EXPECT_EQ(check(), "no fault");
  for (const std::string extension : {".bin", ".idx"}) {
    const auto whole = content(made.prefix + extension);
    for (const auto at : {std::size_t{30}, whole.size() / 2 + 777, whole.size() - 1}) {
      auto damaged = whole;
      damaged[at] ^= 1;
      std::ofstream(made.prefix + extension, std::ios::binary) << damaged;
      EXPECT_EQ(check(),
                "SourceError: " + made.prefix + ".bin or its .idx is damaged: remove both to tokenize the text again")
          << extension << " at " << at;
    }
    std::ofstream(made.prefix + extension, std::ios::binary) << whole;
  }
  EXPECT_EQ(check(), "no fault");
  fs::remove(made.prefix + ".bin");
  EXPECT_THAT(check(), HasSubstr("SourceError: cannot open " + made.prefix + ".bin"));
  fs::remove(made.prefix + ".json");
  EXPECT_EQ(check(), "no fault") << "it has been evicted";
}

/// Restores an environment variable on destruction.
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

TEST_F(TokenCaching, DefaultsToTheUsersCacheFolder) {
  const Variable home("HOME", dir_.path().c_str()), cache("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(TokenCache({}).folder().dir(), dir_.file(".cache/levada/tokens"));
  const Variable other("XDG_CACHE_HOME", dir_.file("xdg").c_str());
  EXPECT_EQ(TokenCache({}).folder().dir(), dir_.file("xdg/levada/tokens"));
  EXPECT_EQ(TokenCache({.dir = dir_.file("mine")}).folder().dir(), dir_.file("mine/tokens"));
  const Variable none("HOME", nullptr), relative("XDG_CACHE_HOME", "cache");
  EXPECT_EQ(fault_of([] { TokenCache({}); }),
            "SourceError: text is tokenized into a cache, but neither XDG_CACHE_HOME nor HOME names its folder: name "
            "one (--cache-dir, cache_dir=)");
}

}  // namespace
}  // namespace levada
