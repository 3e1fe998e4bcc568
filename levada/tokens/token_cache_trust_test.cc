#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "levada/base/fault_testing.h"
#include "levada/tokens/token_caching_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

using TokenCacheTrust = TokenCaching;

TEST_F(TokenCacheTrust, IgnoresEntriesThatOthersMayWrite) {
  const auto made = tokenize_alone(b_);
  for (const char* extension : {".bin", ".idx", ".json"}) {
    ASSERT_EQ(::chmod((made.prefix + extension).c_str(), 0660), 0);
    EXPECT_GT(tokenize_alone(b_).bytes_read, 0) << extension;
    EXPECT_EQ(tokenize_alone(b_).bytes_read, 0);
  }
}

TEST_F(TokenCacheTrust, IsPrivateRegardlessOfTheUmask) {
  const auto before = ::umask(0);
  const auto made = tokenize_alone(b_);
  ::umask(before);
  const auto mode_of = [](const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status.st_mode & 0777U;
  };
  for (const char* folder : {"cache", "cache/tokens"}) EXPECT_EQ(mode_of(dir_.file(folder)), 0700U);
  for (const auto& file : fs::directory_iterator(dir_.file("cache/tokens"))) EXPECT_EQ(mode_of(file.path()), 0600U);
}

TEST_F(TokenCacheTrust, RejectsAFolderInWhichOthersCanReplaceEntries) {
  tokenize_alone(b_);
  const auto folder = dir_.file("cache/tokens");
  ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
  EXPECT_EQ(fault_of([&] { open(); }),
            "SourceError: the token cache " + folder +
                " can be written to by other users (mode 0777), who can replace its files: run chmod go-w on it, "
                "chmod g+s,o-w to share it with its group, or name another folder (--cache-dir, cache_dir=)");
  ASSERT_EQ(::chmod(folder.c_str(), 01777), 0);
  EXPECT_EQ(tokenize_alone(b_).bytes_read, 0);
  if (::chown(folder.c_str(), 12345, 12345) != 0) return;  // Only root can do that.
  EXPECT_THAT(fault_of([&] { open(); }), HasSubstr("belongs to another user (uid 12345)"));
}

TEST_F(TokenCacheTrust, IgnoresEntriesOfAnotherUser) {
  for (const char* extension : {".json", ".bin", ".idx"}) {
    const auto made = tokenize_alone(b_);
    const auto file = made.prefix + extension;
    if (::chown(file.c_str(), 12345, 12345) != 0) {
      GTEST_SKIP() << "only root can give a file to another user";  // skipped without: root
    }
    EXPECT_GT(tokenize_alone(b_).bytes_read, 0) << extension;
  }
}

TEST_F(TokenCacheTrust, RemovesNoFileOfAnotherUser) {
  const auto whole = tokenize_alone(b_), torn = tokenize_alone(dir_.write("c.txt", "c"));
  fs::remove(torn.prefix + ".json");
  const auto partial = dir_.write("cache/tokens/.b.txt-0123456789abcdef.bin.partial", "");
  const auto list = dir_.write("cache/tokens/in-use-abcdef", "");
  for (const auto& file : {whole.prefix + ".json", whole.prefix + ".bin", torn.prefix + ".idx", partial, list}) {
    if (::chown(file.c_str(), 12345, 12345) != 0) {
      GTEST_SKIP() << "only root can give a file to another user";  // skipped without: root
    }
  }
  EXPECT_THAT(fault_of([&] { open().folder().prune(0); }), HasSubstr("in-use-abcdef lists entries of the token cache"));
  fs::remove(list);
  EXPECT_THAT(open().folder().prune(0), IsEmpty());
  const auto name = [](const std::string& path) { return fs::path(path).filename().string(); };
  EXPECT_THAT(names_in_cache(), UnorderedElementsAre(name(whole.prefix) + ".json", name(whole.prefix) + ".bin",
                                                     name(torn.prefix) + ".idx", name(partial)));
}

TEST_F(TokenCacheTrust, DoesNotFollowLinksToTokens) {
  const auto made = tokenize_alone(b_);
  fs::rename(made.prefix + ".bin", dir_.file("elsewhere"));
  fs::create_symlink(dir_.file("elsewhere"), made.prefix + ".bin");
  EXPECT_GT(tokenize_alone(b_).bytes_read, 0);
}

TEST_F(TokenCacheTrust, SharesTheFolderOfAGroupAmongItsUsers) {
  const auto folder = dir_.file("shared");
  fs::create_directory(folder);
  if (::chown(folder.c_str(), 4001, 5000) != 0)
    GTEST_SKIP() << "only root can be several users";  // skipped without: root
  ASSERT_EQ(::chmod(folder.c_str(), 02770), 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
  const auto run_as = [&](uid_t user, const std::function<int()>& act) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        const bool is_user = ::setgroups(0, nullptr) == 0 && ::setgid(5000) == 0 && ::setuid(user) == 0;
        ::umask(022);
        ::_exit(is_user ? act() : 254);
      } catch (const SourceError& error) {
        ::_exit(255);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  /// Returns the bytes that were read of the text.
  const auto tokenize_as = [&](uid_t user) {
    return run_as(user, [&] {
      TokenCache cache({.dir = folder});
      const auto made = tokenize(cache, b_);
      static_cast<void>(TokenFile(made.prefix, {.open = [&](const std::string& path) { return cache.open(path); }}));
      return static_cast<int>(made.bytes_read);
    });
  };
  EXPECT_EQ(tokenize_as(4001), 9);
  EXPECT_EQ(tokenize_as(4002), 0);
  EXPECT_EQ(run_as(4001, [&] { return CacheFolder(folder + "/tokens").prune(0), 0; }), 0);
  EXPECT_EQ(tokenize_as(4002), 9);
  EXPECT_EQ(tokenize_as(4001), 0);
  // Root is not in the group, whose users could replace what it reads.
  EXPECT_THROW(CacheFolder(folder + "/tokens").prune(0), SourceError);
}

}  // namespace
}  // namespace levada
