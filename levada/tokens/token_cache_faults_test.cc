// A token cache whose lock is held, whose disk refuses, and whose texts are empty.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "levada/base/atomic_file.h"
#include "levada/base/fault_testing.h"
#include "levada/base/forked_testing.h"
#include "levada/base/unique_fd.h"
#include "levada/tokens/token_caching_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

using TokenCacheFaults = TokenCaching;

TEST_F(TokenCacheFaults, AdvisesToFreeSpaceOnlyOnAFullDisk) {
  auto cache = open();
  const auto remedy = [&](int error) { return cache.folder().with_remedy(WriteFailed(error, "cannot create x")); };
  EXPECT_EQ(remedy(EROFS), "cannot create x; name another folder (--cache-dir, cache_dir=)");
  EXPECT_THAT(remedy(EDQUOT), HasSubstr("make room"));
}

TEST_F(TokenCacheFaults, KeepsEntriesInUseOnADiskWithoutFreeInodes) {
  fs::create_directory(dir_.file("cache"));
  enum : int { kept, removed, full_disk_ignored, cannot_mount };
  const auto fill_and_prune = [&]() -> int {
    // In a namespace of this process, so that the mount ends with it.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", dir_.file("cache").c_str(), "tmpfs", 0, "size=16m,nr_inodes=40,mode=700") != 0) {
      return cannot_mount;
    }
    auto user = open();
    tokenize(user, b_);
    for (int i = 0; std::ofstream(dir_.file("cache/fill" + std::to_string(i))).is_open(); ++i) continue;
    auto other = open();
    if (!other.folder().prune(0).empty() || other.folder().entries().size() != 1) return removed;
    const auto fault = fault_of([&] { tokenize(other, b_); });
    return fault.find("make room on that file system") == fault.npos ? full_disk_ignored : kept;
  };
  const int outcome = in_forked_process(fill_and_prune);
  if (outcome == cannot_mount) {
    GTEST_SKIP() << "only root can mount a file system";  // skipped without: the right to mount
  }
  EXPECT_EQ(outcome, kept);
}

TEST_F(TokenCacheFaults, KeepsAnEntryThatCannotBeRead) {
  // Root could read it.
  constexpr uid_t user = 4001;
  const bool is_root = ::geteuid() == 0;
  if (is_root && ::chown(dir_.path().c_str(), user, user) != 0) {
    GTEST_SKIP() << "only root can be several users";  // skipped without: root
  }
  for (const std::string extension : {".json", ".bin", ".idx"}) {
    EXPECT_EQ(in_forked_process([&] {
                if (is_root && (::setgroups(0, nullptr) != 0 || ::setgid(user) != 0 || ::setuid(user) != 0)) return 1;
                const auto prefix = tokenize_alone(dir_.write("c.txt", extension)).prefix;
                if (::chmod((prefix + extension).c_str(), 0) != 0) return 2;
                CacheFolder folder(dir_.file("cache/tokens"));
                const auto fault = fault_of([&] { folder.evict_damaged(prefix); });
                if (fault.find("cannot open " + prefix + extension + ": Permission denied") == fault.npos) return 3;
                folder.prune(UINT64_MAX);
                for (const char* kept : {".json", ".bin", ".idx"}) {
                  if (!fs::exists(prefix + kept)) return 4;
                }
                return 0;
              }),
              0)
        << extension;
  }
}

TEST_F(TokenCacheFaults, EvictsAnEntryThatLacksAFile) {
  for (const char* extension : {".bin", ".idx"}) {
    const auto prefix = tokenize_alone(b_).prefix;
    fs::remove(prefix + extension);
    EXPECT_TRUE(open().folder().evict_damaged(prefix)) << extension;
    EXPECT_FALSE(fs::exists(prefix + ".json")) << extension;
  }
}

TEST_F(TokenCacheFaults, WarnsAboutALongWaitForTheFoldersLock) {
  auto cache = open();
  const UniqueFd lock(::open(dir_.file("cache/tokens/lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  std::thread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5500));
    ::flock(lock.get(), LOCK_UN);
  });
  EXPECT_GT(tokenize(cache, b_).bytes_read, 0);
  holder.join();
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("which another process has locked")));
}

TEST_F(TokenCacheFaults, SkipsEmptyTextsAndCountsThem) {
  const TokenizeTexts how{.tokenizer = tokenizer_, .text = {.skip_bad = true}, .threads = 1};
  const std::vector<std::string> texts = {dir_.write("none.jsonl", ""), a_};
  for (int run = 0; run < 2; ++run) {
    auto cache = open();
    const auto tokens = cache.tokenize(texts, how);
    EXPECT_EQ(tokens[0].prefix, "");
    EXPECT_EQ(tokens[0].bad_lines.count, 1);
    EXPECT_EQ(tokens[1].bad_lines.count, 1);
  }
}

TEST_F(TokenCacheFaults, RefusesAUrlAsItsFolder) {
  EXPECT_THAT(fault_of([] { token_cache_folder("s3://b/c"); }),
              HasSubstr("InvalidArgument: the folder of the cache is s3://b/c; it must be a local one"));
}

}  // namespace
}  // namespace levada
